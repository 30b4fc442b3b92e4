"""Every exception of the project. `hogwild.train` raises them; the command line prints `str(error)` and exits with
`exit_status`; `code` is stable and is what documentation and other programs may refer to.

    HogwildError                         1
     |- UsageError                       2   the call or the command line is wrong
     |   |- ConfigError                  2   the job file is wrong: all problems at once, each with its place
     |   '- ClassPathError               2   a class path cannot be imported
     |- NotFoundError                    3   a job file, a run or a data file is not there
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
         |- CrashLoop                    1   workers die, one after the other, and nothing gets done
         |- Deadlocked                   1   nobody committed a batch for too long
         |- Diverged                     1   parameters became NaN or infinite
         '- TooManyQuarantined           1   more than 1 % of the batches could not be trained on
"""

from collections.abc import Sequence
from dataclasses import dataclass


class HogwildError(Exception):
    """Base of all our errors. The message is complete: what, where, value, rule, what to do."""

    exit_status = 1
    code = "hogwild/error"


class UsageError(HogwildError):
    exit_status = 2
    code = "usage/error"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a job file. `line` and `column` count from 1; 0 where the value came from the command line
    (`source` then says so)."""

    source: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        return f"{place}: {self.path}: {self.message}" if self.path else f"{place}: {self.message}"


class ConfigError(UsageError):
    """The job file or the overrides break the schema. `problems` holds every one found in one pass."""

    code = "config/invalid"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        lines = [str(problem) for problem in self.problems]
        lines.append(f"{count} error{'s' if count != 1 else ''}; nothing was started.")
        super().__init__("\n".join(lines))


class ClassPathError(UsageError):
    code = "config/class-path"


class NotFoundError(HogwildError):
    exit_status = 3
    code = "run/not-found"


class BuildError(HogwildError):
    code = "build/error"


class DataError(BuildError):
    code = "build/data"


class ModelError(BuildError):
    code = "build/model"


class OptimizerError(BuildError):
    code = "build/optimizer"


class RunError(HogwildError):
    code = "run/error"


class RunDirError(RunError):
    code = "run/directory"


class MemoryShortError(RunError):
    code = "run/memory-short"


class CheckpointError(RunError):
    code = "run/checkpoint"


class TrainingError(HogwildError):
    code = "train/error"


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


class TooManyQuarantined(TrainingError):
    code = "train/quarantined"
