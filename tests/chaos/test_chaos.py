"""`hogwild chaos`: seeded faults on a job, and the verdict. The runs are real, small, and end when the
test says so; the verdict is shown every kind of damage, one at a time."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hogwild.chaos import schedule
from hogwild.chaos.command import ChaosRequest
from hogwild.chaos.inject import SIGNALS, Hit, Watch
from hogwild.chaos.schedule import Fault, longest_stop_s
from hogwild.chaos.verdict import Baseline, attempts_of, checks
from hogwild.cli import main
from hogwild.config.load import load_job
from hogwild.host import other_jobs
from tests.helpers.jobs import JOBS, Ended, Job
from tests.helpers.processes import PATIENCE_S, state_of, wait_for

pytestmark = pytest.mark.processes

COUNTING = str(JOBS / "counting.yaml")
EPOCHS, SAMPLES, BATCH = 4, 1600, 4

# ---- schedules ------------------------------------------------------------------------------------------------------


def drawn(seed: int, count: int = 200, kinds: tuple[str, ...] = (), longest_s: float = 1.0) -> list[Fault]:
    return schedule.draw(seed, count, 2.0, kinds, 3, longest_s)


def test_a_seed_is_a_schedule() -> None:
    assert drawn(5) == drawn(5)
    assert len({tuple(drawn(seed)) for seed in range(20)}) == 20
    assert drawn(5)[:50] == drawn(5, 50)


def test_a_schedule_is_the_same_on_every_machine() -> None:
    assert [f"{fault.at_s:.1f} {fault}" for fault in schedule.draw(0, 10, 2.0, (), 2, 1.0)] == GOLDEN


GOLDEN = [
    "3.7 stop worker 1 for 0.09 s",
    "10.5 kill worker 1",
    "11.3 server-kill worker 0",
    "12.0 stop worker 1 for 0.99 s",
    "13.5 stop worker 0 for 0.34 s",
    "16.1 server-kill worker 1",
    "16.4 kill worker 0",
    "17.6 server-kill worker 1",
    "22.7 server-kill worker 0",
    "23.7 supervisor-pause for 0.63 s",
]


@pytest.mark.parametrize("seed", range(10))
def test_every_fault_has_a_target_a_moment_and_a_length(seed: int) -> None:
    at_s = 0.0
    for fault in drawn(seed):
        assert fault.kind in schedule.KINDS
        assert fault.number in (range(3) if fault.role == schedule.WORKER else (0,))
        assert (fault.lasts_s > 0) == (fault.kind in (schedule.STOP, schedule.SUPERVISOR_PAUSE))
        assert 0 <= fault.at_s - at_s <= schedule.LONGEST_GAP * 2.0 + 0.002  # rounded
        at_s = fault.at_s
    assert SIGNALS.keys() == set(schedule.KINDS)


def test_the_usual_mix_is_mostly_kills_and_one_in_ten_of_the_supervisor() -> None:
    faults = drawn(1, 1000)
    assert sum(fault.role == schedule.SUPERVISOR for fault in faults) == 100
    assert 500 < sum(fault.kind == schedule.KILL for fault in faults) < 700
    assert not any(fault.kind == schedule.INTERRUPT for fault in faults)


def test_the_usual_mix_of_a_job_that_streams_has_faults_of_its_loaders() -> None:
    faults = schedule.draw(1, 1000, 2.0, (), 3, 1.0, loaders=2)
    assert {fault.number for fault in faults if fault.role == schedule.LOADER} == {0, 1}
    assert 200 < sum(fault.kind == schedule.LOADER_KILL for fault in faults) < 350
    assert sum(fault.role == schedule.SUPERVISOR for fault in faults) == 100
    assert all((fault.lasts_s > 0) == (fault.kind in schedule.LASTING) for fault in faults)
    assert str(Fault(schedule.LOADER_STOP, 1, 1.0, 0.5)) == "loader-stop 1 for 0.50 s"
    streaming = order("data.feed=stream", "train.procs=2", kills=200)
    assert {fault.kind for fault in streaming.schedule()} >= {schedule.LOADER_KILL, schedule.LOADER_STOP}


@pytest.mark.parametrize(
    ("stall_s", "deadlock_s", "longest_s"), [(60.0, 300.0, 1.0), (1.0, 300.0, 0.5), (60.0, 2.0, 0.5), (0.02, 1.0, 0.01)]
)
def test_no_stop_lasts_until_a_limit_of_the_job(stall_s: float, deadlock_s: float, longest_s: float) -> None:
    assert longest_stop_s(stall_s, deadlock_s) == longest_s
    lasting = (schedule.STOP, schedule.SUPERVISOR_PAUSE)
    stops = [fault.lasts_s for fault in drawn(2, 400, lasting, longest_s)]
    assert 0 < min(stops) <= 0.1 and 0.9 * longest_s < max(stops) <= longest_s


# ---- the command line -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [["train.procs=2"], ["--procs", "2"], ["train.procs=5", "--procs", "2"]])
def test_a_dry_run_prints_the_schedule_and_starts_nothing(
    tmp_path: Path, monkeypatch: Any, capsys: Any, said: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(["chaos", *said, "--kills", "10", "--seed", "0", "--dry-run"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "seed 0"
    assert [" ".join(line.replace(" s ", " ", 1).split()) for line in lines] == GOLDEN
    assert list(tmp_path.iterdir()) == []


def order(*overrides: str, kills: int = 1) -> ChaosRequest:
    file = Path(COUNTING)
    return ChaosRequest(load_job(file, overrides), file, file.read_text(), overrides, kills, 1, 1.0, (), None, None)


def test_the_jobs_own_patience_is_raised_unless_the_command_line_says_so() -> None:
    assert order().changes == ["supervise.max_restarts=1000000", "supervise.max_item_attempts=1000", "log.every_s=0.02"]
    assert order("supervise.max_restarts=2").changes == ["supervise.max_item_attempts=1000", "log.every_s=0.02"]
    assert "supervise.max_restarts=1000000" in order().notes(1)[0]


def test_a_job_that_is_too_short_for_its_faults_says_so() -> None:
    assert len(order().notes(1)) == 1
    assert order().notes(0)[1].startswith("the job was too short: only 0 of 1 faults, one every 1 s, were injected")


# ---- whom it hits ---------------------------------------------------------------------------------------------------


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def record(run: Path, **event: object) -> None:
    with open(run / "events.jsonl", "a") as events:
        events.write(json.dumps({"time": 0.0, **event}) + "\n")


def test_only_a_child_of_the_supervisor_is_ever_opened(sleeper: subprocess.Popen[bytes]) -> None:
    pidfd = other_jobs.open_child(sleeper.pid, os.getpid())
    assert pidfd is not None
    os.close(pidfd)
    assert other_jobs.open_child(sleeper.pid, os.getppid()) is None
    assert other_jobs.open_child(os.getppid(), os.getpid()) is None
    sleeper.kill()
    sleeper.wait()
    assert other_jobs.open_child(sleeper.pid, os.getpid()) is None


def test_a_worker_is_hit_when_it_trains_and_in_its_start_only_once_in_a_row(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    record(tmp_path, event="spawn", worker=0, pid=sleeper.pid, incarnation=9)  # an earlier attempt's
    record(tmp_path, event="start", pid=os.getpid())

    def seen(**event: object) -> tuple[bool, bool]:
        record(tmp_path, worker=0, pid=sleeper.pid, **event)
        watch.look()
        return watch.fit("worker", 0, early=False) is not None, watch.fit("worker", 0, early=True) is not None

    with Watch(tmp_path, os.getpid()) as watch:
        assert watch.fit("worker", 0, early=True) is None
        assert seen(event="spawn", incarnation=1) == (False, True)
        row = {"worker": 0, "pid": sleeper.pid, "state": "training"}
        (tmp_path / "status.json").write_text(json.dumps({"workers": [row | {"state": "ready"}]}))
        assert seen(event="ready", incarnation=1) == (False, True)
        (tmp_path / "status.json").write_text(json.dumps({"workers": [row]}))
        assert seen(event="evaluation") == (True, True)
        assert seen(event="exit", how="killed by SIGKILL") == (False, False)
        (tmp_path / "status.json").write_text(json.dumps({"workers": []}))
        assert seen(event="spawn", incarnation=2) == (False, True)
        assert seen(event="exit", how="killed by SIGKILL") == (False, False)
        assert seen(event="spawn", incarnation=3) == (False, False)
        (tmp_path / "status.json").write_text(json.dumps({"workers": [row]}))
        assert seen(event="ready", incarnation=3) == (True, True)
        target = watch.fit("worker", 0, early=False)
        assert target is not None
        target.is_doomed = True
        assert watch.fit("worker", 0, early=True) is None


@pytest.mark.parametrize(("number", "state"), [(other_jobs.KILL, "Z"), (other_jobs.STOP, "T")])
def test_the_fork_server_is_struck_if_it_is_the_supervisors_child(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], number: int, state: str
) -> None:
    with Watch(tmp_path, os.getpid()) as watch:
        watch.strike_server(number)  # before there is a record
        for server in (None, {"pid": os.getppid(), "state": "waiting"}, {"pid": sleeper.pid, "state": "waiting"}):
            assert state_of(sleeper.pid) in ("S", "R")
            (tmp_path / "status.json").write_text(json.dumps({"server": server}))
            watch.strike_server(number)
    wait_for("the signal", lambda: state_of(sleeper.pid) == state)


def test_a_torn_line_of_the_records_is_read_when_it_is_whole(tmp_path: Path) -> None:
    with Watch(tmp_path, os.getpid()) as watch:
        record(tmp_path, event="start", pid=1)
        with open(tmp_path / "events.jsonl", "a") as events:
            events.write('{"time": 0, "event": "st')
        watch.look()
        assert not watch.has_started
        with open(tmp_path / "events.jsonl", "a") as events:
            events.write(f'art", "pid": {os.getpid()}}}\n')
        watch.look()
        assert watch.has_started


def test_a_loader_is_hit_when_it_has_filled_a_slot_at_its_place_among_those_that_are_there(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    def seen(state: str, **event: object) -> list[bool]:
        row = {"loader": 0, "pid": sleeper.pid, "state": state}
        (tmp_path / "status.json").write_text(json.dumps({"workers": [], "loaders": [row]}))
        record(tmp_path, loader=0, pid=sleeper.pid, **event)
        watch.look()
        return [watch.fit("loader", place, early=False) is not None for place in (0, 1)]

    record(tmp_path, event="start", pid=os.getpid())
    with Watch(tmp_path, os.getpid()) as watch:
        assert seen("starting", event="loader-spawn", incarnation=1) == [False, False]
        assert seen("training", event="loader-ready", incarnation=1) == [True, True], "one reads what was meant for two"
        target = watch.fit("loader", 0, early=False)
        assert target is not None
        target.is_doomed = True
        assert seen("training", event="checkpoint") == [False, False]
        assert seen("training", event="loader-exit", how="killed by SIGKILL") == [False, False]
        assert target.pidfd == -1


# ---- real runs ------------------------------------------------------------------------------------------------------

EACH_ONCE = "kill,stop,terminate,server-kill,server-stop,supervisor-kill,supervisor-terminate,supervisor-pause"
SEED = 21933  # with which each of them comes once
PACE = "model.init_args.pace_s=0.5"
OF_STREAMS = "kill,loader-kill,loader-stop"
STREAMED = [
    *("data.train.class_path=streaming.Divided", f"data.train.init_args.samples={SAMPLES}", "data.feed=stream"),
    *("--kills", "5", "--seed", "0", "--every", "0.3", "--faults", OF_STREAMS, PACE, f"train.epochs={EPOCHS}"),
    *("train.procs=2", "train.exchange=direct"),
]


def begin(start: Callable[..., Job], folder: Path, *arguments: str) -> Job:
    diary = folder / "diary"
    diary.mkdir(parents=True)
    return start(folder, "chaos", COUNTING, f"model.init_args.diary={diary}", "checkpoint.every_updates=4", *arguments)


def hits_said(job: Job) -> int:
    return job.stderr().count("(pid ")


@pytest.fixture(scope="module")
def runs(jobs_folder: Path, start_shared_job: Callable[..., Job]) -> dict[str, Ended]:
    """Side by side: a job that is hit by one fault of each kind, one whose chaos is interrupted, one that is refused.
    At its pace the first would last for minutes; the test lets it run to its end when it was hit
    by all."""
    storm = ["--kills", "8", "--seed", str(SEED), "--every", "0.3", "--faults", EACH_ONCE, PACE]
    jobs = {
        "hit": begin(start_shared_job, jobs_folder / "hit", *storm, f"train.epochs={EPOCHS}"),
        "streamed": begin(start_shared_job, jobs_folder / "streamed", *STREAMED),
        "interrupted": begin(
            start_shared_job,
            jobs_folder / "interrupted",
            *("--every", "0.1", "--faults", "kill"),  # a supervisor that was just killed would write no summary
            *(PACE, "train.epochs=99", "--json"),
        ),
        "refused": begin(
            start_shared_job, jobs_folder / "refused", "loss.class_path=counting.Missing", "train.procs=1"
        ),
    }
    wait_for("a hit", lambda: hits_said(jobs["interrupted"]) >= 1)
    jobs["interrupted"].send(2)
    wait_for("eight hits", lambda: hits_said(jobs["hit"]) >= 8 or jobs["hit"].process.poll() is not None)
    (jobs_folder / "hit" / "diary" / "hurry").touch()
    streamed = jobs["streamed"]
    wait_for("five hits", lambda: hits_said(streamed) >= 5 or streamed.process.poll() is not None)
    (jobs_folder / "streamed" / "diary" / "hurry").touch()
    return {name: job.wait(2 * PATIENCE_S) for name, job in jobs.items()}


def report_of(ended: Ended) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((ended.run_dir / "report" / "chaos.json").read_text())
    return report


def test_a_job_survives_one_fault_of_each_kind_and_nothing_is_lost(runs: dict[str, Ended]) -> None:
    ended = runs["hit"]
    assert ended.status == 0, ended.stdout + ended.stderr
    assert ended.reason == ("succeeded", "epochs")
    assert ended.stdout.splitlines()[-1] == "survived 8 of 8 faults; 0 batches lost; invariants: all 11 hold"
    leases = ended.leases
    assert leases["total"] == leases["done"] == EPOCHS * SAMPLES // BATCH
    effects = ended.effects()
    assert ((effects >= EPOCHS) & (effects <= EPOCHS + leases["redone"])).all()
    assert int((effects > EPOCHS).sum()) <= leases["redone"] * BATCH
    assert not ended.left_behind


def test_the_report_says_what_was_done_and_what_became_of_it(runs: dict[str, Ended]) -> None:
    ended = runs["hit"]
    report = report_of(ended)
    assert sorted(fault["kind"] for fault in report["faults"]) == sorted(EACH_ONCE.split(","))
    assert (report["seed"], report["asked"], report["injected"], report["survived"], report["lost"]) == (
        SEED,
        8,
        8,
        8,
        0,
    )
    assert [bool(attempt["asked"]) for attempt in report["attempts"]] in ([True, False], [True, True, False])
    killed = next(fault for fault in report["faults"] if fault["kind"] == "kill")
    resumed = next(fault for fault in report["faults"] if fault["kind"] == "supervisor-kill")
    assert killed["survived"] and resumed["survived"] and resumed["took_s"] > 0


def test_a_job_survives_faults_of_its_loaders_and_every_record_is_trained(runs: dict[str, Ended]) -> None:
    ended = runs["streamed"]
    assert ended.status == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == "survived 5 of 5 faults; 0 batches lost; invariants: all 11 hold"
    leases = ended.leases
    assert leases["total"] == leases["done"] == EPOCHS * SAMPLES // BATCH
    assert not ended.left_behind
    report = report_of(ended)
    assert {fault["kind"] for fault in report["faults"]} == {*OF_STREAMS.split(",")}
    deaths = [event for event in ended.events("loader-exit") if event["how"].startswith("killed by SIGKILL")]
    killed = [fault for fault in report["faults"] if fault["kind"] == "loader-kill"]
    assert ended.summary["loader_deaths"] == report["loader_deaths"] >= len(killed) >= 1
    assert {fault["pid"] for fault in killed} <= {event["pid"] for event in deaths}
    assert all(fault["took_s"] > 0 for fault in killed)
    assert f"{report['loader_deaths']} deaths of loaders" in ended.stdout


def test_a_death_of_a_loader_of_another_cause_is_seen(runs: dict[str, Ended], tmp_path: Path) -> None:
    shutil.copytree(runs["streamed"].run_dir, tmp_path / "run", symlinks=True)
    assert broken(tmp_path / "run") == {}
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    for event in events:
        event["how"] = "exit status 3" if event["event"] == "loader-exit" else event.get("how", "")
    (tmp_path / "run" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert set(broken(tmp_path / "run")) == {"deaths"}


def test_ctrl_c_ends_the_job_and_what_was_seen_is_reported(runs: dict[str, Ended]) -> None:
    ended = runs["interrupted"]
    assert ended.status == 130, ended.stderr
    report = report_of(ended)
    assert report == json.loads(ended.stdout.splitlines()[-1])
    assert 0 < report["injected"] < report["asked"] == 20
    assert [check["name"] for check in report["checks"] if check["holds"] is False] == []
    assert ended.summary["state"] == "stopped"
    assert not ended.left_behind


def test_a_job_that_is_refused_is_refused_as_train_refuses_it(runs: dict[str, Ended]) -> None:
    ended = runs["refused"]
    assert ended.status == 2
    assert "counting.Missing" in ended.stderr and "nothing was injected" in ended.stderr
    assert not ended.run_dir.exists()
    assert not ended.left_behind


# ---- the verdict ----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(runs: dict[str, Ended], tmp_path: Path) -> Path:
    """A copy of the run that was hit, to be damaged."""
    shutil.copytree(runs["hit"].run_dir, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def hits_of(run: Path) -> list[Hit]:
    faults = json.loads((run / "report" / "chaos.json").read_text())["faults"]
    return [
        Hit(
            Fault(*(fault[name] for name in ("kind", "number", "at_s", "lasts_s", "early"))),
            *(fault[name] for name in ("time", "since_s", "attempt", "pid", "incarnation")),
        )
        for fault in faults
    ]


def broken(
    run: Path, before: Baseline | None = None, status: int | None = 0, *, is_ended: bool = True
) -> dict[str, str]:
    found = checks(run, before or Baseline.now(), status=status, hits=hits_of(run), is_ended=is_ended)
    return {check.name: check.words for check in found if check.holds is False}


def flip_a_byte(run: Path) -> None:
    file = (run / "checkpoints" / "latest").resolve() / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def summary_with(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        file = run / "summary.json"
        summary = json.loads(file.read_text())
        change(summary)
        file.write_text(json.dumps(summary))

    return damage


def events_with(change: Callable[[list[dict[str, Any]], Path], list[dict[str, Any]]]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        file = run / "events.jsonl"
        events = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(event) + "\n" for event in change(events, run)))

    return damage


def killed(run: Path) -> Hit:
    return next(hit for hit in hits_of(run) if hit.fault.kind == schedule.KILL)


def no_exit(events: list[dict[str, Any]], run: Path) -> list[dict[str, Any]]:
    """The supervisor went on for a quarter of an hour, and never noticed."""
    hit = killed(run)
    kept = [event for event in events if (event["event"], event.get("pid")) != ("exit", hit.pid)]
    last = max(index for index, (attempt, _) in enumerate(attempts_of(kept)) if attempt == hit.attempt)
    return [*kept[:last], {**kept[last], "time": hit.time + 900.0}, *kept[last + 1 :]]


def another_cause(events: list[dict[str, Any]], run: Path) -> list[dict[str, Any]]:
    """The exit is put beside the start: a supervisor that was killed soon after has recorded none."""
    pid, changed = killed(run).pid, []
    for event in events:
        if (event["event"], event.get("pid")) != ("exit", pid):
            changed.append(event)
        if (event["event"], event.get("pid")) == ("spawn", pid):
            changed.append({**event, "event": "exit", "how": "exit status 3"})
    return changed


def spoil_parameters(run: Path) -> None:
    from hogwild.storage.checkpoint import load, write

    path = (run / "checkpoints" / "latest").resolve()
    state = load(path)
    state["model"]["effects.weight"][7] = torch.nan
    write(run / "checkpoints", path.name, state, state["model"], {})


DAMAGE: dict[str, tuple[Callable[[Path], None], set[str], str]] = {
    "a flipped byte in the newest checkpoint": (
        flip_a_byte,
        {"checkpoint", "checkpoint-ledger"},
        "model.safetensors is damaged",
    ),
    "a batch less is done": (
        summary_with(lambda s: s["leases"].update(done=s["leases"]["done"] - 1)),
        {"checkpoint-ledger", "ledger"},
        "are 1599, not 1600",
    ),
    "a batch was never leased": (
        summary_with(lambda s: s["leases"].update(done=1599, total=1599)),
        {"checkpoint-ledger", "ledger"},
        "4 epochs of 400 batches are 1600",
    ),
    "another state": (summary_with(lambda s: s.update(state="stopped")), {"ending"}, "the last event is"),
    "no summary": (
        lambda run: (run / "summary.json").unlink(),
        {"ending", "ledger", "checkpoint-ledger"},
        "there is no",
    ),
    "no last event": (events_with(lambda events, run: events[:-1]), {"ending"}, "the last event is"),
    "a death without an event": (events_with(no_exit), {"deaths"}, "there is no exit event"),
    "a death of another cause": (events_with(another_cause), {"deaths"}, "its exit event says 'exit status 3'"),
    "a parameter that is no number": (spoil_parameters, {"parameters"}, "NaN or infinite: effects.weight"),
    "no checkpoint": (
        lambda run: shutil.rmtree(run / "checkpoints"),
        {"checkpoint"},
        "there is no checkpoint",
    ),
    "records that are no records": (
        lambda run: (run / "events.jsonl").write_text("[\n"),
        {"ending", "deaths", "processes"},
        "JSONDecodeError",
    ),
}


def test_an_untouched_run_has_nothing_wrong_with_it(run: Path) -> None:
    assert broken(run) == {}


@pytest.mark.parametrize("name", DAMAGE)
def test_every_damage_to_a_run_is_seen_by_the_check_it_concerns(run: Path, name: str) -> None:
    damage, seen_by, words = DAMAGE[name]
    damage(run)
    found = broken(run)
    assert set(found) == seen_by, found
    assert any(words in said for said in found.values()), found


def test_another_exit_status_than_the_records_say_is_seen(run: Path) -> None:
    assert set(broken(run, status=1)) == {"ending"}
    assert broken(run, status=None) == {}


def test_a_supervisor_that_was_killed_and_not_resumed_left_no_end(run: Path) -> None:
    hit = next(hit for hit in hits_of(run) if hit.fault.kind == schedule.SUPERVISOR_KILL)
    events_with(lambda events, _: [event for attempt, event in attempts_of(events) if attempt <= hit.attempt])(run)
    (run / "summary.json").unlink()
    without_end = {"checkpoint-ledger", "ledger", "ending"}
    assert without_end <= set(broken(run, status=-9))
    assert without_end.isdisjoint(broken(run, status=-9, is_ended=False))


def test_a_process_that_was_left_is_seen_by_its_mark_and_by_its_number(run: Path) -> None:
    mark = f"HOGWILD_CHAOS=test-{os.getpid()}"
    name, _, value = mark.partition("=")
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, name: value}) as left:
        before = Baseline.now(mark=mark)
        wait_for("its mark", lambda: left.pid in other_jobs.marked(mark))
        assert str(left.pid) in broken(run, before)["processes"]
        record(run, event="spawn", worker=0, pid=left.pid, incarnation=9)
        own = Baseline.now()
        is_stranger = broken(run, own)  # it was said to be there in 1970: this one only has its number
        assert set(is_stranger) == {"ending"}
        left.kill()


def with_event(run: Path, **event: object) -> None:
    """Before the last one, and of a time when every process of today had begun."""
    *events, end = (run / "events.jsonl").read_text().splitlines(keepends=True)
    own = json.dumps({"time": json.loads(end)["time"] + 1e9, **event}) + "\n"
    (run / "events.jsonl").write_text("".join([*events, own, end]))


def test_a_worker_that_still_lives_is_seen_by_its_number(run: Path, sleeper: subprocess.Popen[bytes]) -> None:
    with_event(run, event="spawn", worker=0, pid=sleeper.pid, incarnation=9)
    assert str(sleeper.pid) in broken(run)["processes"]


def test_who_asks_may_have_been_the_supervisor_and_others_in_its_group_are_not_the_jobs(
    run: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    with_event(run, event="start", pid=os.getpid())
    with_event(run, event="start", pid=os.getpgid(sleeper.pid))
    assert str(sleeper.pid) not in broken(run).get("processes", "")


def test_what_is_left_in_shared_memory_is_seen_and_what_others_use_is_not(run: Path) -> None:
    before, name = Baseline.now(), f"hogwild-test-{os.getpid()}"
    file = Path("/dev/shm") / name
    try:
        with open(file, "w"):
            assert broken(run, Baseline(before.shared_memory, before.descriptors + 1)) == {}
        assert name in broken(run, before)["shared-memory"]
    finally:
        file.unlink()


def test_what_is_left_open_or_in_the_temporary_folder_is_seen(run: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    (temporary / "before").touch()
    before = Baseline.now(temporary=temporary)
    (temporary / "torchinductor_somebody").touch()
    assert broken(run, before) == {}
    (temporary / "left").touch()
    with open(tmp_path / "open", "w"):
        found = broken(run, before)
    assert set(found) == {"open-files", "temporary-files"}
    assert found["temporary-files"].endswith("temporary: left")
