"""Sweeps: what a grid means, all of its jobs or none, whatever is wrong with one or kills the service."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from hogwild.cli.jobs import short_paths, sweep_table, table
from hogwild.errors import ConfigError, ConflictError, NotFoundError, StorageFullError, UsageError
from hogwild.service.folders import StateFolder
from hogwild.service.rows import row_of
from hogwild.service.states import JobRecord
from hogwild.service.store import Store
from hogwild.service.sweeps import MOST_JOBS, SWEEP, combinations, job_id, read_grid
from tests.helpers import mounts
from tests.helpers.processes import wait_for
from tests.helpers.service import LONG, SMALL, Service, opened_store, order
from tests.service.test_store import fill

LR = "optimizer.init_args.lr"


@pytest.mark.parametrize(
    ("values", "items"),
    [
        ("0.1,0.01", ["0.1", "0.01"]),
        ("[0.1, 1e-3]", ["0.1", "1e-3"]),
        ("adam", ["adam"]),
        ("'a,b', \"c\"", ["'a,b'", '"c"']),
        ("[[64, 64], [128]]", ["[64, 64]", "[128]"]),
        ("[64, 64], [128]", ["[64, 64]", "[128]"]),
        ("{fraction: 0.1}, {fraction: 0.2}", ["{fraction: 0.1}", "{fraction: 0.2}"]),
        ("null, true", ["null", "true"]),
        ("a=b", ["a=b"]),
    ],
)
def test_the_values_of_a_sweep_are_those_of_a_yaml_list(values: str, items: list[str]) -> None:
    assert read_grid([f"{LR}={values}"]) == {LR: items}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([LR], "must be KEY=VALUE,VALUE"),
        ([f"{LR}=[0.1"], "must be KEY=VALUE,VALUE"),
        ([f"{LR}=0.1]"], "must be KEY=VALUE,VALUE"),
        ([f"{LR}=0.1,,0.2"], "must be KEY=VALUE,VALUE"),
        ([f"{LR}=0.1 #"], "must be KEY=VALUE,VALUE"),
        ([f"{LR}="], f"the sweep of {LR} has no values"),
        ([f"{LR}=[]"], f"the sweep of {LR} has no values"),
        (["=1"], "cannot sweep ''"),
        ([f"{LR}=1", f"{LR}=2"], "given twice"),
        ([f"{LR}=1,2,1"], "has the value 1 twice"),
        (["model.init_args.hidden=[64, 64]"], r"written model.init_args.hidden=\[\[…\]\]"),
        (["seed=1,2"], "seed is both swept and set by seed=…"),
        ([f"{LR}={','.join(map(str, range(101)))}", "a=1,2,3,4,5,6,7,8,9,10"], r"1,010 combinations \(101 of"),
    ],
)
def test_a_malformed_sweep_is_refused(options: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        combinations(read_grid(options), ["seed=3"])
    assert caught.value.code == "usage/bad-sweep"


def test_a_grid_is_the_product_and_its_ids_follow_from_the_sweep() -> None:
    found = combinations({"a": ["1", "2"], "b": ["x", "y"]})
    assert found == [{"a": "1", "b": "x"}, {"a": "1", "b": "y"}, {"a": "2", "b": "x"}, {"a": "2", "b": "y"}]
    assert len(combinations({"a": [str(number) for number in range(MOST_JOBS)]})) == MOST_JOBS
    ids = {job_id("s00000000000", index) for index in range(MOST_JOBS)}
    assert len(ids) == MOST_JOBS and not ids & {job_id("s00000000001", index) for index in range(MOST_JOBS)}


# ---- the store


ORDERS = [order(number, sweep="s00000000000", sweep_values={LR: str(number)}) for number in (1, 2, 3)]
FILES = {"job.yaml": b"name: x\n", "package/module.py": b"A = 1\n"}


def test_the_jobs_of_a_sweep_are_read_back_and_share_their_copied_files(store: Store, state: StateFolder) -> None:
    store.add(ORDERS, store.write_aside(FILES, ORDERS))
    with opened_store(state.path) as again:
        assert [*again.orders.values()] == ORDERS and again.jobs == store.jobs
        copies = [state.job(one.id).files / "package/module.py" for one in ORDERS]
        assert [copy.read_text() for copy in copies] == ["A = 1\n"] * 3
        assert len({copy.stat().st_ino for copy in copies}) == 1
        assert sorted(os.listdir(state.jobs)) == [one.id for one in ORDERS]
        assert again.next_number() == 4 and again.next_number(5) == 5 and again.next_number() == 10


@pytest.mark.parametrize("moved", range(4))
def test_an_accepted_sweep_is_completed_at_the_next_start(store: Store, state: StateFolder, moved: int) -> None:
    aside = store.write_aside(FILES, ORDERS)
    accepted = aside.rename(aside.with_name(".all-0"))
    for one in ORDERS[:moved]:
        (accepted / one.id).rename(state.job(one.id).path)
    with opened_store(state.path) as again:
        assert [*again.orders.values()] == ORDERS
        assert sorted(os.listdir(state.jobs)) == [one.id for one in ORDERS]


def test_a_job_of_a_sweep_that_cannot_be_moved_is_named_and_the_others_are_there(
    store: Store, state: StateFolder
) -> None:
    (state.jobs / ORDERS[1].id / "there").mkdir(parents=True)
    accepted = store.write_aside(FILES, ORDERS).rename(state.jobs / ".all-0")
    with opened_store(state.path) as again:
        assert {*again.orders} == {ORDERS[0].id, ORDERS[2].id} and {*again.unreadable} == {ORDERS[1].id}
        assert os.listdir(accepted) == [ORDERS[1].id]


@pytest.mark.processes
def test_on_a_full_disk_no_job_of_a_sweep_is_left(tmp_path: Path) -> None:
    with mounts.disk(tmp_path / "disk", "2m") as disk, opened_store(disk / "state") as store:
        fill(disk)
        with pytest.raises(StorageFullError, match="not accepted"):
            store.write_aside({"job.yaml": b"x" * 10_000}, ORDERS)
        assert os.listdir(store.state.jobs) == []


def test_a_sweep_whose_jobs_cannot_all_be_moved_is_taken_back(store: Store, state: StateFolder) -> None:
    aside = store.write_aside(FILES, ORDERS)
    (state.jobs / ORDERS[2].id / "there").mkdir(parents=True)
    with pytest.raises(StorageFullError):
        store.add(ORDERS, aside)
    assert os.listdir(state.jobs) == [ORDERS[2].id] and store.jobs == {}


def test_a_service_killed_while_it_takes_a_sweep_back_leaves_none_or_all_of_it(
    store: Store, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails at the last job."""
    aside, rename = store.write_aside(FILES, ORDERS), Path.rename

    def failing(folder: Path, target: Path) -> Path:
        if target == state.job(ORDERS[2].id).path:
            raise OSError
        return rename(folder, target)

    monkeypatch.setattr(Path, "rename", failing)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: sys.exit())
    with pytest.raises(SystemExit):
        store.add(ORDERS, aside)
    monkeypatch.undo()
    with opened_store(state.path) as again:
        assert len(again.jobs) in (0, len(ORDERS))


# ---- the table


def row(number: int, best: float | None = None, *, higher: bool = False, **values: str) -> dict[str, object]:
    one = order(number, sweep="s00000000000" if values else None, sweep_values=values)
    made = row_of(JobRecord(one.id), one, StateFolder(Path("/x")).job(one.id), {}, "needs 2 cores, 0 of 2 are free")
    figure = {"metric": "loss", "value": best, "updates": 1, "epoch": 1, "checkpoint": None, "higher_is_better": higher}
    return {**made, "best": None if best is None else figure}


@pytest.mark.parametrize(("higher", "numbers"), [(False, ["2", "1", "3", "4"]), (True, ["1", "2", "3", "4"])])
def test_a_sweeps_table_begins_with_the_best_job(higher: bool, numbers: list[str]) -> None:
    rows = [row(3, **{LR: "3"}), row(1, 0.5, higher=higher, **{LR: "1"}), row(4, **{LR: "4"})]
    rows.append(row(2, 0.2, higher=higher, **{LR: "2"}))
    title, head, *lines = sweep_table("s00000000000", rows)
    assert title == "sweep s00000000000  4 jobs: 4 queued"
    assert head.split() == ["job", "lr", "state", "done", "left", "cores", "best", "note"]
    assert [line.split()[0] for line in lines] == numbers


def test_a_table_fits_a_narrow_terminal_and_loses_no_reason_that_fits_on_a_line() -> None:
    rows = [row(number, name=f"{number}" * 40) for number in (1, 2)]
    lines = [*table(rows, 60)]
    assert max(map(len, lines)) <= 60
    assert [line for line in lines if "needs 2 cores, 0 of 2 are free" in line] == lines[2::2] and len(lines) == 5
    assert all("needs 2 cores" in line for line in [*table(rows)][1:])


def test_equal_last_parts_of_keys_are_shown_whole() -> None:
    assert short_paths({"a.lr": "1", "b.lr": "2", "c.d": "3"}) == {"a.lr": "a.lr", "b.lr": "b.lr", "c.d": "d"}


# ---- a service


@pytest.mark.whole
@pytest.mark.processes
def test_a_sweep_runs_is_asked_as_one_and_is_deleted(service: Service) -> None:
    client = service.start().client
    found = client.sweep(None, {LR: [0.1, 0.2], "name": ["x,y"]}, SMALL)
    assert SWEEP.fullmatch(found["id"]) and [one["sweep"] for one in found["jobs"]] == [found["id"]] * 2
    assert [one["sweep_values"] for one in found["jobs"]] == [{LR: value, "name": "'x,y'"} for value in ("0.1", "0.2")]
    ended = client.wait(found["id"][:5], 60)
    assert [(one["state"], one["name"], one["best"]["metric"]) for one in ended["jobs"]] == [
        ("succeeded", "x,y", "loss")
    ] * 2
    with pytest.raises(ConflictError, match=rf"no job of sweep {found['id']} can be asked to cancel, such as: job "):
        client.cancel(found["id"])
    client.delete(found["id"])
    assert client.jobs() == []
    with pytest.raises(NotFoundError, match="no sweep"):
        client.job(found["id"])
    long = client.sweep(None, {"seed": [1, 2, 3]}, (*LONG, "train.threads=64"))
    service.wait_for_state(long["jobs"][0]["id"], "running")
    assert [one["state"] for one in client.pause(long["id"])["jobs"]] == ["stopping", "paused", "paused"]
    client.wait(long["id"], 60)
    assert [one["state"] for one in client.resume(long["id"])["jobs"]][1:] == ["queued", "queued"]
    with pytest.raises(ConflictError, match=r"is (queued|starting|running): cancel it first"):
        client.delete(long["id"])
    client.cancel(long["id"], now=True)
    assert {one["state"] for one in client.wait(long["id"], 60)["jobs"]} == {"cancelled"}


@pytest.mark.processes
def test_a_sweep_with_one_wrong_value_is_refused_as_a_whole(service: Service) -> None:
    client = service.start().client
    with pytest.raises(ConfigError, match=rf"command line: {LR}: must be >= 0, got -1"):
        client.sweep(None, {LR: [0.1, -1], "seed": [1, 2]}, SMALL)
    with pytest.raises(UsageError, match=r"resources.cpus: must be <= \d+, which is what this machine has, got 4096"):
        client.sweep(None, {"resources.cpus": [1, 4096]}, SMALL)
    assert client.jobs() == [] and os.listdir(service.state.jobs) == []


@pytest.mark.processes
def test_a_repeated_sweep_is_the_same_one(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    client = service.start().client
    monkeypatch.setattr("hogwild.service.client.secrets.token_hex", lambda _: "00000000000a")
    first, second = (client.sweep(None, {"seed": [1, 2]}, SMALL) for _ in range(2))
    assert [one["id"] for one in first["jobs"]] == [one["id"] for one in second["jobs"]] and len(client.jobs()) == 2
    with pytest.raises(ConflictError, match="another one"):
        client.sweep(None, {"seed": [1, 3]}, SMALL)


@pytest.mark.processes
@pytest.mark.parametrize(("point", "jobs"), [("added-aside", 0), ("accepted", 3), ("moved-in:2", 3), ("added", 3)])
def test_a_service_killed_while_it_accepts_a_sweep_has_all_of_it_or_nothing(
    service: Service, point: str, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client repeats its request, but nobody answers in time."""
    monkeypatch.setattr("hogwild.service.client.AGAIN_S", 0.0)
    service.start(failpoint=point)
    with pytest.raises(Exception, match=r"does not answer|no service runs"):
        service.client.sweep(None, {"seed": [1, 2, 3]}, (*LONG, "train.threads=64"))
    wait_for(f"the failpoint {point}", lambda: service.has_ended)
    found = service.start().client.jobs()
    assert [one["sweep_values"] for one in found] == [{"seed": str(number)} for number in (1, 2, 3)][:jobs]
    for one in found:
        service.client.cancel(one["id"], now=True)


def test_rows_of_ordinary_jobs_have_no_sweep() -> None:
    assert row(1)["sweep"] is None and row(1)["sweep_values"] == {}
