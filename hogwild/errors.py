"""All exceptions of the project. `hogwild.train` raises them; the command line prints `str(error)` and its code, and
exits with `exit_status`: 1, or what its class says.

A class gives the kind of error and the exit status; a *code* (`data/not-finite`) the exact cause. Codes are stable:
documentation and other programs refer to them. docs/errors.md has a chapter for each; `tests/cli/test_errors.py`
compares it with the source. A class with a single cause has the code; otherwise the code is given where the error is
raised.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any


class HogwildError(Exception):
    """Base of all our errors. The message is complete: what, where, value, rule, what to do. `code` has a chapter in
    docs/errors.md; optional if the class has one."""

    exit_status = 1
    code: str = ""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        assert self.code, f"{type(self).__name__}: an error needs a code"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle with the code, which `Exception` would set too late."""
        return partial(type(self), code=self.code), self.args, vars(self)

    def record(self) -> dict[str, Any]:
        """Return the error for other programs (`--json`)."""
        return {"error": str(self), "error_code": self.code, "exit_status": self.exit_status}


class UsageError(HogwildError):
    """The call or the command line is wrong."""

    exit_status = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One error of a job file. `line` and `column` count from 1; they are 0 if the value is from the command line (see
    `source`). `excerpt`: the line with a mark below the column, for broken YAML."""

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
    """A class path cannot be imported."""


class NotFoundError(HogwildError):
    """A job file, a run or a data file does not exist."""

    exit_status = 3


class RunEndedError(HogwildError):
    """The run does not run any more."""

    exit_status = 4


class ServiceError(HogwildError):
    """The training service does not run, or cannot be reached or started."""

    exit_status = 4


class ConflictError(HogwildError):
    """The service refuses: the state of a job or of the service does not allow this request."""


class StorageFullError(HogwildError):
    """The disk of the service is full, or cannot be written."""

    code = "service/full"


class BuildError(HogwildError):
    """The model, data, loss or optimizer cannot be trained as given."""


class DataError(BuildError):
    """Empty, NaN, labels out of range, truncated."""


class ModelError(BuildError):
    """Cannot be shared or pickled, lazy, on a GPU."""


class OptimizerError(BuildError):
    """Needs a closure, has parameters of another model."""


class RunError(HogwildError):
    """The machine or the run directory."""


class RunDirError(RunError):
    """Not writable, in use by another job."""


class MemoryShortError(RunError):
    """The shared memory needed is more than there is."""


class CheckpointError(RunError):
    """Damaged, or of another model."""


class TrainingError(HogwildError):
    """While training."""


class UserCodeError(TrainingError):
    """An exception in the model, loss, data or optimizer, with its traceback."""

    code = "train/user-code"


class WorkersLost(TrainingError):
    """Workers died, stalled or could not start more often than allowed."""

    code = "train/workers-lost"


class CrashLoop(TrainingError):
    """Workers keep crashing without progress."""

    code = "train/crash-loop"


class Deadlocked(TrainingError):
    """No worker committed a batch for too long."""

    code = "train/deadlocked"


class Diverged(TrainingError):
    """Parameters became NaN or infinite."""

    code = "train/diverged"


class LedgerError(TrainingError):
    """The notes of a cluster's nodes do not add up: a bug of hogwild."""

    code = "cluster/ledger"


class DeviceMemoryError(TrainingError):
    """A GPU has too little free memory."""

    code = "device/memory"


class DeviceSharingError(TrainingError):
    """Its memory cannot be shared by processes, or its owner process died."""

    code = "device/sharing"


class TooManyQuarantined(TrainingError):
    """More than 1 % of the batches could not be trained on."""

    code = "train/quarantined"


NOT_FINITE = "train/not-finite"  # raised in trainers as a separate exception, and reported in two ways


def code_of(error: BaseException) -> str:
    """Return the code of any exception that ended a command."""
    return error.code if isinstance(error, HogwildError) else "run/unexpected"


LONGEST_HEADLINE = 400  # letters


def headline(error: object) -> str:
    """Return the first line of an error, which names what was raised and where; its middle is cut, not its end."""
    first = next(iter(str(error).strip().splitlines()), type(error).__name__)
    part = LONGEST_HEADLINE // 2
    return first if len(first) <= LONGEST_HEADLINE else f"{first[: part - 1]}…{first[-part:]}"


def hint(code: str) -> str:
    """Return the line under an error's message."""
    return f"code {code}: hogwild explain {code}"


MANY = 20_000  # names: comparing each takes some 20 us
LONGEST_NAME = 100  # letters that are shown or compared


def nearest(name: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return the names most similar to `name`, the best first. Among very many: those that differ by one letter, or
    similar ones of the first MANY of about this length."""
    from difflib import get_close_matches

    known, name = list(known), name[:LONGEST_NAME]
    same = [one for one in known if one.lower() == name.lower()]
    if not same and len(known) > MANY:
        same = sorted({*known} & {*_one_letter_away(name, {*"".join(known[:MANY])})})
        known = [one for one in known if abs(len(one) - len(name)) <= 2][:MANY]
    return same[:most] or get_close_matches(name, known, n=most, cutoff=cutoff)


def _one_letter_away(name: str, letters: Iterable[str]) -> Iterator[str]:
    """Yield the texts with a letter less or more, another letter, or two exchanged."""
    for at in range(len(name) + 1):
        before, after = name[:at], name[at:]
        yield before + after[1:]
        yield before + after[1:2] + after[:1] + after[2:]
        for letter in letters:
            yield before + letter + after
            yield before + letter + after[1:]


def did_you_mean(name: object, known: Iterable[object], *, most: int = 1) -> str:
    """Return `; did you mean 'x'?`, or "" if no known name is similar. `most`: names."""
    close = [shown_name(one) for one in nearest(str(name), map(str, known), most=most, cutoff=0.65)]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def shown_name(name: object) -> str:
    """Return a name as a message quotes it: on one line, the end of a long one cut."""
    text = str(name)
    return repr(text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…")
