"""The plan of a job: pure, frozen, made from one look at the machine, and the same in every answer about the job."""

import json
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hogwild import host
from hogwild.cli import main
from hogwild.config.load import load_job
from hogwild.devices import discovery
from hogwild.errors import HogwildError, UsageError
from hogwild.host import Cores
from hogwild.job.build import deep_check
from hogwild.planning.cpu_plan import MachineFacts
from hogwild.planning.device_placement import Devices, placed
from hogwild.planning.job_plan import CPU, REPLICA, SHARED, JobFacts, JobPlan, completed, exchange_of, plan_job
from hogwild.scheduling.batch_plan import BatchPlan, StreamPlan
from hogwild.scheduling.grid_plan import NO_GRID, TableSide
from hogwild.scheduling.stream_schedule import fewest_slots

SIDES = st.tuples(*(st.builds(TableSide, st.just(name), st.integers(1, 10**5), st.just(68)) for name in ("u", "i")))
SETTINGS = st.fixed_dictionaries(
    {
        "train.procs": st.sampled_from(["auto", 0, 1, 2, 5]),
        "train.exchange": st.sampled_from(["auto", "direct", "delta"]),
        "train.accumulate": st.integers(1, 4),
        "optimizer.state": st.sampled_from(["auto", "private", "shared"]),
        "data.loaders": st.sampled_from(["auto", 1, 3]),
        "seed": st.integers(0, 9),
    }
)
MACHINES = st.builds(lambda cores: MachineFacts(Cores(cores, None, float(cores), "of a test"), {}), st.integers(1, 64))
FACTS = st.builds(
    JobFacts,
    feed=st.sampled_from(["resident", "packed", "stream", "rollout"]),
    epoch=st.builds(BatchPlan, st.integers(64, 10**7), st.just(32)) | st.builds(StreamPlan, st.just(32), st.just(1)),
    why=st.just("of a test"),
    is_fused=st.booleans(),
    keeps_to_cpu=st.sampled_from(["", "of a test"]),
    adds_sums=st.booleans(),
    suits_sharing=st.booleans(),
    sides=st.just(()) | SIDES,
    grid_before=st.sampled_from([None, NO_GRID, (4, 8, 4)]),
)


def made(settings: dict[str, Any], machine: MachineFacts, facts: JobFacts, gpus: int) -> JobPlan | str:
    """The complete plan, or the error."""
    try:
        job = load_job(None, [f"{name}={value}" for name, value in settings.items()])
        plan = plan_job(job, machine, nodes=0, is_resumed=facts.grid_before is not None)
        return completed(placed(plan, Devices("cuda", gpus) if gpus else Devices()), facts)
    except HogwildError as error:
        return str(error)


@given(settings=SETTINGS, machine=MACHINES, facts=FACTS, gpus=st.integers(0, 2))
def test_the_same_job_machine_and_data_have_the_same_plan(
    settings: dict[str, Any], machine: MachineFacts, facts: JobFacts, gpus: int
) -> None:
    plan = made(settings, machine, facts, gpus)
    assert plan == made(settings, machine, facts, gpus)
    if isinstance(plan, str):
        return
    assert plan.is_complete and plan.exchange in ("direct", "delta") and plan.state in ("private", "shared")
    assert json.loads(json.dumps(plan.record()))["update"] == "of a test"
    assert not (plan.grid and plan.copied) and (plan.grid is None or facts.sides)
    assert not plan.devices or (len(plan.devices) == plan.rows and plan.exchange == "delta")
    for field in fields(plan):
        with pytest.raises(FrozenInstanceError):
            setattr(plan, field.name, None)


@given(procs=st.integers(0, 8), loaders=st.integers(1, 8), accumulate=st.integers(1, 4), most=st.integers(8, 16))
def test_the_ring_has_room_for_the_most_workers_that_there_may_be(
    procs: int, loaders: int, accumulate: int, most: int
) -> None:
    settings = [f"train.procs={procs}", f"data.loaders={loaders}", f"train.accumulate={accumulate}"]
    job = load_job(None, [*settings, *([f"train.procs_max={most}"] if procs else [])])
    plan = plan_job(job, MachineFacts(Cores(4, None, 4.0, "of a test"), {}))
    form: Any = None
    from hogwild.feeds.ring import RingSpec

    facts = JobFacts(feed="stream", epoch=StreamPlan(32, 1), why="", slot=RingSpec(form, 1, 1, 64))
    ring = completed(plan, facts).ring
    assert ring is not None and ring.loaders == (loaders if procs else 1)
    assert ring.slots >= fewest_slots(most if procs else 1, ring.loaders, accumulate)


@pytest.mark.parametrize(
    ("is_fused", "nbytes", "settings", "slots"),
    [
        (True, 1 << 10, (), 256), (True, 1 << 16, (), 64), (True, 1 << 24, (), 8), (False, 1 << 10, (), 8),
        (True, 1 << 10, ("data.slots=10",), 10),
    ],
)  # fmt: skip
def test_small_batches_of_a_kernel_get_a_longer_ring(
    is_fused: bool, nbytes: int, settings: tuple[str, ...], slots: int
) -> None:
    from hogwild.feeds.ring import RingSpec

    plan = plan_job(load_job(None, ["train.procs=1", *settings]), MachineFacts(Cores(2, None, 2.0, "of a test"), {}))
    form: Any = None
    slot = RingSpec(form, 1, 1, nbytes)
    facts = JobFacts(feed="stream", epoch=StreamPlan(32, 1), why="", is_fused=is_fused, slot=slot)
    ring = completed(plan, facts).ring
    assert ring is not None and ring.slots == slots


def test_tables_that_are_asked_for_by_id_stay_on_one_machine() -> None:
    facts = JobFacts(feed="resident", epoch=BatchPlan(100, 10), why="", has_named_rows=True)
    plan = plan_job(load_job(None, []), MachineFacts(Cores(4, None, 4.0, "of a test"), {}), nodes=2)
    with pytest.raises(UsageError, match="NamedEmbedding") as raised:
        completed(plan, facts)
    assert raised.value.code == "cluster/named-rows"


def test_a_job_with_more_workers_than_lanes_is_refused_before_anything_is_built() -> None:
    job = load_job(None, ["data.lanes=2"])
    with pytest.raises(UsageError, match=r"data\.lanes is 2, but there are 4 workers"):
        plan_job(job, MachineFacts(Cores(4, None, 4.0, "of a test"), {}))


# ---- one look at the machine, and one plan in every answer ----------------------------------------------------------

CASES = {
    "resident": ["train.procs=0"],
    "stream": ["train.procs=0", "data.feed=stream", "data.loaders=2"],
    "kernel": ["train.procs=0"],
}


@pytest.fixture(params=CASES)
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """A job file with its changes."""
    changes = [*CASES[request.param], "train.epochs=1", "name=planned"]
    file = "digits"
    if request.param == "kernel":
        pytest.importorskip("numba")
        rows = "".join(f"{user},{item},{item % 5}\n" for user in range(50) for item in range(40))
        (tmp_path / "ratings.csv").write_text("user,item,rating\n" + rows)
        data = f"{{class_path: hogwild.data.Ratings, init_args: {{path: {tmp_path / 'ratings.csv'}}}}}"
        file, changes = "ratings", [*changes, f"data.train={data}", "data.val=null", "evaluate.target={}"]
    return [str(Path(main.__file__).parents[2] / "configs" / f"{file}.yaml"), *changes]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions to the machine so far: its cores, and its devices."""
    asked: list[str] = []
    for owner, name in ((host, "usable_cores"), (discovery, "resolve")):
        answer = getattr(owner, name)

        def ask(*given: Any, name: str = name, answer: Any = answer) -> Any:
            asked.append(name)
            return answer(*given)

        monkeypatch.setattr(owner, name, ask)
    return asked


def answers(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main.run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.processes  # a kernel that is not in the cache is compiled by a process
def test_a_command_asks_the_machine_once(
    command: list[str], looks: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_the_data = ["usable_cores"] if "ratings" in command[0] else []  # parsing a text has threads of its own
    for name, more in (
        ("plan", ["usable_cores"]),
        ("train --dry-run", ["usable_cores", "resolve", *of_the_data]),
        (f"train --run-dir {tmp_path / 'run'}", ["usable_cores", "resolve"]),  # the text comes from the cache
    ):
        looks.clear()
        verb, *options = name.split()
        answers(capsys, verb, *command, *options)
        assert sorted(looks) == sorted(more if "run-dir" not in name else [*more, *of_the_data]), name


@pytest.mark.processes
def test_every_answer_about_a_job_is_of_the_same_plan(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = load_job(Path(command[0]), command[1:])
    checked = deep_check(job, None, None)
    first = answers(capsys, "plan", *command)["plan"]
    dry = answers(capsys, "train", *command, "--dry-run")
    summary = answers(capsys, "train", *command, "--run-dir", str(tmp_path / "run"))
    recorded = json.loads((tmp_path / "run" / "env.json").read_text())["plan"]
    shown = (tmp_path / "run" / "logs" / "supervisor.log").read_text()

    decisions = ("procs", "threads", "feed", "exchange", "optimizer_state", "planned_updates")
    for name in (*decisions, "shared_memory_bytes"):
        assert checked[name] == dry[name] == recorded[name], name
    assert checked["update"].startswith(dry["update"]) and dry["update"] == recorded["update"] == summary["update_why"]
    assert (first["procs"], first["threads"]) == (dry["procs"], dry["threads"])
    assert first["why"] == dry["plan"] == checked["plan"] == recorded["reason"]
    assert f"plan: {first['why']}" in shown
    assert (summary["exchange"], summary["placement"]) == (recorded["exchange"], recorded["placement"])
    assert sum(recorded["memory"].values()) == recorded["shared_memory_bytes"]
    kind = {"stream": recorded["ring"], "packed": recorded["grid"]}.get(recorded["feed"], recorded["memory"])
    assert kind, "a stream has a ring, two-sided data a grid"


@pytest.mark.parametrize(
    ("given", "procs", "is_fused", "placement", "exchange"),
    [
        ("auto", 2, False, CPU, "direct"),
        ("auto", 64, False, CPU, "direct"),
        ("direct", 4, False, CPU, "direct"),
        ("delta", 4, False, CPU, "delta"),
        ("delta", 1, False, CPU, "direct"),
        ("delta", 0, False, CPU, "direct"),
        ("delta", 4, True, CPU, "direct"),
        ("auto", 2, False, REPLICA, "delta"),
        ("auto", 1, False, REPLICA, "delta"),
        ("auto", 2, False, SHARED, "direct"),
    ],
)
def test_only_a_person_or_a_copy_on_a_device_chooses_delta(
    given: str, procs: int, is_fused: bool, placement: str, exchange: str
) -> None:
    text = f"model: {{class_path: a.B}}\ndata: {{train: {{class_path: a.C}}}}\ntrain: {{exchange: {given}}}\n"
    job = load_job(Path("job.yaml"), source_text=text)
    assert exchange_of(job, procs, fused=is_fused, placement=placement) == exchange


@pytest.mark.parametrize(
    ("device", "settings", "procs"),
    [
        ("cuda:0", ("train.graphs=auto",), 1),
        ("cuda:0", ("train.graphs=auto", "train.procs=4"), 4),
        ("cuda:0", (), 6),
        ("cuda", ("train.graphs=auto",), 6),
        ("cpu", ("train.graphs=auto",), 6),
    ],
)
def test_one_gpu_gets_one_worker_where_that_replays_its_updates(
    device: str, settings: tuple[str, ...], procs: int
) -> None:
    job = load_job(None, [f"train.device={device}", *settings])
    plan = plan_job(job, MachineFacts(Cores(6, None, 6.0, "of a test"), {}))
    assert plan.procs == procs
    assert ("one for one GPU, where it replays its updates" in plan.reason) == (procs == 1)
