"""Jobs whose model has tables that are asked for by id (`hogwild.nn.NamedEmbedding`): ids get rows while workers train
and die, and are known by their ids afterwards."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import hogwild
from hogwild.cli import main
from hogwild.data import key_of
from hogwild.errors import RunError
from hogwild.kernels.signatures import FREE, GONE, HEAD
from hogwild.storage.checkpoint import load
from tests.helpers.jobs import Ended, Job, start
from tests.helpers.processes import wait_for

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
pytestmark = pytest.mark.processes

USERS, ITEMS = 500, 40
OWN = f"""
import torch
from torch import nn
from torch.utils.data import TensorDataset

from hogwild.nn import NamedEmbedding


class Pairs(nn.Module):
    def __init__(self, capacity=700):
        super().__init__()
        self.users, self.items = NamedEmbedding(4, 60, max_capacity=capacity), NamedEmbedding(4, capacity)

    def forward(self, pairs):
        return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)


def pairs(count=20_000, seed=0):
    draw = torch.Generator().manual_seed(seed)
    user, item = (torch.randint(0, many, (count,), generator=draw) for many in ({USERS}, {ITEMS}))
    ids = torch.stack([user * 7_919_000_000_001 - 10**15, -item], 1)  # any int64
    return TensorDataset(ids, ((user + item) % 2).float())
"""
JOB = """
version: 1
model: {class_path: own.Pairs}
loss: {class_path: torch.nn.BCEWithLogitsLoss}
data:
  train: {class_path: own.pairs}
  val: {class_path: own.pairs, init_args: {count: 2000, seed: 1}}
  batch_size: 20
optimizer: {class_path: torch.optim.Adagrad, init_args: {lr: 0.5}}
train: {procs: 2, epochs: 4}
evaluate: {metrics: [accuracy]}
"""
ITEM_IDS = {-item for item in range(ITEMS)}
USER_OF = {user * 7_919_000_000_001 - 10**15: user for user in range(USERS)}  # by id


def rows_of(tensors: dict[str, Tensor], name: str) -> dict[int, Tensor]:
    keys = tensors[f"{name}.keys"]
    return {int(keys[row]): tensors[f"{name}.weight"][row + HEAD] for row in (keys > GONE).nonzero().squeeze(1)}


@pytest.fixture(scope="module")
def trained(jobs_folder: Path) -> Ended:
    """Two workers, of which one is killed, then the supervisor; resumed, and ended by Ctrl-C."""
    folder = jobs_folder / "named"
    folder.mkdir()
    (folder / "own.py").write_text(OWN)
    (folder / "job.yaml").write_text(JOB)
    job = start(folder, "job.yaml", "train.epochs=100000", "checkpoint.every_s=0.3")
    job.wait_for_updates(1)
    os.kill(victim := job.workers()[0], signal.SIGKILL)
    job.wait_for_exit_of(victim)
    job.wait_for_event("checkpoint", len(job.events("checkpoint")) + 1)
    job.send(signal.SIGKILL)
    updates = job.status()["updates"]
    job.wait()
    again = start(folder, "--resume", str(job.run_dir), run_dir=job.run_dir)
    again.wait_for_updates(updates + 1000)
    again.send(signal.SIGINT)
    return again.wait()


def test_a_table_grew_while_workers_trained(trained: Ended) -> None:
    grown = [(event["before"], event["capacity"]) for event in trained.events("rows-grown")]
    assert {(60, 120), (120, 240), (240, 480), (480, 700)} == {*grown}
    tensors = trained.tensors()
    assert (len(tensors["users.keys"]), len(tensors["users.weight"])) == (700, 700 + HEAD)


def test_each_id_has_one_row_whoever_was_killed(trained: Ended) -> None:
    tensors = trained.tensors()
    for name, ids in (("users", {*USER_OF}), ("items", ITEM_IDS)):
        taken = tensors[f"{name}.keys"][tensors[f"{name}.keys"] != FREE].tolist()
        assert len(taken) == len(ids) and {*taken} == ids


def test_the_model_answers_for_ids_and_for_unknown_ones(trained: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(trained.run_dir.parent))
    loaded = hogwild.load(trained.run_dir)
    users, items = torch.tensor([*USER_OF]), torch.tensor([*ITEM_IDS])
    pairs = torch.cartesian_prod(users, items)
    odd = (torch.arange(USERS)[:, None] + torch.arange(ITEMS)) % 2  # the sets keep no order: looked up
    wanted = torch.tensor([odd[USER_OF[int(user)], -int(item)] for user, item in pairs])
    outputs = loaded.predict(TensorDataset(pairs), raw=True)
    assert ((outputs > 0) == wanted.bool()).float().mean() > 0.95
    unknown = loaded.predict(TensorDataset(torch.tensor([[1, -1], [2, -1]])), raw=True)
    assert unknown[0] == unknown[1] and loaded.model.get_submodule("users").taken == USERS


def test_another_capacity_takes_the_rows_over_with_their_state(trained: Ended) -> None:
    """Nothing is trained: with a rate of zero the next run's rows are those of this one."""
    folder = trained.run_dir.parent
    more = ("train.epochs=1", "optimizer.init_args.lr=0.0", "model.init_args.capacity=5000")
    given = (
        f"model.init_from={{path: {trained.run_dir}/checkpoints/latest, optimizer_state: true}}",
        "train.procs=1",
        *more,
    )
    next_run = start(folder, "job.yaml", *given, "--run-dir", str(folder / "next"), run_dir=folder / "next").wait()
    assert next_run.status == 0, next_run.stderr
    for name in ("users", "items"):
        old, new = (rows_of(one.tensors(), name) for one in (trained, next_run))
        assert old.keys() == new.keys() and all(torch.equal(old[key], new[key]) for key in old)


def test_a_table_is_exported_with_its_ids(trained: Ended, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(trained.run_dir.parent))
        given = ["export", str(trained.run_dir / "checkpoints" / "latest"), "--format", "npz", "--kind", "users"]
        assert main.run([*given, "--out", str(tmp_path / "users.npz")]) == 0
    table = np.load(tmp_path / "users.npz")
    rows = rows_of(trained.tensors(), "users")
    assert sorted(table["names"].tolist()) == sorted(rows)
    assert all(np.array_equal(rows[name].numpy(), table["vectors"][row]) for row, name in enumerate(table["names"]))


# ---- a compiled model over a file that grows


CLICKS = """
version: 1
model: {class_path: hogwild.models.NamedFactorizationMachine, init_args: {capacity: 1000}}
loss: {class_path: torch.nn.BCEWithLogitsLoss}
data:
  train:
    class_path: hogwild.data.Follow
    init_args: {path: clicks.csv, features: [user, ad], target: clicked}
  batch_size: 20
optimizer: {class_path: torch.optim.Adagrad, init_args: {lr: 0.5}}
train: {procs: 2, update: fused}
evaluate: {progressive: true}
"""
PEOPLE, ADS = 60, 10


def is_clicked(user: int, ad: int) -> int:
    return (user + ad) % 2


def append_clicks(path: Path, users: range, count: int) -> None:
    """Append so many lines; of each user at least one."""
    draw = np.random.default_rng(users.start)
    with open(path, "a") as file:
        for number in range(count):
            user = users[number % len(users)]
            ad = int(draw.integers(ADS))
            file.write(f"u{user},{ad},{is_clicked(user, ad)}\n")


@pytest.fixture(scope="module")
def followed(jobs_folder: Path) -> Ended:
    """Two workers over lines that come while they train and while everything is dead; a worker, then the whole job is
    killed; resumed, and stopped once all is trained."""
    pytest.importorskip("pyarrow", reason="tables are parsed by pyarrow: pip install 'hogwild[csv]'")
    folder = jobs_folder / "clicks"
    folder.mkdir()
    (folder / "job.yaml").write_text(CLICKS)
    clicks = folder / "clicks.csv"
    clicks.write_text("user,ad,clicked\n")
    append_clicks(clicks, range(20), 4000)
    job = start(folder, "job.yaml", "checkpoint.every_updates=50")
    job.wait_for_updates(150)
    os.kill(victim := job.workers()[0], signal.SIGKILL)
    job.wait_for_exit_of(victim)
    append_clicks(clicks, range(20, 40), 4000)
    job.wait_for_updates(300)
    job.send(signal.SIGKILL)
    job.wait()
    append_clicks(clicks, range(40, PEOPLE), 4000)
    again = start(folder, "--resume", str(job.run_dir), run_dir=job.run_dir)
    again.wait_for_updates(600)
    again.send(signal.SIGINT)
    return again.wait()


def test_a_compiled_model_knows_everybody_who_came_once(followed: Ended) -> None:
    assert followed.reason == ("stopped", "SIGINT") and followed.summary["samples"] == 12_000, followed.stderr
    assert followed.summary["update_why"] == "fused: factorisation machine, Adagrad"
    tensors = followed.tensors()
    assert tensors["features.weight"].shape == (1002, 9)
    keys = tensors["features.keys"][tensors["features.keys"] != FREE].tolist()
    wanted = {key_of(f"user=u{user}") for user in range(PEOPLE)} | {key_of(f"ad={ad}") for ad in range(ADS)}
    assert len(keys) == len(wanted) and {*keys} == wanted


def test_it_predicts_by_the_texts_in_a_file(followed: Ended, tmp_path: Path) -> None:
    pairs = [(user, ad) for user in range(PEOPLE) for ad in range(ADS)]
    file = tmp_path / "asked.csv"
    file.write_text("ad,user\n" + "".join(f"{ad},u{user}\n" for user, ad in pairs))
    found = hogwild.load(followed.run_dir).predict(file)
    wanted = np.array([is_clicked(user, ad) for user, ad in pairs])
    assert ((np.asarray(found) > 0.5) == wanted).mean() > 0.95


def test_the_next_run_takes_rows_and_texts_along(followed: Ended, tmp_path: Path) -> None:
    """Also where it has met none of the names itself, and its table is larger."""
    folder = followed.run_dir.parent
    (folder / "later.csv").write_text("user,ad,clicked\n" + "new,1,1\n" * 40)
    given = (
        f"model.init_from={{path: {followed.run_dir}/checkpoints/latest, optimizer_state: true}}",
        "model.init_args.capacity=3000",
        "data.train.init_args={path: later.csv, features: [user, ad], target: clicked, until: end}",
        "optimizer.init_args.lr=0.0",
    )
    run_dir = folder / "later"
    ended = start(folder, "job.yaml", *given, "--run-dir", str(run_dir), run_dir=run_dir).wait()
    assert ended.status == 0, ended.stderr
    old, new = (rows_of(one.tensors(), "features") for one in (followed, ended))
    assert old.keys() < new.keys() and all(torch.equal(old[key], new[key]) for key in old)
    assert main.run(["export", str(run_dir), "--format", "npz", "--out", str(tmp_path / "rows.npz")]) == 0
    table = np.load(tmp_path / "rows.npz")
    names = table["names"].tolist()
    users, ads = [f"user=u{user}" for user in range(PEOPLE)], [f"ad={ad}" for ad in range(ADS)]
    assert sorted(names) == sorted([*users, *ads, "user=new"])
    row = old[key_of("user=u3")].numpy()
    place = names.index("user=u3")
    assert table["biases"][place] == row[0] and np.array_equal(table["vectors"][place], row[1:])


# ---- ids that are not seen any more


EXPIRING = """
from torch import nn

from hogwild.nn import NamedEmbedding


class Users(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = NamedEmbedding(4, 80, max_capacity=1000, expire_after=200)

    def forward(self, user):
        return self.users(user).sum(1)
"""
PASSING = """
version: 1
model: {class_path: expiring.Users}
loss: {class_path: torch.nn.BCEWithLogitsLoss}
data:
  train: {class_path: hogwild.data.Follow, init_args: {path: clicks.csv, ids: [user], target: click}}
  batch_size: 10
optimizer: {class_path: torch.optim.Adagrad, init_args: {lr: 0.5, initial_accumulator_value: 0.1}}
train: {procs: 2}
checkpoint: {every_s: 0.3, keep: 1}
"""


def bring(folder: Path, users: list[str], times: int) -> None:
    with open(folder / "clicks.csv", "a") as file:
        file.write("".join(f"{user},1\n" for _ in range(times) for user in users))


def names(run_dir: Path) -> set[str]:
    return {json.loads(line)[1] for line in (run_dir / "names.jsonl").read_text().splitlines()}


def test_users_who_are_not_seen_any_more_lose_their_rows(tmp_path: Path, start_job: Callable[..., Job]) -> None:
    """With the optimizer's state, and in the resumed run with their names; they come back as new ones."""
    pytest.importorskip("pyarrow", reason="tables are parsed by pyarrow: pip install 'hogwild[csv]'")
    early, late = [f"early-{n}" for n in range(100)], [f"late-{n}" for n in range(20)]
    (tmp_path / "expiring.py").write_text(EXPIRING)
    (tmp_path / "job.yaml").write_text(PASSING)
    (tmp_path / "clicks.csv").write_text("user,click\n")
    bring(tmp_path, early, 1)
    job = start_job(tmp_path, "job.yaml", "supervise.grace_s=30")
    job.wait_for_event("rows-grown")
    bring(tmp_path, early, 9)
    job.wait_for_updates(100)
    bring(tmp_path, late, 150)
    wait_for("expiry", lambda: sum(event["count"] for event in job.events("rows-expired")) == len(early))
    for last in ("update-000000410", "update-000000420"):  # both that are kept know nothing of those rows
        bring(tmp_path, late, 5)
        wait_for("a checkpoint", lambda name=last: job.events("checkpoint")[-1]["name"] == name)
    job.send(signal.SIGKILL)
    job.wait()
    again = start_job(tmp_path, "--resume", str(job.run_dir), run_dir=job.run_dir)
    again.wait_for_event("resume")
    assert names(job.run_dir) == {*late}
    bring(tmp_path, early[:30], 1)
    again.wait_for_updates(423)
    again.send(signal.SIGINT)
    ended = again.wait()
    rows = rows_of(ended.tensors(), "users")
    assert rows.keys() == {key_of(name) for name in (*late, *early[:30])} and names(job.run_dir) == {*late, *early[:30]}
    state = load((ended.run_dir / "checkpoints" / "latest").resolve())["optimizer"]["state"][0]["sum"]
    keys = ended.tensors()["users.keys"]
    returned = [int((keys == key_of(name)).nonzero()) + HEAD for name in early[:30]]
    assert (state[returned] < 0.1 + 0.1**2 + 1e-6).all(), "one click each since, of ten in a batch"
    assert (state[HEAD:][keys <= GONE] == torch.tensor(0.1)).all(), "a row that nobody has begins anew"


@pytest.mark.parametrize("procs", [0, 2])
def test_names_of_ids_without_a_row_leave_the_file_of_a_job_that_runs(
    tmp_path: Path, start_job: Callable[..., Job], procs: int
) -> None:
    """Also those that a loader noted before it was killed; of those with a row none does."""
    pytest.importorskip("pyarrow", reason="tables are parsed by pyarrow: pip install 'hogwild[csv]'")
    # Room for all from the beginning: who comes while a table is full has no row that could expire.
    (tmp_path / "expiring.py").write_text(EXPIRING.replace("200", "40").replace("80, max_capacity=1000", "4000"))
    (tmp_path / "job.yaml").write_text(PASSING.replace("procs: 2", f"procs: {procs}"))
    (tmp_path / "clicks.csv").write_text("user,click\n")
    job = start_job(tmp_path, "job.yaml")

    def has_expired(many: int) -> bool:
        bring(tmp_path, ["stays", "last"], 10)  # rows expire by batches that come
        return sum(event["count"] for event in job.events("rows-expired")) >= many

    for number in range(1, 6):
        bring(tmp_path, ["stays", *(f"{number}-{user}" for user in range(999))], 1)
        bring(tmp_path, ["stays", "last"], 500)
        job.wait_for_updates(200 * number)
        wait_for("expiry", lambda before=number - 1: has_expired(999 * before))
        if number == 3 and procs:
            (loader,) = (event["pid"] for event in job.events("loader-spawn"))
            os.kill(loader, signal.SIGKILL)

    def is_left_out() -> bool:
        bring(tmp_path, ["stays", "last"], 10)  # an answer comes with a checkpoint, and is read before a batch
        return len(names(job.run_dir)) < 4100  # of 4997: at most twice those of two rounds

    wait_for("names to leave", is_left_out)
    job.send(signal.SIGINT)
    ended = job.wait()
    assert ended.reason == ("stopped", "SIGINT") and ended.events("request")[0]["ask"] == "ids"
    rows, known = rows_of(ended.tensors(), "users"), names(job.run_dir)
    assert rows.keys() <= {key_of(name) for name in known} and {"stays", "last"} <= known and "1-1" not in known


# ---- ratings that keep coming


STARS = """
version: 1
model:
  class_path: hogwild.models.NamedFactorization
  init_args: {user_capacity: 30, user_max_capacity: 200, item_capacity: 100, factors: 8, mean: 3.0, l2: 0.02}
loss: {class_path: torch.nn.MSELoss}
data:
  train: {class_path: hogwild.data.Follow, init_args: {path: stars.csv, ids: [user, film], target: stars}}
  batch_size: 20
optimizer: {class_path: torch.optim.Adagrad, init_args: {lr: 0.3}}
train: {procs: 2, update: fused}
evaluate: {progressive: true}
"""
FILMS = 20


def append_stars(path: Path, users: range, count: int) -> None:
    draw = np.random.default_rng(users.start)
    with open(path, "a") as file:
        for number in range(count):
            user, film = users[number % len(users)], int(draw.integers(FILMS))
            file.write(f"u{user},film {film},{5 if is_clicked(user, film) else 1}\n")


@pytest.fixture(scope="module")
def rated(jobs_folder: Path) -> Ended:
    """Two workers; everything is killed, and half of the users come while it is dead: more than the table has room for
    at first."""
    pytest.importorskip("pyarrow", reason="tables are parsed by pyarrow: pip install 'hogwild[csv]'")
    folder = jobs_folder / "stars"
    folder.mkdir()
    (folder / "job.yaml").write_text(STARS)
    stars = folder / "stars.csv"
    stars.write_text("user,film,stars\n")
    append_stars(stars, range(20), 4000)
    job = start(folder, "job.yaml", "checkpoint.every_updates=50")
    job.wait_for_updates(120)
    job.send(signal.SIGKILL)
    job.wait()
    append_stars(stars, range(20, 40), 400)
    again = start(folder, "--resume", str(job.run_dir), run_dir=job.run_dir)
    again.wait_for_event("rows-grown")
    append_stars(stars, range(20, 40), 3600)
    again.wait_for_updates(400)
    again.send(signal.SIGINT)
    return again.wait()


def test_users_and_films_are_recommended_and_found_by_name(rated: Ended, tmp_path: Path) -> None:
    assert rated.summary["samples"] == 8000, rated.stderr
    assert rated.summary["update_why"] == "fused: matrix factorisation by id, 8 factors, Adagrad"
    loaded = hogwild.load(rated.run_dir)
    assert loaded.model.get_submodule("users").taken == 40 and loaded.model.get_submodule("items").taken == FILMS
    had = tmp_path / "had.csv"
    had.write_text("user,film,rating\nu7,film 0,5\nu7,film 0,4\nu7,film 2,5\nu36,film 1,5\nsomebody,other,5\n")
    ranker = loaded.ranker(had=had)
    for user in (7, 36):
        found = ranker.for_user(f"u{user}", top=5)
        liked = {f"film {film}" for film in range(FILMS) if is_clicked(user, film)} - {"film 0", "film 1", "film 2"}
        assert {name for name, _ in found.items} <= liked and len(found.items) == 5 and not found.notes
        alike = loaded.similar([f"u{user}"], kind="users", top=5)
        assert all(int(name[1:]) % 2 == user % 2 for name, _ in alike)
    assert ranker.for_user("nobody", top=1).notes
    fresh = ranker.for_items({"film 1": 5.0, "film 3": 5.0, "film 2": 1.0}, top=3)
    assert {int(name.split()[1]) % 2 for name, _ in fresh.items} == {1}
    assert all(int(name.split()[1]) % 2 for name, _ in loaded.similar(["film 1"], top=3))


EVENTS = """
version: 1
model:
  class_path: hogwild.models.NamedBprFactorization
  init_args: {user_capacity: 100, item_capacity: 100, factors: 8}
loss: {class_path: hogwild.losses.BprLoss}
data:
  train: {class_path: hogwild.data.Follow, init_args: {path: events.csv, ids: [user, film], target: [], until: end}}
  batch_size: 20
optimizer: {class_path: torch.optim.Adagrad, init_args: {lr: 0.1}}
train: {procs: 2, update: fused}
evaluate: {progressive: true}
"""


def test_events_without_a_number_make_a_recommender(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="tables are parsed by pyarrow: pip install 'hogwild[csv]'")
    (tmp_path / "job.yaml").write_text(EVENTS)
    draw = np.random.default_rng(1)
    with open(tmp_path / "events.csv", "w") as file:
        file.write("user,film\n")
        for user, film in draw.integers([0, 0], [40, FILMS], (12_000, 2)).tolist():
            file.write(f"u{user},film {film}\n" * is_clicked(user, film))
    ended = start(tmp_path, "job.yaml").wait()
    assert ended.status == 0, ended.stderr
    assert ended.summary["update_why"] == "fused: Bayesian personalised ranking by id, 8 factors, Adagrad"
    (tmp_path / "had.csv").write_text("user,film\nu7,film 0\nnobody,film 2\n")
    ranker = hogwild.load(ended.run_dir).ranker(had=tmp_path / "had.csv")
    for user in (7, 36):
        found = {name for name, _ in ranker.for_user(f"u{user}", top=7).items}
        assert len(found) == 7 and all(is_clicked(user, int(name.split()[1])) for name in found)


def test_what_users_have_must_be_given(rated: Ended) -> None:
    with pytest.raises(RunError, match="a stream does not record") as told:
        hogwild.load(rated.run_dir).ranker()
    assert told.value.code == "run/pairs-unknown"
