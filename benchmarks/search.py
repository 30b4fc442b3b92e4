"""Searches (`hogwild search`) beside loops of Optuna's own: `make bench-search`. Run nothing else meanwhile.

python -m benchmarks.search                     everything (three quarters of an hour on two cores)
python -m benchmarks.search --only overhead     some; the other rows stay as they were

ratings    60 trials of matrix factorisation, Hyperband: the whole command beside three programs
likes      the best ranking after a minute, over the shipped config's and two programs tuned for as long
overhead   what a trial costs beside its training
memory     two trials at once on 25 million ratings, over one
kills      of trials and of the search, at any moment; resumed until it has ended"""

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import psutil
import yaml

from benchmarks import sparse_data, sparse_peers
from benchmarks.baselines import likes_search
from benchmarks.baselines.ratings_search import FACTORS, RANGES
from benchmarks.bench import in_turn, median, say
from benchmarks.commands import ROOT, STOPPED, CommandFailed, job
from benchmarks.figures import Figure
from benchmarks.row import Row
from benchmarks.sections import main
from benchmarks.sparse_ours import curve_of
from benchmarks.synthetic_ratings import HUNDRED_THOUSAND, Shape

SUITE = "search"
OVER = {
    how: Figure(
        f"60 trials on 100,000 ratings, Hyperband: whole time over an Optuna loop around {words}", most, "x", True
    )
    for how, words, most in (
        ("torch", "one process of PyTorch", 0.1), ("train", "hogwild.train", 0.5), ("libmf", "libmf", 1.0),
    )
}  # fmt: skip
BEST = Figure("the same: best RMSE, ours less the best of the three", 0.0, "", True)
LIKES = {
    how: Figure(f"best NDCG@10 on Jester's likes, a search of a minute over {words}", 1.0)
    for how, words in (
        ("shipped", "the shipped config as it is"),
        ("light_fm", "LightFM's WARP, searched for as long"),
        ("implicit_bpr", "implicit's BPR, searched for as long"),
    )
}
EACH = Figure("a trial of half a second: start, end and books", 0.35, "s", True)
SHARED = Figure("25 million ratings, two trials at once: memory over one", 1.15, "x", True)
KILLS = Figure("seeded kills of trials and of the search: kills", 300, "")
WRONG = {
    what: Figure(f"seeded kills of trials and of the search: {what}", 0, "", True)
    for what in ("trials lost", "trials counted twice", "epochs trained twice")
}


@dataclass(frozen=True, slots=True)
class Effort:
    """The amount to measure. `shape` of the ratings whose memory counts."""

    runs: int = 3
    trials: int = 60
    epochs: int = 20
    seconds: float = 60.0
    few: int = 4
    many: int = 16
    kills: int = 300
    shape: Shape | None = None  # of MovieLens-25M


FULL = Effort()
QUICK = Effort(1, 3, 2, 20.0, 1, 2, 3, HUNDRED_THOUSAND)


# ---- searches ------------------------------------------------------------------------------------------------------


def _job(parts: sparse_data.Parts, epochs: int, **search: Any) -> dict[str, Any]:
    """A search for a factorisation of ratings as a user writes it."""
    rates, penalties = RANGES["train"]
    space = {
        "optimizer.init_args.lr": {"log": [*rates]},
        "model.init_args.l2": {"log": [*penalties]},
        "model.init_args.factors": {"choice": FACTORS},
    }
    return {
        "version": 1,
        "name": "ratings",
        "model": {"class_path": "hogwild.models.MatrixFactorization", "init_args": {"factors": 16}},
        "loss": {"class_path": "torch.nn.MSELoss"},
        "data": {**_read(parts), "batch_size": 1024},
        "optimizer": {"class_path": "hogwild.optimizers.RowWiseAdagrad", "init_args": {"lr": 0.1}},
        "train": {"epochs": epochs},
        "evaluate": {"metrics": ["rmse"], "monitor": "rmse"},
        "search": {"space": space, **search},
    }


def _read(parts: sparse_data.Parts) -> dict[str, Any]:
    files = {"train": parts.train.with_suffix(".csv"), "val": parts.test.with_suffix(".csv")}
    read = "hogwild.data.Ratings"
    return {name: {"class_path": read, "init_args": {"path": str(file)}} for name, file in files.items()}


def _written(folder: Path, content: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return file


def _begun(*arguments: str) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, str(ROOT / "run.py"), "search", *arguments]
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _searched(*arguments: str) -> float:
    """Return the seconds of a search. Raises CommandFailed."""
    began = time.monotonic()
    process = _begun(*arguments)
    _, said = process.communicate()
    if process.returncode not in (0, STOPPED):  # stopped: its time is up
        raise CommandFailed(f"search: exit status {process.returncode}\n{said.decode()[-2000:]}")
    return time.monotonic() - began


def _shown(folder: Path) -> dict[str, Any]:
    argv = [sys.executable, str(ROOT / "run.py"), "search", "show", str(folder), "--json"]
    answer: dict[str, Any] = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
    return answer


def ratings(effort: Effort) -> list[Row]:
    """About 12 minutes, most of them PyTorch's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = sparse_data.synthetic(folder, HUNDRED_THOUSAND)
        found: dict[str, list[float]] = {how: [] for how in ("ours", *OVER)}

        def we() -> float:
            run = folder / f"search-{len(found['ours'])}"
            file = _written(folder / f"job-{run.name}", _job(parts, effort.epochs, trials=effort.trials))
            took = _searched(str(file), "--run-dir", str(run), f"seed={len(found['ours']) + 1}")
            found["ours"].append(float(_shown(run)["best"]["value"]))
            say(f"ours: {took:.1f} s, RMSE {found['ours'][-1]:.5f}")
            return took

        def they(how: str) -> float:
            peer = sparse_peers.run(
                "ratings_search", threads=2, how=how, train=str(parts.train), test=str(parts.test),
                trials=effort.trials, epochs=effort.epochs, seed=len(found[how]) + 1,
            )  # fmt: skip
            found[how].append(peer.quality)
            say(f"{peer.note}: {peer.curve[-1][0]:.1f} s, RMSE {peer.quality:.5f}")
            return peer.curve[-1][0]

        mine, *theirs = in_turn(effort.runs, we, *(partial(they, how) for how in OVER))
    rows = []
    for (how, figure), seconds in zip(OVER.items(), theirs, strict=True):
        note = (
            f"ours {median(mine):.1f} s, RMSE {median(found['ours']):.4f}; theirs {median(found[how]):.4f}; baseline: s"
        )
        rows.append(figure.row([a / b for a, b in zip(mine, seconds, strict=True)], median(seconds), note))
    best = [min(found[how][run] for how in OVER) for run in range(effort.runs)]
    lost = [ours - theirs for ours, theirs in zip(found["ours"], best, strict=True)]
    return [*rows, BEST.row(lost, median(best), "baseline: the best of the three, run by run")]


def likes(effort: Effort) -> list[Row]:
    """About 10 minutes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = sparse_data.liked(folder)
        shipped = yaml.safe_load((ROOT / "configs" / "implicit.yaml").read_text())
        shipped["data"] |= _read(parts)
        rates, penalties = likes_search.RANGES["ours"]
        space = {
            "optimizer.init_args.lr": {"log": [*rates]},
            "model.init_args.l2": {"log": [*penalties]},
            "model.init_args.factors": {"choice": FACTORS},
        }
        tuned = shipped | {
            "train": {"epochs": effort.epochs},
            "evaluate": {"metrics": ["ndcg@10"], "every_epochs": 1},
            "search": {"space": space, "metric": "ndcg@10", "max_time_s": effort.seconds},
        }

        seeds = {how: itertools.count(1) for how in ("ours", *LIKES)}

        def we() -> float:
            seed = next(seeds["ours"])
            run = folder / f"search-{seed}"
            _searched(str(_written(folder / f"job-{run.name}", tuned)), "--run-dir", str(run), f"seed={seed}")
            shown = _shown(run)
            say(f"ours: NDCG@10 {shown['best']['value']:.4f}, {len(shown['trials'])} trials")
            return float(shown["best"]["value"])

        def as_shipped() -> float:
            seed = next(seeds["shipped"])
            run = folder / f"shipped-{seed}"
            file = _written(folder / f"job-{run.name}", shipped)
            _, summary = job("train", str(file), f"seed={seed}", run_dir=run)
            return max(value for _, value in curve_of(run, summary, "ndcg@10"))

        def they(how: str) -> float:
            peer = sparse_peers.run(
                "likes_search", threads=2, how=how, train=str(parts.train), test=str(parts.test),
                seconds=effort.seconds, epochs=effort.epochs, seed=next(seeds[how]),
            )  # fmt: skip
            say(f"{peer.note}: NDCG@10 {peer.quality:.4f}")
            return peer.quality

        ways = {"shipped": as_shipped, **{how: partial(they, how) for how in likes_search.PEERS}}
        ours, *others = in_turn(effort.runs, we, *(ways[how] for how in LIKES))
    return [
        figure.row(
            [a / b for a, b in zip(ours, theirs, strict=True)], median(theirs),
            f"ours {median(ours):.4f}; TPE and Hyperband in each; baseline: its NDCG@10",
        )
        for figure, theirs in zip(LIKES.values(), others, strict=True)
    ]  # fmt: skip


def overhead(effort: Effort) -> list[Row]:
    """Two minutes. What more trials take, less what they train, one after the other."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = sparse_data.synthetic(folder, HUNDRED_THOUSAND)

        def searched(count: int, number: int) -> tuple[float, float]:
            """The seconds of a search of so many trials, and those in which they trained."""
            run = folder / f"search-{number}-{count}"
            search = {"trials": count, "parallel": 1, "pruner": "none", "sampler": "random"}
            file = _written(folder / f"job-{run.name}", _job(parts, 60, **search))
            took = _searched(str(file), "--run-dir", str(run))
            summaries = [json.loads(file.read_text()) for file in (run / "trials").glob("*/summary.json")]
            return took, sum(summary["train_s"] for summary in summaries)

        searched(effort.few, 0)  # it compiles the kernels
        for number in range(1, effort.runs + 1):
            few, many = searched(effort.few, number), searched(effort.many, number)
            more, trained = effort.many - effort.few, many[1] - few[1]
            found.append((many[0] - few[0] - trained) / more)
            say(f"a trial of {trained / more:.2f} s took {found[-1]:.3f} s more")
    return [EACH.row(found, note="search of 16 trials, one at a time, over one of 4; of 60 epochs on 100,000 ratings")]


def memory(effort: Effort) -> list[Row]:
    """Four minutes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = sparse_data.synthetic(folder, effort.shape or Shape())
        most = []
        for parallel in (1, 2):
            run = folder / f"search-{parallel}"
            file = _written(folder / f"job-{parallel}", _job(parts, 3, trials=3, parallel=parallel, pruner="none"))
            process = _begun(str(file), "--run-dir", str(run))
            peak = 0
            while process.poll() is None:
                peak = max(peak, _pss(process.pid))
                time.sleep(0.2)
            if process.returncode:
                raise CommandFailed(f"search: exit status {process.returncode}")
            most.append(peak)
            say(f"{parallel} at once: {peak / 2**20:,.0f} MB")
    return [
        SHARED.row([most[1] / most[0]], most[0] / 2**20, "proportional set size of all processes; baseline: one, MB")
    ]


def _pss(pid: int) -> int:
    """The memory of a process and all below; what they share is counted once."""
    total = 0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        try:
            total += int(process.memory_full_info().pss)
        except psutil.Error:
            continue  # it has ended meanwhile
    return total


# ---- kills ---------------------------------------------------------------------------------------------------------

TRIALS_OF_A_SEARCH = 6


def kills(effort: Effort) -> list[Row]:
    """About 15 minutes."""
    found, searches, dice = Counter[str](), 0, Random(1)
    with tempfile.TemporaryDirectory() as name:
        parts = sparse_data.synthetic(Path(name), HUNDRED_THOUSAND)
        while found["kills"] < effort.kills:
            searches += 1
            folder = Path(name) / f"search-{searches}"
            search = {"trials": TRIALS_OF_A_SEARCH, "sampler": "random", "pruner": "none"}
            file = _written(Path(name) / f"job-{searches}", _job(parts, 40, **search))
            _killed(file, folder, dice, found)
            found.update(_faults(folder))
            say(f"search {searches}: {dict(found)}")
    note = f"in {searches} searches of {TRIALS_OF_A_SEARCH} trials, seed 1"
    return [KILLS.row([found["kills"]], note=note), *(figure.row([found[what]]) for what, figure in WRONG.items())]


def _killed(job: Path, folder: Path, dice: Random, found: Counter[str]) -> None:
    """Run a search to its end, resumed each time. A trial may be killed twice in a row: three kills without an
    evaluation in between are its end."""
    arguments = [str(job), "--run-dir", str(folder)]
    left = 6
    while True:
        process = _begun(*arguments)
        if left:
            left -= 1
            until = time.monotonic() + dice.uniform(0.3, 4.0)
            while process.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
            trials = [] if process.poll() is not None else _trials(process.pid)
            if process.poll() is None:
                victim = dice.choice([process.pid, *trials, *trials])
                os.kill(victim, signal.SIGKILL)
                found["kills"] += 1
        _, said = process.communicate()
        if process.returncode == 0:
            return
        if process.returncode not in (-signal.SIGKILL, STOPPED):
            raise CommandFailed(f"search: exit status {process.returncode}\n{said.decode()[-2000:]}")
        _wait_for_trials(folder)
        begun = (folder / "job.yaml").exists()
        arguments = ["--resume", str(folder)] if begun else [str(job), "--run-dir", str(folder)]


def _trials(pid: int) -> list[int]:
    """The processes of the trials that run."""
    try:
        return [one.pid for one in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def _wait_for_trials(folder: Path) -> None:
    """Trials whose search is gone write a checkpoint and end by themselves."""
    until = time.monotonic() + 60
    files = [*(folder / "trials").glob("*/status.json")]
    pids = [int(json.loads(file.read_text())["pid"]) for file in files]
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.02)


def _faults(folder: Path) -> Counter[str]:
    """Return what the study and the runs of an ended search do not agree about."""
    trials = _shown(folder)["trials"]
    numbers = Counter(one["trial"] for one in trials)
    folders = {int(file.name) for file in (folder / "trials").iterdir() if file.name.isdigit()}
    faults = Counter[str]()
    faults["trials lost"] = len({*range(TRIALS_OF_A_SEARCH)} - numbers.keys()) + len(folders - numbers.keys())
    faults["trials counted twice"] = sum(numbers.values()) - TRIALS_OF_A_SEARCH + faults["trials lost"]
    for one in trials:
        lines = (folder / "trials" / f"{one['trial']:04}" / "metrics.jsonl").read_text().splitlines()
        epochs = [record["epoch"] for record in map(json.loads, lines) if record["kind"] == "evaluation"]
        faults["epochs trained twice"] += len(epochs) - len({*epochs})
    return faults


SECTIONS: dict[str, tuple[Callable[[Effort], list[Row]], tuple[Figure, ...]]] = {
    "ratings": (ratings, (*OVER.values(), BEST)),
    "likes": (likes, tuple(LIKES.values())),
    "overhead": (overhead, (EACH,)),
    "memory": (memory, (SHARED,)),
    "kills": (kills, (KILLS, *WRONG.values())),
}


if __name__ == "__main__":
    main(SUITE, SECTIONS, (FULL, QUICK), None)
