"""An attempt of a search, from its folder to its end: `hogwild search` and `hogwild.search` both run it. Main thread
only."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna

from hogwild import host
from hogwild.config.load import Job, load_job
from hogwild.config.of_run import data_folder
from hogwild.errors import RunDirError, RunError, UsageError
from hogwild.job.foreseen_kernels import foreseen
from hogwild.searching.display import TrialLines, display_for
from hogwild.searching.loop import SearchLoop, SearchOutcome, refit
from hogwild.searching.results import (
    BEST,
    MAY_CHANGE,
    RECORD,
    SearchRun,
    best_text,
    find_search,
    refit_values,
    whole_data,
)
from hogwild.searching.study import best_trial, check_classes, is_maximised, metric_of, metrics_of, open_study
from hogwild.searching.trials import JOB_FILE, REFIT, TrialStarter, arguments_of
from hogwild.storage.files import Records, explained
from hogwild.storage.run_directory import RunDir
from hogwild.storage.run_files import Requests
from hogwild.user_code import given_data_folders

WAIT_S = 60.0  # for the trials of a killed search, which write their checkpoints
LOOK_S = 0.1
STATUS_S = 1.0  # between two records of a running search


@dataclasses.dataclass(frozen=True, slots=True)
class SearchAttempt:
    """A search whose folder is locked. `say` prints a message."""

    rundir: RunDir
    found: SearchRun
    say: Callable[[str], object]
    is_new: bool

    @classmethod
    def create(
        cls,
        job: Job,
        text: str,
        job_file: Path,
        overrides: Sequence[str],
        say: Callable[[str], object],
        *,
        run_dir: Path | None,
        data_dir: Path | None,
        storage: str | None,
    ) -> "SearchAttempt":
        """Make the folder of a new search. Raises UsageError for a job without a search."""
        if job.search is None:
            raise UsageError(
                f"{job_file}: has no `search`, the fields to try and their values; see `hogwild init search` and "
                "docs/searching.md",
                code="search/no-space",
            )
        check_classes(job, job_file)
        folder = data_folder(data_dir, None)
        record = {
            "format": 1,
            "job_file": str(job_file),
            "overrides": [*overrides],
            "folder": os.getcwd(),
            "data_dir": None if folder is None else str(folder),
            "data_folders": [str(one) for one in given_data_folders()],
            "storage": storage,
        }
        rundir = RunDir.create(run_dir, job.name)
        rundir.write_text(JOB_FILE, text, sync=True)
        found = SearchRun(rundir.path, record | {"study": rundir.path.name}, job, text)
        return cls(rundir, found, say, is_new=True)

    @classmethod
    def reopen(
        cls, folder: Path, changes: Sequence[str], say: Callable[[str], object], *, data_dir: Path | None
    ) -> "SearchAttempt":
        """Lock the folder of a search, when all trials of its former process have ended, and read it. `data_dir`: from
        now on. Raises UsageError for a change of what the study is of."""
        wrong = [change for change in changes if change.partition("=")[0] not in MAY_CHANGE]
        if wrong:
            raise UsageError(
                f"{wrong[0]}: a search that goes on may change {', '.join(sorted(MAY_CHANGE))}; anything else is "
                "another search",
                code="usage/resume-changes",
            )
        path = find_search(str(folder))
        found = SearchRun.of(path)
        data = {} if data_dir is None else {"data_dir": str(data_folder(data_dir, None))}
        until, is_told = time.monotonic() + WAIT_S, False
        with host.raising_on_signals():
            while True:
                try:
                    rundir = RunDir.open(path, RECORD)
                    break
                except RunDirError as error:
                    if error.code != "run/in-use" or found.is_alive or time.monotonic() > until:
                        raise
                if not is_told:
                    say("the trials of the former search still write their checkpoints; waiting for their end")
                    is_told = True
                time.sleep(LOOK_S)
        overrides = [*found.overrides, *changes]
        record = {**found.record, "overrides": overrides, **data}
        job = load_job(found.job_file, overrides, source_text=found.text)
        check_classes(job, found.job_file)
        found = dataclasses.replace(found, folder=rundir.path, record=record, job=job)
        return cls(rundir, found, say, is_new=False)

    def run(self, *, is_refit: bool, shows: bool) -> tuple[SearchRun, optuna.Study, SearchOutcome]:
        """Search until the end or a pause, and unlock the folder; with `is_refit`, then train the best job on all data.
        Raises RunError for an error that every trial has."""
        with self.rundir:
            return self._run(is_refit=is_refit, shows=shows)

    def _run(self, *, is_refit: bool, shows: bool) -> tuple[SearchRun, optuna.Study, SearchOutcome]:
        rundir, found, records = self.rundir, self.found, Records(self.rundir.supervisor_log)

        def log(message: str) -> None:
            records.try_append_text(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}")

        def say(message: str) -> None:
            self.say(message)
            log(message)

        job, search = found.job, found.job.search
        assert search is not None
        if is_refit:
            whole_data(job)
        host.raise_noted()
        found = dataclasses.replace(found, record={**found.record, **_process(), "state": "running", "reason": None})
        study = open_study(found.folder, job, found.identity, found.record["storage"], is_new=self.is_new)
        status = _Status(rundir, found, study)
        rundir.write_json(RECORD, status.record("running"), sync=True)
        with explained(f"cannot make {rundir.logs}"):
            rundir.logs.mkdir(exist_ok=True)
        starter = self._starter()
        assert starter.server is not None
        loop = SearchLoop(
            job=job,
            search=search,
            study=study,
            starter=starter,
            obey=CoreRequests(rundir, log).obey,
            say=say,
            after_best=lambda: rundir.write_text(BEST, best_text(found, study)),
            note=status.note,
        )
        loop.count_cores()
        say(
            f"search in {found.folder}: trials {'without end' if search.trials is None else f'up to {search.trials}'}, "
            f"{loop.packing.words if loop.packing else f'{loop.parallel} at a time'}; Ctrl-C pauses it"
        )
        loop.display = display_for(found, say, log) if shows else TrialLines(found, log)
        outcome: SearchOutcome | None = None
        try:
            try:
                outcome = loop.run()
            finally:
                loop.display.close()
            if is_refit and outcome.state == "succeeded":
                say(f"training on all data in {found.folder / REFIT}")
                end = refit(starter, refit_values(found, study))
                if end.kind != "done" and end.kind != "stopped":
                    words = f"{found.folder / REFIT}: {end.error or end.reason}"
                    raise RunError(words, code=end.code or "run/unexpected")
                outcome = outcome if end.kind == "done" else SearchOutcome("stopped", end.reason)
        finally:
            starter.server.close()
            is_broken_off = isinstance(sys.exception(), host.Interrupted)
            state = outcome.state if outcome else "stopped" if is_broken_off else "failed"
            reason = None if outcome is None else outcome.reason
            error = None if is_broken_off else sys.exception()
            log(": ".join(str(word) for word in (state, reason or error) if word))
            records.close()
            last = {**status.record(state, loop.progress), "reason": reason}
            last |= {} if outcome else {"pid": None}  # an error is told by the process, not by its record
            found = dataclasses.replace(found, record=last)
            rundir.try_write_json(RECORD, found.record)
            if (found.folder / BEST).is_file():
                rundir.write_text(BEST, best_text(found, study))
        return found, study, outcome

    def _starter(self) -> TrialStarter:
        from hogwild.workers.processes.job_server import JobServer

        found, data_dir = self.found, self.found.record["data_dir"]
        return TrialStarter(
            folder=found.folder.absolute(),
            job_file=found.job_file,
            overrides=found.overrides,
            data_dir=None if data_dir is None else Path(data_dir),
            lock=self.rundir.lock,
            data_folders=[Path(one) for one in found.record.get("data_folders", ())],
            server=JobServer(self._kernels()),
        )

    def _kernels(self) -> str:
        """Return the kernels of trials as JSON, those of each choice in the space, one at a time; "" for none."""
        found, search = self.found, self.found.job.search
        assert search is not None
        jobs = [found.job] + [
            load_job(found.job_file, [*found.overrides, *arguments_of({key: value})], source_text=found.text)
            for key, values in search.space.items()
            if key.partition(".")[0] in ("model", "loss", "optimizer")
            for value in values.choice or ()
        ]
        kernels = dict.fromkeys(json.dumps(one.plain()) for job in jobs for one in foreseen(job))
        return f"[{', '.join(kernels)}]" if kernels else ""


class CoreRequests:
    """Requests to a search, which are answered as those to a job are; it knows one, other cores. All its processes have
    moved when it answers, in the turn in which it reads the request: how trials share the cores is for later."""

    def __init__(self, rundir: RunDir, log: Callable[[str], object]) -> None:
        self._rundir, self._log, self._requests = rundir, log, Requests(rundir.requests)

    def obey(self) -> bool:
        """Answer new requests; return whether the search has moved."""
        has_moved = False
        for name, request in self._requests.look(time.monotonic()):
            asked: dict[str, Any] = {field: request[field] for field in ("procs", "cores") if field in request}
            if request.get("ask") != "resize" or "cores" not in asked:
                answer = "a search knows one request: resize, with cores"
            elif host.binding_variables(os.environ):  # a trial that is starting would take its former cores again
                answer = "OpenMP binds threads to cores when it is loaded"
            else:
                answer = host.why_not_moved(asked["cores"]) or "done"
            has_moved |= answer == "done"
            event = {"time": time.time(), "event": "request", "id": name, "ask": request.get("ask")}
            self._rundir.events.try_append({**event, **asked, "answer": answer})
            self._log(f"resize to cores {asked.get('cores')}: {answer}")
        return has_moved


@dataclasses.dataclass(slots=True)
class _Status:
    """The state of a running search in its record, for the service: the fields of a run's status.json."""

    rundir: RunDir
    found: SearchRun
    study: optuna.Study
    _written_s: float = float("-inf")

    def note(self, loop: SearchLoop) -> None:
        """Write it, if the last time is a while ago."""
        if time.monotonic() - self._written_s >= STATUS_S:
            self._written_s = time.monotonic()
            self.rundir.try_write_json(
                RECORD, self.record("stopping" if loop.is_stopping else "running", loop.progress)
            )

    def record(self, state: str, progress: float | None = None) -> dict[str, Any]:
        """Return the record in this state."""
        job, best = self.found.job, best_trial(self.study)
        values = {} if best is None else dict(zip(metrics_of(job), best.values, strict=True))
        top = {"metric": metric_of(job), "updates": 0, "higher_is_better": is_maximised(job)}
        return {
            **self.found.record,
            "state": state,
            "time": time.time(),
            "progress": progress,
            "epochs": 0,
            "trials": len(self.study.get_trials(deepcopy=False)),
            "metrics": values,
            "best": None if best is None else {**top, "value": best.values[0], "trial": best.number},
        }


def _process() -> dict[str, Any]:
    """Return what names this process, for `is_running`, and when it began to search."""
    return {
        "began": time.time(),
        "pid": os.getpid(),
        "start_ticks": host.start_ticks(os.getpid()),
        "boot_id": host.boot_id(),
    }
