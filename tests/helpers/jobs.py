"""A job in a process of its own, with a deadline: started, watched through its run directory, ended, looked at.

`start` runs the command line as a user would; `in_turn` runs several command lines one after the other in one process,
which saves importing torch for each, and counts what each one left behind in that process."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from tests.helpers.processes import MARK, PATIENCE_S, marked, shared_memory_names, wait_for

HOME = Path(__file__).resolve().parents[2]
JOBS = HOME / "tests" / "jobs"
RUN_PY = str(HOME / "run.py")
IN_TURN = ("-m", "tests.helpers.in_turn")
GONE_S = 30.0  # how long what was killed may need to go away: a fraction of a second, but a busy machine's
IN_TURN_S = 1000.0  # less than the timeout of a test (pyproject.toml), which would not say which job it was


def environment(mark: str, folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The test's own, without what would change a plan; temporary files go to `folder`/tmp."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    kept = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    return {**kept, "PYTHONPATH": str(HOME), "TMPDIR": str(temporary), MARK: mark, **(extra or {})}


def write_ratings_job(folder: Path, procs: int, epochs: int) -> None:
    """Write job.yaml, which trains on 180 ratings with a compiled kernel, and its ratings.csv."""
    rows = [f"{user},{item},{(user + item) % 5}" for user in range(20) for item in range(9)]
    (folder / "ratings.csv").write_text("\n".join(["user,item,rating", *rows]) + "\n")
    (folder / "job.yaml").write_text(f"""
version: 1
name: ratings
model: {{class_path: hogwild.models.MatrixFactorization, init_args: {{factors: 4}}}}
loss: {{class_path: torch.nn.MSELoss}}
data: {{train: {{class_path: hogwild.data.Ratings, init_args: {{path: ratings.csv}}}}, batch_size: 8}}
optimizer: {{class_path: hogwild.optimizers.RowWiseAdagrad}}
train: {{procs: {procs}, epochs: {epochs}}}
""")


@dataclass(slots=True)
class Job:
    """One command in `folder` (its current folder); `run_dir` is where its run directory will be."""

    folder: Path
    run_dir: Path
    process: "subprocess.Popen[str]"
    mark: str
    shared_before: set[str] = field(default_factory=shared_memory_names)

    # ---- while it runs

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        return read_events(self.run_dir, kind)

    def status(self) -> dict[str, Any]:
        """status.json, {} before it is there; a torn one would be an error, which is the point."""
        file = self.run_dir / "status.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def wait_for_event(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        def look() -> list[dict[str, Any]]:
            is_over = self.process.poll() is not None  # asked first: what it wrote last is there then
            found = self.events(kind)
            assert len(found) >= count or not is_over, f"the job ended before {count} x {kind}:\n{self.stderr()}"
            return found if len(found) >= count else []

        return wait_for(f"{count} x event {kind}", look)

    def wait_for_updates(self, count: int) -> int:
        return wait_for(f"{count} updates", lambda: self._updates_from(count))

    def _updates_from(self, count: int) -> int:
        is_over = self.process.poll() is not None
        updates = int(self.status().get("updates", 0))
        assert updates >= count or not is_over, f"the job ended before {count} updates:\n{self.stderr()}"
        return updates if updates >= count else 0

    def wait_for_exit_of(self, *pids: int) -> None:
        """Until the supervisor has noticed that these workers are gone."""
        wait_for(f"the exit of {pids}", lambda: {*pids} <= {event["pid"] for event in self.events("exit")})

    def workers(self) -> dict[int, int]:
        """Worker number -> pid of those started and not yet gone."""
        alive: dict[int, int] = {}
        for event in self.events():
            if event["event"] == "spawn":
                alive[event["worker"]] = event["pid"]
            elif event["event"] == "exit":
                alive.pop(event["worker"], None)
        return alive

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def stdout(self) -> str:
        return (self.folder / "stdout.txt").read_text()

    def stderr(self) -> str:
        return (self.folder / "stderr.txt").read_text()

    # ---- its end

    def wait(self, timeout_s: float = PATIENCE_S) -> "Ended":
        """Waits for the end; a job that does not end is killed with everything it started, and the test fails."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.destroy()
            raise AssertionError(f"the job did not end in {timeout_s:g} s:\n{self.stderr()[-4000:]}") from None
        return Ended(status, self.run_dir, self.stdout(), self.stderr(), self.left_behind())

    def left_behind(self, within_s: float = GONE_S) -> list[str]:
        """Return the remains `within_s` after the job's process ended: processes, shared memory, temporary files."""
        try:
            wait_for("nothing left", lambda: not self._remains(), within_s)
        except AssertionError:
            return self._remains()
        return []

    def _remains(self) -> list[str]:
        # torch makes the folder of its compiler's cache with the first optimizer of every program, ours or not.
        temporary = [str(path) for path in (self.folder / "tmp").iterdir() if "torchinductor" not in path.name]
        processes = [f"process {pid}: {command}" for pid, command in marked(self.mark).items()]
        return processes + sorted(shared_memory_names() - self.shared_before) + temporary

    def destroy(self) -> None:
        """Kills every process of this job; for the end of a test that went wrong."""
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True, slots=True)
class Ended:
    """A job after its end. `status` is the exit status, negative for a signal."""

    status: int
    run_dir: Path
    stdout: str
    stderr: str
    left_behind: list[str]
    process_leaks: Mapping[str, Any] = field(default_factory=dict)  # only of jobs run in turn

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return summary

    @property
    def said(self) -> str:
        """Standard error without the lines that tell how far the start of a job is: how many depends on the machine."""
        return without_start(self.stderr)

    @property
    def leases(self) -> dict[str, int]:
        leases: dict[str, int] = self.summary["leases"]
        return leases

    @property
    def reason(self) -> tuple[str, str]:
        summary = self.summary
        return summary["state"], summary.get("error_code") or summary["reason"]

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        return read_events(self.run_dir, kind)

    def tensors(self) -> dict[str, Tensor]:
        """The parameters of the newest checkpoint."""
        from safetensors.torch import load_file

        return load_file(self.run_dir / "checkpoints" / "latest" / "model.safetensors")

    def model_bytes(self) -> bytes:
        return (self.run_dir / "checkpoints" / "latest" / "model.safetensors").read_bytes()

    def effects(self) -> Tensor:
        """(samples,) how often each sample was applied, of a job that counts them (jobs/counting.py)."""
        return self.tensors()["effects.weight"].flatten()

    def ledger_adds_up(self) -> bool:
        leases = self.leases
        return leases["done"] + leases["skipped"] + leases["quarantined"] == leases["total"]


def without_start(stderr: str) -> str:
    return re.sub(
        r"^(hogwild [\d.]+: .*; importing torch|(importing|building|reading|sharing) .*, \d+ s)\n",
        "",
        stderr,
        flags=re.M,
    )


def write_request(run_dir: Path, name: str, **request: Any) -> None:
    """Ask something of a running job."""
    folder = run_dir / "requests"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.tmp").write_text(json.dumps(request))
    (folder / f"{name}.tmp").rename(folder / f"{name}.json")


def read_events(run_dir: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Whole lines of events.jsonl, all or of one kind."""
    file = run_dir / "events.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event for event in events if kind is None or event["event"] == kind]


def start(
    folder: Path,
    *arguments: str,
    run_dir: Path | None = None,
    python: Sequence[str] = (RUN_PY,),
    extra: Mapping[str, str] | None = None,
    stdin: str | int | None = None,
    start_new_session: bool = False,
) -> Job:
    """Starts `python run.py ARGUMENTS` with `folder` as the current one. `run_dir`: a run to be resumed; a new one is
    made in `folder`/run. `stdin`: a text, or a descriptor. `start_new_session`: in a process group of its own. As a
    fork where that is the same (`zygote.is_same`)."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex
    is_train = list(python) == [RUN_PY]
    where = ["--run-dir", str(folder / "run")] if is_train and run_dir is None else []
    shared = shared_memory_names()
    argv, given = [*python, *arguments, *where], environment(mark, folder, extra)
    with open(folder / "stdout.txt", "w") as out, open(folder / "stderr.txt", "w") as err:
        process = subprocess.Popen(
            [sys.executable, *argv],
            cwd=folder,
            stdin=stdin if isinstance(stdin, int) else subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=out,
            stderr=err,
            text=True,
            env=given,
            start_new_session=start_new_session,
        )
    if isinstance(stdin, str):
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
    return Job(folder, run_dir or folder / "run", process, mark, shared)


@dataclass(frozen=True, slots=True)
class InTurn:
    """Command lines that run one after the other in one process."""

    runner: Job
    specs: Sequence[Mapping[str, Any]]

    def wait(self) -> dict[str, Ended]:
        ended = self.runner.wait(IN_TURN_S)
        said = "".join(file.read_text() for file in sorted(self.runner.folder.glob("*/stderr.txt")))
        assert ended.status == 0, ended.stderr + said
        assert not ended.left_behind, ended.left_behind
        return {spec["name"]: _read(spec) for spec in self.specs}


def in_turn(folder: Path, jobs: Mapping[str, Sequence[str]]) -> dict[str, Ended]:
    """Runs the command lines one after the other in one process; each in `folder`/NAME, its run in `folder`/NAME/run
    unless it resumes one."""
    return begin_in_turn(folder, jobs).wait()


def begin_in_turn(folder: Path, jobs: Mapping[str, Sequence[str]]) -> InTurn:
    """The same, beside what the test does meanwhile; a fixture that is given up `destroy`s the runner."""
    specs: list[dict[str, Any]] = []
    for name, given in jobs.items():
        (folder / name).mkdir(parents=True)
        run_dir, argv = folder / name / "run", list(given)
        if "--resume" in argv:
            run_dir = Path(argv[argv.index("--resume") + 1])
        else:
            argv += ["--run-dir", str(run_dir)]
        specs.append({"name": name, "folder": str(folder / name), "argv": argv, "run_dir": str(run_dir)})
    (folder / "specs.json").write_text(json.dumps(specs))
    return InTurn(start(folder, str(folder / "specs.json"), python=IN_TURN), specs)


def _read(spec: Mapping[str, Any]) -> Ended:
    folder = Path(spec["folder"])
    result = json.loads((folder / "result.json").read_text())
    return Ended(
        status=result["status"],
        run_dir=Path(spec["run_dir"]),
        stdout=(folder / "stdout.txt").read_text(),
        stderr=(folder / "stderr.txt").read_text(),
        left_behind=result["children"],
        process_leaks={"descriptors": result["descriptors"], "threads": result["threads"]},
    )
