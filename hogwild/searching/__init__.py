"""Search for the values of a job's fields by many trials: Optuna decides, each trial is a job of hogwild, and one
process drives both.

    study.py    Optuna's study: what the job file's `search` means to it, its storage, what it is told
    trials.py   the process of a trial: its start as a fork of the fork server, its evaluations, its end
    loop.py     the one loop: start trials, report evaluations, prune, tell; pause and resume
    packing.py  trials at a time: many of one worker, or one of many; measured
    results.py  what a person gets: the table of trials, best.yaml, CSV
    attempt.py  one attempt from the folder to its end, for the command and for Python
    call.py     `hogwild.search` in Python, and its result
"""

from importlib.util import find_spec

from hogwild.errors import UsageError


def require_optuna() -> None:
    """Raise UsageError if Optuna is not installed."""
    if find_spec("optuna") is None:
        raise UsageError("a search needs optuna: pip install 'hogwild[search]'", code="usage/missing-extra")
