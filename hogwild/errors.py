"""All exceptions of the project. `hogwild.train` raises them; the command line prints `str(error)` and its code, and
exits with `exit_status`.

    HogwildError                         1
     |- UsageError                       2   the call or the command line is wrong
     |   |- ConfigError                  2   the job file is wrong: all problems at once, each with its place
     |   '- ClassPathError               2   a class path cannot be imported
     |- NotFoundError                    3   a job file, a run or a data file does not exist
     |- RunEndedError                    4   the run does not run any more
     |- BuildError                       1   the model, data, loss or optimizer cannot be trained as given
     |   |- DataError                    1   empty, NaN, labels out of range, truncated
     |   |- ModelError                   1   cannot be shared or pickled, lazy, on a GPU
     |   '- OptimizerError               1   needs a closure, has parameters of another model
     |- RunError                         1   the machine or the run directory
     |   |- RunDirError                  1   not writable, in use by another job
     |   |- MemoryShortError             1   the shared memory needed is more than there is
     |   '- CheckpointError              1   damaged, or of another model
     '- TrainingError                    1   while training
         |- UserCodeError                1   an exception in the model, loss, data or optimizer, with its traceback
         |- WorkersLost                  1   workers died, stalled or could not start more often than allowed
         |- CrashLoop                    1   workers keep crashing without progress
         |- Deadlocked                   1   no worker committed a batch for too long
         |- Diverged                     1   parameters became NaN or infinite
         |- DeviceMemoryError            1   a GPU has too little free memory
         |- DeviceSharingError           1   its memory cannot be shared by processes, or its owner process died
         '- TooManyQuarantined           1   more than 1 % of the batches could not be trained on

A class gives the kind of error and the exit status; a *code* (`data/not-finite`) the exact cause. Codes are stable:
documentation and other programs refer to them. `CODES` lists them, docs/errors.md explains each: cause, how to see, how
to fix. A class with a single cause has the code; otherwise the code is given where the error is raised.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from hogwild.error_codes import CODES as CODES


class HogwildError(Exception):
    """Base of all our errors. The message is complete: what, where, value, rule, what to do. `code` is one of `CODES`;
    optional if the class has one."""

    exit_status = 1
    code: str = ""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        assert self.code in CODES, f"{type(self).__name__} with {self.code!r}: not a code of hogwild.errors.CODES"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle with the code, which `Exception` would set too late."""
        return partial(type(self), code=self.code), self.args, vars(self)

    def record(self) -> dict[str, Any]:
        """Return the error for other programs (`--json`)."""
        return {"error": str(self), "error_code": self.code, "exit_status": self.exit_status}


class UsageError(HogwildError):
    exit_status = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One error of a job file. `line` and `column` count from 1; they are 0 if the value is from the command line (see
    `source`). `code` is one of `CODES`. `excerpt`: the line with a mark below the column, for broken YAML."""

    source: str
    line: int
    column: int
    path: str
    message: str
    code: str
    excerpt: str = ""

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        where = f"{place}: {self.path}" if self.path else place
        return f"{where}: {self.message} [{self.code}]" + (f"\n{self.excerpt}" if self.excerpt else "")


class ConfigError(UsageError):
    """Errors of the job file or the overrides. `problems` has all of them; if they have one code, so has this error."""

    code = "config/invalid"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        codes = {problem.code for problem in self.problems}
        count = len(self.problems)
        lines = [str(problem) for problem in self.problems]
        lines.append(f"{count} error{'s' if count != 1 else ''}; nothing was started.")
        super().__init__("\n".join(lines), code=codes.pop() if len(codes) == 1 else None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the problems."""
        return type(self), (self.problems,)

    def record(self) -> dict[str, Any]:
        return {**super().record(), "problems": [asdict(problem) for problem in self.problems]}


class ClassPathError(UsageError):
    pass


class NotFoundError(HogwildError):
    exit_status = 3


class RunEndedError(HogwildError):
    exit_status = 4


class BuildError(HogwildError):
    pass


class DataError(BuildError):
    pass


class ModelError(BuildError):
    pass


class OptimizerError(BuildError):
    pass


class RunError(HogwildError):
    pass


class RunDirError(RunError):
    pass


class MemoryShortError(RunError):
    pass


class CheckpointError(RunError):
    pass


class TrainingError(HogwildError):
    pass


class UserCodeError(TrainingError):
    code = "train/user-code"


class WorkersLost(TrainingError):
    code = "train/workers-lost"


class CrashLoop(TrainingError):
    code = "train/crash-loop"


class Deadlocked(TrainingError):
    code = "train/deadlocked"


class Diverged(TrainingError):
    code = "train/diverged"


class DeviceMemoryError(TrainingError):
    code = "device/memory"


class DeviceSharingError(TrainingError):
    code = "device/sharing"


class TooManyQuarantined(TrainingError):
    code = "train/quarantined"


NOT_FINITE = "train/not-finite"  # raised in trainers as a separate exception, and reported in two ways


def code_of(error: BaseException) -> str:
    """Return the code of any exception that ended a command."""
    return error.code if isinstance(error, HogwildError) else "run/unexpected"


def hint(code: str) -> str:
    """Return the line under an error's message."""
    return f"code {code}: hogwild explain {code}"


def nearest(name: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return the names most similar to `name`, the best first."""
    from difflib import get_close_matches

    known = list(known)
    same = [one for one in known if one.lower() == name.lower()]
    return same[:most] or get_close_matches(name, known, n=most, cutoff=cutoff)


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return `; did you mean 'x'?`, or "" if no known name is similar."""
    close = nearest(str(name), map(str, known), most=1, cutoff=0.65)
    return f"; did you mean '{close[0]}'?" if close else ""
