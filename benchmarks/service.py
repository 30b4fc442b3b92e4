"""The figures of the training service: `make bench-service`. Run nothing else meanwhile.

`submit` and `train` take turns; everything else is measured on one service with jobs that really train."""

import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT
from benchmarks.figures import Figure
from benchmarks.results import begin, write
from benchmarks.row import Row
from hogwild import host
from hogwild.service.folders import StateFolder
from hogwild.service.store import Store
from tests.helpers.processes import wait_for
from tests.helpers.service import Service, order, serving

QUIET = Figure("`GET /jobs`, 1,000 jobs, 20 streams: p99", 50.0, "ms", True)
BUSY = Figure("the same while all cores train", 200.0, "ms", True)
MEMORY = Figure("service with two jobs running: PSS", 100.0, "MB", True)
SHARE = Figure("service with two jobs running: share of a core", 2.0, "%", True)
STREAMED = Figure("processor time of the service with one stream open, over the jobs'", 1.0, "%", True)
SUBMIT = Figure("submit to first update, over `train`", 0.3, "s more", True)
BORROW = Figure(
    "first update of a job that borrows a core of a full machine, over the same on a free core", 1.3, "", True
)
LENDER = Figure("a lender's samples per core-second while lent, over before", 0.95, "", False)
MAKESPAN = Figure("two elastic jobs at once, over one after the other: makespan", 1.05, "", True)

JOBS, STREAMS, REQUESTS = 1000, 20, 500
WATCHED_S = 20.0
RUNS = 3
PAIRS = 5
LONG = ("train.epochs=1000000", "train.threads=1")
SHORT = ("train.procs=1", "train.epochs=1")
LENDING = ("train.procs=auto", "train.epochs=1000000", "evaluate.every_epochs=1000000")
WHOLE = ("train.epochs=1500", "evaluate.every_epochs=1500")  # about 15 s on two cores
LENT_S = 8.0
MOST_S = 300.0  # for a job of about 15 s


def main() -> None:
    described = begin()
    write("service", [*answers(), *costs(), first_update(), borrowing(), lending(), makespan()], described)


def answers() -> list[Row]:
    """Measure the time of a list of many jobs, with many readers of the stream."""
    with _service() as service:
        _fill(service.state)
        service.start()
        with _streams(service, STREAMS):
            quiet = [_p99_ms(service) for _ in range(RUNS)]
            running = service.submit(*LONG, "train.procs=auto")
            service.wait_for_state(running["id"], "running")
            busy = [_p99_ms(service) for _ in range(RUNS)]
    note = f"{REQUESTS} requests a run, one connection"
    return [QUIET.row(quiet, note=note), BUSY.row(busy, note=note)]


def costs() -> list[Row]:
    """Measure the service's memory and cores while two jobs run."""
    with _service() as service:
        service.start()
        for _ in range(2):
            service.wait_for_state(service.submit(*LONG, "train.procs=1")["id"], "running")
        alone = [_spent(service) for _ in range(RUNS)]
        with _streams(service, 1):
            streamed = [_spent(service) for _ in range(RUNS)]
        assert service.process is not None
        pss = [host.pss_bytes(service.process.pid) / 1e6 for _ in range(RUNS)]
    return [
        MEMORY.row(pss),
        SHARE.row([100 * own / WATCHED_S for own, _ in alone], note=f"over {WATCHED_S:g} s each"),
        STREAMED.row([100 * own / jobs for own, jobs in streamed], note=f"over {WATCHED_S:g} s each"),
    ]


def first_update() -> Row:
    """Measure the delay of a submitted job's first update behind one that `train` starts; in turns, on the same cores.

    A job of one worker has one core, on which supervisor and worker import torch one after the other; `train` takes all
    cores for that. What this costs is in the note."""
    with _service() as service:
        service.start()
        pairs, one_core = _pairs(service, "train.procs=auto"), _pairs(service, "train.procs=1")
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    note = (
        f"medians {ours:.2f} s and {theirs:.2f} s; a job with one of the cores over `train` with all of them: "
        f"{statistics.median(our - their for our, their in one_core):.2f} s more"
    )
    return SUBMIT.row([our - their for our, their in pairs], theirs, note)


def _pairs(service: Service, procs: str) -> list[tuple[float, float]]:
    """Seconds until the first update, by `submit` and by `train`."""

    def submitted() -> Path:
        answer = _command("submit", "--wait", "--json", *SHORT, procs, "--state-dir", str(service.state.path))
        return Path(json.loads(answer)["run_dir"])

    def trained() -> Path:
        run = Path(tempfile.mkdtemp(dir=service.folder)) / "run"
        _command("train", *SHORT, procs, "--run-dir", str(run))
        return run

    return [(_until_first(submitted), _until_first(trained)) for _ in range(PAIRS + 1)][1:]  # the first has cold files


def borrowing() -> Row:
    """Measure the delay of a job's first update on a core that another job has to give up."""
    with _service() as service:
        service.start()
        ours, theirs = [], []
        for _ in range(PAIRS):
            theirs.append(_until_first(lambda: _whole_run(service, *SHORT)))
            lender = service.submit(*LENDING)
            service.wait_for_state(lender["id"], "running")
            _trained_s(service, lender)
            ours.append(_until_first(lambda: _whole_run(service, *SHORT)))
            service.client.cancel(lender["id"], now=True)
            service.wait_for_state(lender["id"], "cancelled")
    pairs = zip(ours, theirs, strict=True)
    note = f"medians {statistics.median(ours):.2f} s and {statistics.median(theirs):.2f} s"
    return BORROW.row([our / their for our, their in pairs], note=note)


def lending() -> Row:
    """Measure the speed of a job on the cores that it keeps."""
    ratios = []
    with _service() as service:
        service.start()
        for _ in range(RUNS):
            lender = service.submit(*LENDING)
            service.wait_for_state(lender["id"], "running")
            _trained_s(service, lender)
            before = _samples_per_core_s(service, lender)
            borrower = service.submit(*LENDING, "train.procs=1")
            service.wait_for_state(borrower["id"], "running")
            _trained_s(service, borrower)
            ratios.append(_samples_per_core_s(service, lender) / before)
            for row in (borrower, lender):
                service.client.cancel(row["id"], now=True)
                service.wait_for_state(row["id"], "cancelled")
    return LENDER.row(ratios, note=f"over {LENT_S:g} s each; the borrower trains meanwhile")


def makespan() -> Row:
    """Measure the time of two jobs that share the cores, and two that have all of them in turn."""
    cores = len(host.physical_cores(host.affinity()))
    shared, in_turn = [], []
    with _service() as service:
        service.start()
        for _ in range(RUNS):
            in_turn.append(_both_s(service, f"train.procs={cores}"))
            shared.append(_both_s(service, "train.procs=auto"))
    note = f"medians {statistics.median(shared):.1f} s and {statistics.median(in_turn):.1f} s"
    return MAKESPAN.row([our / their for our, their in zip(shared, in_turn, strict=True)], note=note)


def _both_s(service: Service, procs: str) -> float:
    begin = time.monotonic()
    rows = [service.submit(*WHOLE, procs) for _ in range(2)]
    for row in rows:
        assert service.client.wait(row["id"], MOST_S)["state"] == "succeeded"
    return time.monotonic() - begin


def _whole_run(service: Service, *overrides: str) -> Path:
    return Path(service.wait_for_state(service.submit(*overrides)["id"], "succeeded")["run_dir"])


def _trained_s(service: Service, row: dict[str, Any]) -> None:
    """Wait until the job trains and has done so for some records."""
    first = wait_for("training", lambda: service.client.job(row["id"])["updates"])
    wait_for("more training", lambda: service.client.job(row["id"])["updates"] > 3 * first)


def _samples_per_core_s(service: Service, row: dict[str, Any]) -> float:
    status = Path(row["run_dir"]) / "status.json"
    begin = json.loads(status.read_text())
    time.sleep(LENT_S)
    end, cores = json.loads(status.read_text()), service.client.job(row["id"])["cores"]
    return float((end["samples"] - begin["samples"]) / (end["time"] - begin["time"]) / len(cores))


def _until_first(work: Callable[[], Any]) -> float:
    """Seconds from the start of a command until the run's first update, on the clock of the boot."""
    begin = time.clock_gettime(time.CLOCK_BOOTTIME)
    run = work()
    summary = json.loads((run / "summary.json").read_text())
    status = json.loads((run / "status.json").read_text())
    began_s = time.clock_gettime(time.CLOCK_BOOTTIME) - host.age_s(status["start_ticks"])
    return began_s + float(summary["startup_s"]) - begin


def _command(*arguments: str) -> str:
    command = [sys.executable, str(ROOT / "run.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout or "done"


@contextlib.contextmanager
def _service() -> Iterator[Service]:
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as service:
        yield service


def _fill(state: StateFolder) -> None:
    """Store jobs that have ended."""
    state.make()
    store = Store(state)
    store.load()
    for number in range(1, JOBS + 1):
        added = order(number)
        store.add(added, store.write_aside({"job.yaml": b"name: x\n"}, added))
        store.book(added.id, {"event": "ended", "state": "succeeded", "reason": "epochs", "at": 1.0})
    store.close()


def _spent(service: Service) -> tuple[float, float]:
    """Processor seconds of the service and of all its jobs in WATCHED_S."""
    assert service.process is not None
    pid = service.process.pid

    def now() -> tuple[float, float]:
        return host.cpu_s(pid) or 0.0, sum(host.cpu_s(one) or 0.0 for one in service.processes())

    before = now()
    time.sleep(WATCHED_S)
    after = now()
    return after[0] - before[0], after[1] - before[1]


def _p99_ms(service: Service) -> float:
    connection, headers = _connected(service)
    took = []
    for _ in range(REQUESTS):
        begin = time.perf_counter()
        connection.request("GET", "/api/v1/jobs", headers=headers)
        content = connection.getresponse().read()
        took.append(1000 * (time.perf_counter() - begin))
        assert content.startswith(b'{"version"')
    connection.close()
    return statistics.quantiles(took, n=100)[98]


@contextlib.contextmanager
def _streams(service: Service, count: int) -> Iterator[None]:
    """Keep streams open, each read by a thread."""
    opened = [_connected(service) for _ in range(count)]
    got = [0] * count

    def read(number: int) -> None:
        connection, headers = opened[number]
        connection.request("GET", "/api/v1/stream", headers=headers)
        answer = connection.getresponse()
        with contextlib.suppress(OSError, ValueError, AttributeError, http.client.HTTPException):  # closed below
            while answer.readline():
                got[number] += 1

    readers = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(count)]
    for reader in readers:
        reader.start()
    wait_for("the first event of each stream", lambda: all(got))
    yield
    for connection, _ in opened:
        if connection.sock is not None:
            connection.sock.shutdown(2)


def _connected(service: Service) -> tuple[http.client.HTTPConnection, dict[str, str]]:
    where = service.state.connection()
    connection = http.client.HTTPConnection("127.0.0.1", where["port"], timeout=60)
    return connection, {"Authorization": f"Bearer {where['token']}"}


if __name__ == "__main__":
    main()
