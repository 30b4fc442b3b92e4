"""The commands that ask a service: what is printed in a terminal and for programs, and bad input."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hogwild.cli import main
from hogwild.cli.arguments import grid_search
from hogwild.cli.jobs import table
from hogwild.config.load import load_job
from hogwild.errors import UsageError
from hogwild.service.client import Client
from hogwild.service.folders import StateFolder
from hogwild.service.rows import row_of
from hogwild.service.states import Elastic, JobRecord, Move
from tests.helpers.processes import wait_for
from tests.helpers.service import LONG, SMALL, Service, order, serving

Captured = pytest.CaptureFixture[str]
ELASTIC = Elastic(1, 4)
LR = "optimizer.init_args.lr"
RUNNING = JobRecord(order(1).id, state="running", attempt=1, pid=77, cores=(0, 1, 2, 3), started=1.0)


def row(job: JobRecord, **more: Any) -> dict[str, Any]:
    one = order(int(job.id, 16), **more)
    return row_of(job, one, StateFolder(Path("/state")).job(one.id), {}, None)


# ---- without a service


@pytest.mark.parametrize(
    ("values", "choice"),
    [
        ("0.1,0.01", [0.1, 0.01]),
        ("[0.1, 1e-3]", [0.1, 0.001]),
        ("'a,b', \"c\"", ["a,b", "c"]),
        ("[[64, 64], [128]]", [[64, 64], [128]]),
        ("[64, 64], [128]", [[64, 64], [128]]),
        ("{fraction: 0.1}, {fraction: 0.2}", [{"fraction": 0.1}, {"fraction": 0.2}]),
        ("null, true, 'x]}'", [None, True, "x]}"]),
        ("a=b,c", ["a=b", "c"]),
    ],
)
def test_the_values_of_a_sweep_are_those_of_a_yaml_list(values: str, choice: list[Any]) -> None:
    search = load_job(None, [grid_search([f"model.init_args.x={values}", "seed=1,2"])]).search
    assert search is not None and (search.sampler, search.pruner, search.trials) == ("grid", "none", None)
    assert {path: one.choice for path, one in search.space.items()} == {"model.init_args.x": choice, "seed": [1, 2]}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *((one, "must be KEY=VALUE,VALUE") for one in ([LR], [f"{LR}=[0.1"], [f"{LR}=0.1]"], [f"{LR}=0.1,,0.2"])),
        *((one, "must be KEY=VALUE,VALUE") for one in ([f"{LR}=0.1 #"], [f"{LR}="], ["=1,2"], [f"{LR}=1,2], b: [3"])),
        ([f"{LR}=1", f"{LR}=2"], "given twice"),
    ],
)
def test_a_malformed_sweep_is_refused(options: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        grid_search(options)
    assert caught.value.code == "usage/bad-sweep"


@pytest.mark.parametrize(
    "command",
    [
        *("submit", "submit -d", "submit --wait", "submit --sweep train.epochs=1,2", "submit train.epochs=0"),
        *("ps", "ps -a -w", "ps 1", "show 1", "status 1", "logs 1", "logs -f 1 --worker 0", "attach 1"),
        *("ask 1 stacks", "cancel 1", "cancel 1 --now", "pause 1", "resume 1", "retry 1", "delete 1"),
    ],
)
def test_every_command_without_a_service_says_how_to_start_one_and_ends_with_4(
    command: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, *rest = command.split()
    assert main.run([words, "--state-dir", "no where", *rest]) == 4
    said = capsys.readouterr()
    where = tmp_path / "no where"
    assert said.err.startswith(f"no service runs on {where}; start one with: hogwild serve --state-dir '{where}'\n")
    assert said.out == ""


@pytest.mark.parametrize(
    "path", ["", "hogwild", "//a", "/a//b", "/a?b", "/../a", "/a/.", "/a b", "/ä", "/a\n", "/x" * 9999 + " "]
)
def test_a_root_path_that_is_no_path_is_refused_with_its_rule(path: str, capsys: Captured) -> None:
    assert main.run(["serve", "--root-path", path]) == 2
    assert "must be a path of letters, digits and . _ ~ - that begins with /" in (said := capsys.readouterr().err)
    assert said.startswith("--root-path '") and len(said) < 400


@pytest.mark.parametrize("path", ["/api", "/page/x", "/metrics/"])
def test_a_root_path_that_the_service_has_itself_is_refused(path: str, capsys: Captured) -> None:
    assert main.run(["serve", "--root-path", path]) == 2
    assert "which is a path of the service itself" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["", "a b", "../../jobs", "1/cancel", "x" * 300, "stop", "1?now=true", "é", "\x1b[31m"]
)
def test_an_odd_name_is_no_job_and_reaches_no_service(name: str, capsys: Captured) -> None:
    assert main.run(["cancel", name]) == 3
    assert f"no job {name[:50]!r}: neither a number nor the beginning of an id" in capsys.readouterr().err


# ---- what a person sees


@pytest.mark.parametrize(
    ("job", "note", "cores"),
    [
        (RUNNING, "", "CPU 0-3, elastic 1-4"),
        (replace(RUNNING, moves=3), "elastic 1-4, moved 3 times", "CPU 0-3, elastic 1-4, moved 3 times"),
        (
            replace(RUNNING, moves=1, move=Move("r", (0, 2), 2, 0)),
            "elastic 1-4, moved 1 time, moving to 0,2",
            "CPU 0-3, elastic 1-4, moved 1 time, moving to 0,2",
        ),
        (
            replace(RUNNING, fixed="it has lanes"),
            "elastic 1-4, cannot be moved: it has lanes",
            "CPU 0-3, elastic 1-4, cannot be moved: it has lanes",
        ),
        (JobRecord(order(1).id), "", "asks for 2 cores, elastic 1-4"),
    ],
)
def test_a_job_tells_which_cores_it_has_and_how_they_moved(
    job: JobRecord, note: str, cores: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    made = row(job, elastic=ELASTIC, cpus=2)
    head, line = table([made])
    assert line[head.index("note") :] == note
    monkeypatch.setattr(Client, "job", lambda *_: made)
    assert main.run(["show", "1"]) == 0
    assert f"  cores       {cores}\n" in capsys.readouterr().out


@pytest.mark.parametrize(("loss", "shown"), [(0.25, 0.25), (None, 0.5)])
def test_a_job_that_ended_just_after_a_record_has_the_loss_of_its_last_epoch(loss: float | None, shown: float) -> None:
    one, record = order(1), {"state": "succeeded", "loss": loss, "train_loss": 0.5}
    assert row_of(RUNNING, one, StateFolder(Path("/state")).job(one.id), record, None)["loss"] == shown


def test_numbers_stand_right_and_names_are_cut_before_figures() -> None:
    best = {"metric": "loss", "value": 0.03858, "updates": 1, "epoch": 1, "checkpoint": None, "higher_is_better": False}
    long = {"name": "a-very-long-name-of-a-job", "left_s": 40000.0, "progress": 0.5, "best": best}
    rows = [{**row(replace(RUNNING, id=order(number).id)), **long} for number in (9, 10)]
    head, *lines = table(rows, 72)
    assert [line[:4] for line in (head, *lines)] == ["job ", "  9 ", " 10 "]
    assert all(len(line) <= 72 and line.endswith("50 %  11:06:40    0-3  val loss 0.03858") for line in lines)
    assert "  a-very-long-name…  running" in lines[0]


def test_a_note_without_room_stands_whole_below_its_job_and_a_success_needs_none() -> None:
    error = "no module 'nowhere':\n  line 3: of train.py\n  line 4: " + "x" * 90 + "\n\nTraceback"
    given = {"reason": "no module 'nowhere':", "error": error}
    failed = replace(RUNNING, id=order(2).id, state="failed", cores=(), **given)
    rows = [
        row(replace(RUNNING, state="succeeded", cores=(), reason="epochs")),
        row(failed),
        row(JobRecord(order(3).id)),
    ]
    _, first, second, *note, third = table(rows, 46)
    assert first.endswith("-") and second.endswith("-") and third.endswith("-")
    assert all(len(line) <= 46 and line.startswith("     ") for line in note)
    assert "".join("".join(note).split()) == "".join(error.partition("\n\n")[0].split()).replace(".py", ".py;")
    assert [*table(rows)][2].endswith(f"no module 'nowhere': line 3: of train.py; line 4: {'x' * 90}")


# ---- with one


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with serving(tmp_path) as made:
        monkeypatch.setenv("HOGWILD_STATE", str(made.state.path))
        yield made.start()


@pytest.mark.processes
def test_a_wrong_job_file_is_refused_with_the_words_of_check(
    service: Service, tmp_path: Path, capsys: Captured
) -> None:
    for number, text in enumerate(("train: {epochs: [", "train: {epochs: 0, prosc: 2}\n", "\x00", "- a\n")):
        job = tmp_path / f"job {number}.yaml"
        job.write_text(text)
        said = []
        for command in ("check", "submit"):
            assert main.run([command, str(job)]) == 2
            said.append(capsys.readouterr().err)
        assert said[0] == said[1] and str(job) in said[1]
    for change, words in (
        ("resources.cpus=4096", "resources.cpus: must be <= "),
        ("queue.elastic.min=1000", "queue.elastic.min: the job needs 1000 cores (min 1000; "),
    ):
        assert main.run(["submit", "train.procs=1", change]) == 2
        assert words in capsys.readouterr().err
    assert service.client.jobs() == []


@pytest.mark.whole
@pytest.mark.processes
def test_a_job_is_asked_read_and_followed_by_its_number(service: Service, capsys: Captured) -> None:
    assert main.run(["submit", "-d", "train.procs=1", "train.epochs=100000", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    service.wait_for_state(made["id"], "running")
    wait_for("updates", lambda: (service.client.job(1)["updates"] or 0) > 0)
    assert main.run(["ask", "1", "checkpoint"]) == 0
    assert f"{made['run_dir']}/checkpoints/update-" in capsys.readouterr().out
    assert main.run(["ask", made["id"][:4], "stacks"]) == 0
    assert main.run(["ask", "1", "resize", "--procs", "64"]) == 1
    assert main.run(["ask", "1", "resize", "--cores", "4000"]) == 2
    assert "which the job has, got [4000]" in capsys.readouterr().err
    assert main.run(["status", "1"]) == 0
    assert capsys.readouterr().out.startswith("job 1  running")
    assert main.run(["logs", "1", "--worker", "0"]) == 0
    assert main.run(["logs", "1", "--worker", "7"]) == 3
    assert "has no logs/worker-7.log (there: supervisor.log, worker-0.log)" in capsys.readouterr().err
    assert main.run(["ps", "--json"]) == main.run(["ps", "1", "--json"]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert [one["number"] for one in json.loads(line)["jobs"]] == [1]
    for command in ("show 7", "status 7", "logs 7", "attach 7", "ask 7 stacks", "ps 7", "delete 7", "ps sffff"):
        assert main.run(command.split()) == 3, command
    assert capsys.readouterr().err.count("hogwild ps -a lists") == 8
    assert main.run(["cancel", "1"]) == 0
    assert main.run(["logs", "-f", "1"]) == 0
    assert "end state=" in capsys.readouterr().out


@pytest.mark.processes
def test_the_exit_status_of_a_job_that_is_waited_for_is_its_own(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    assert main.run(["submit", "--wait", *SMALL]) == 0
    assert main.run(["submit", "--wait", *SMALL, "model.class_path=nowhere.Net", "model.init_args={}"]) == 2
    assert main.run(["submit", *SMALL]) == 0  # with its display
    assert main.run(["submit", "--wait", "--sweep", "seed=1,2", "--sweep", f"{LR}=0.1,0.2", *SMALL]) == 0
    assert "succeeded: 4 trials" in capsys.readouterr().out
    assert main.run(["submit", "--wait", "--sweep", f"{LR}=0.1,-1", *SMALL]) == 2
    assert f"command line: search.space.{LR}.choice[1]: must be >= 0, got -1" in capsys.readouterr().err
    assert main.run(["logs", "2"]) == 3
    said = capsys.readouterr().err
    assert "job 2 is failed and has no run directory: nowhere.Net" in said and "attempts/1/stderr" in said


@pytest.mark.processes
def test_a_deleted_run_directory_costs_its_job_nothing_but_the_run(service: Service, capsys: Captured) -> None:
    """An ended job stays in the list and can be deleted; a paused one begins again; a running one fails when it cannot
    write its checkpoint."""
    done, paused = (service.client.submit(None, given) for given in (SMALL, LONG))
    service.wait_for_state(done["id"], "succeeded")
    service.wait_for_state(paused["id"], "running")
    wait_for("updates", lambda: (service.client.job(2)["updates"] or 0) > 0)
    service.client.pause(2)
    service.wait_for_state(paused["id"], "paused")
    for one in (done, paused):
        shutil.rmtree(one["run_dir"])
    service.kill()
    service.start()
    assert main.run(["show", "1"]) == 0 and main.run(["ps"]) == 0
    assert main.run(["logs", "1"]) == main.run(["status", "1"]) == main.run(["ask", "1", "stacks"]) == 3
    assert capsys.readouterr().err.count("job 1 is succeeded and has no run directory") == 3
    assert main.run(["delete", "1"]) == 0
    service.client.resume(2)
    service.wait_for_state(paused["id"], "running")
    wait_for("updates", lambda: (service.client.job(2)["updates"] or 0) > 0)

    def is_removed() -> bool:
        shutil.rmtree(paused["run_dir"], ignore_errors=True)  # it may write a checkpoint there meanwhile
        return not Path(paused["run_dir"]).exists()

    wait_for("its removal", is_removed)
    assert main.run(["cancel", "2"]) == 0
    assert service.wait_for_state(paused["id"], "failed")["error_code"] == "checkpoint/not-written"
    capsys.readouterr()
    assert main.run(["show", "2"]) == 0
    assert capsys.readouterr().out.startswith("job 2  digits  failed: cannot write checkpoint ")
