"""Every exception of the project. `hogwild.train` raises them; the command line prints `str(error)` and its code, and
exits with `exit_status`.

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

A class says what kind of thing is wrong, and the exit status; a *code* (`data/not-finite`) says what exactly. Codes are
stable: they are what documentation and other programs refer to. `CODES` has all of them, docs/errors.md explains each:
cause, how to see, how to fix. Where a class has one cause only, it has the code; elsewhere whoever raises gives it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any


class HogwildError(Exception):
    """Base of all our errors. The message is complete: what, where, value, rule, what to do. `code` is one of `CODES`;
    it may be left out where the class has one of its own."""

    exit_status = 1
    code: str = ""  # whoever raises a class without one gives it

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        assert self.code in CODES, f"{type(self).__name__} with {self.code!r}: not a code of hogwild.errors.CODES"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle is made with the code, which `Exception`'s own way would hand over too late."""
        return partial(type(self), code=self.code), self.args, vars(self)

    def record(self) -> dict[str, Any]:
        """What another program reads of a command that failed (`--json`)."""
        return {"error": str(self), "error_code": self.code, "exit_status": self.exit_status}


class UsageError(HogwildError):
    exit_status = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a job file. `line` and `column` count from 1; 0 where the value came from the command line
    (`source` then says so). `code` is one of `CODES`."""

    source: str
    line: int
    column: int
    path: str
    message: str
    code: str

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        where = f"{place}: {self.path}" if self.path else place
        return f"{where}: {self.message} [{self.code}]"


class ConfigError(UsageError):
    """The job file or the overrides break the schema. `problems` holds every one found in one pass; where all are of
    one kind, that is the code of the error."""

    code = "config/invalid"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        codes = {problem.code for problem in self.problems}
        count = len(self.problems)
        lines = [str(problem) for problem in self.problems]
        lines.append(f"{count} error{'s' if count != 1 else ''}; nothing was started.")
        super().__init__("\n".join(lines), code=codes.pop() if len(codes) == 1 else None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again from its problems, from which the message is."""
        return type(self), (self.problems,)

    def record(self) -> dict[str, Any]:
        return {**super().record(), "problems": [asdict(problem) for problem in self.problems]}


class ClassPathError(UsageError):
    pass


class NotFoundError(HogwildError):
    exit_status = 3


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


class TooManyQuarantined(TrainingError):
    code = "train/quarantined"


NOT_FINITE = "train/not-finite"  # raised where training is, as an exception of its own, and passed on in two ways


def code_of(error: BaseException) -> str:
    """Of any exception that ended a command."""
    return error.code if isinstance(error, HogwildError) else "run/unexpected"


def hint(code: str) -> str:
    """The line under an error's message."""
    return f"code {code}: cause and cure in docs/errors.md"


# Every code with its meaning in a few words, in the order of docs/errors.md (a test compares the two).
CODES: Mapping[str, str] = {
    "checkpoint/damaged": "its files do not match their hashes, or it is cut off",
    "checkpoint/foreign": "not a checkpoint of hogwild's, or renamed",
    "checkpoint/link": "a checkpoint is a symbolic link",
    "checkpoint/newer-format": "written by a newer hogwild",
    "checkpoint/not-finite": "a tensor in it is NaN or infinite",
    "checkpoint/not-written": "it could not be written",
    "checkpoint/other-job": "its ledger or groups are of another job",
    "checkpoint/other-model": "its tensors are not those of this model",
    "checkpoint/other-optimizer": "its optimizer state is of another optimizer",
    "checkpoint/slow-disk": "the disk did not take the last one in time",
    "checkpoint/unreadable": "its files cannot be opened or read",
    "checkpoint/unsafe": "it holds objects that only run code can load",
    "config/ambiguous-value": "YAML readers disagree about this scalar",
    "config/bad-argument": "an argument in init_args has a value its class refuses",
    "config/bad-name": "a name cannot be a folder's",
    "config/bad-override": "not of the form key.path=value",
    "config/bad-yaml": "not YAML, or a part of YAML that is not taken",
    "config/class-path": "a class path has no such form, or is not in a catalog",
    "config/constructor-raised": "the class or function itself raised while it was called",
    "config/contradiction": "two fields cannot both be as they are",
    "config/duplicate-key": "a key is given twice",
    "config/empty": "there is no map of sections in the job file",
    "config/encoding": "the job file is not plain UTF-8",
    "config/import-failed": "the module of a class path raised while it was imported",
    "config/invalid": "several problems of different kinds",
    "config/keyword": "a keyword of hogwild.train says what an object says already",
    "config/lr-schedule": "an own schedule does not fit its keys",
    "config/metric-direction": "nobody said whether more of a metric is better",
    "config/metric-name": "a metric of the user's is called like a field of the records",
    "config/missing-argument": "a class needs an argument that init_args does not give",
    "config/missing-key": "a required key is not there",
    "config/needs-validation": "a field needs data.val",
    "config/no-such-module": "the module of a class path is not there",
    "config/no-such-name": "the module has nothing of that name",
    "config/not-callable": "a class path names a thing that cannot be called",
    "config/not-finite": "an infinite number, or NaN",
    "config/out-of-range": "a number outside its limits",
    "config/too-large": "the file, its depth or its aliases pass a limit",
    "config/unknown-argument": "a class takes no argument of that name",
    "config/unknown-choice": "not one of the words that are allowed",
    "config/unknown-key": "a section has no such key",
    "config/unknown-metric": "a metric that this job does not report",
    "config/wrong-type": "text for a number, a list for a map, and the like",
    "data/bad-item": "an item is no tuple of tensors, arrays or numbers",
    "data/bad-value": "a value in a data file is out of its range",
    "data/batch-norm": "a batch of one sample, and the model has BatchNorm",
    "data/broken-image": "a picture cannot be read",
    "data/checksum": "a downloaded file is not what its publisher says",
    "data/csv-columns": "a table's columns are not those that are named",
    "data/csv-delimiter": "a table is one single column",
    "data/csv-encoding": "a table is not text in its encoding",
    "data/csv-line-ends": "a table's lines end with carriage returns",
    "data/csv-missing": "a value of a table is missing",
    "data/csv-quotes": "a quotation mark in a table is not closed",
    "data/csv-ragged": "a row has another number of values",
    "data/csv-value": "a value is not what its column is read as",
    "data/damaged-file": "a data file is damaged",
    "data/download": "a file could not be downloaded",
    "data/download-folder": "the folder for downloads cannot be written",
    "data/empty": "no samples",
    "data/fields": "the samples' fields do not fit together",
    "data/file-changed": "a data file changed while it was read",
    "data/folder-not-found": "--data-dir names no folder",
    "data/image-classes": "the folders of pictures are not one per class",
    "data/item-kills": "reading an item ends the process, again and again",
    "data/item-raised": "reading an item raised an exception",
    "data/labels": "a label is outside the model's outputs",
    "data/no-batch": "drop_last leaves no batch",
    "data/no-length": "the data set has no usable len()",
    "data/not-dense": "a sparse tensor",
    "data/not-finite": "an input or target is NaN or infinite",
    "data/not-found": "no folder holds the data files",
    "data/split": "data.val.fraction leaves one part empty",
    "data/stream": "an IterableDataset",
    "data/transform": "data.transform raised, or made no batch of a batch",
    "data/truncated-file": "a data file is shorter than its header says",
    "data/unlike-items": "items differ in shape, type or number of fields",
    "data/unreadable": "a data file cannot be opened or read",
    "data/val-unlike-train": "data.val and data.train have different samples",
    "data/wrong-arrays": "an .npz file's arrays are not those that are needed",
    "data/wrong-format": "a data file is of another kind",
    "export/no-checkpoint": "there is no checkpoint to take",
    "model/bad-loss": "the loss is not one floating-point number",
    "model/buffer-changed": "a buffer changed its shape or type while training",
    "model/cuda": "CUDA was initialised before workers start",
    "model/device": "a tensor is not in host memory",
    "model/forward-failed": "model and loss cannot be computed on the first samples",
    "model/gained-parameters": "parameters or modules came or went after the constructor",
    "model/lazy": "a parameter has no shape yet",
    "model/loss-not-callable": "the loss cannot be called",
    "model/memory-format": "an unknown memory format",
    "model/metric": "a metric does not suit the model's outputs",
    "model/no-match": "a pattern of model.freeze matches nothing",
    "model/no-parameters": "nothing to train",
    "model/not-a-module": "not an nn.Module",
    "model/not-dense": "a parameter or buffer is sparse",
    "model/not-picklable": "the model or loss cannot be written for the workers",
    "model/output-shape": "outputs differ in shape from batch to batch",
    "model/overlapping": "two Parameters share memory",
    "model/parametrized": "torch cannot pickle parametrized modules",
    "model/rebound": "a parameter was replaced while training",
    "model/scripted": "a ScriptModule",
    "optimizer/closure": "step() needs a closure",
    "optimizer/empty-group": "an earlier group took all parameters of this one",
    "optimizer/foreign-parameters": "it has parameters that the model has not",
    "optimizer/no-match": "a group's pattern matches no trained parameter",
    "optimizer/not-one": "not a torch.optim.Optimizer",
    "optimizer/state": "state is neither private nor shared",
    "optimizer/trial-step": "a step with zero gradients failed",
    "run/cannot-start": "a process of a trial or of chaos cannot be started",
    "run/chaos-refused": "the job of a chaos run did not begin",
    "run/check-died": "the process of check --deep died",
    "run/current-folder-gone": "the current folder was deleted",
    "run/dir-not-empty": "the run directory holds other files",
    "run/dir-taken": "the run directory holds a run already",
    "run/environment-too-large": "sys.path or the environment is too long for a worker",
    "run/in-use": "another job works in the run directory",
    "run/job-file-not-found": "there is no such job file",
    "run/memory-short": "the job needs more memory than is free",
    "run/not-a-run": "the folder holds no run",
    "run/not-found": "there is no such run",
    "run/not-writable": "the run directory cannot be made or written",
    "run/open-files": "more open files are needed than are allowed",
    "run/output-not-written": "the file a command makes cannot be written",
    "run/shm-full": "shared memory cannot be allocated",
    "run/stdout": "the result cannot be written to standard output",
    "run/unexpected": "an exception that is none of ours",
    "run/unreadable": "a file of a run directory cannot be read",
    "train/crash-loop": "workers die one after the other and nothing gets done",
    "train/deadlocked": "nobody committed a batch for too long",
    "train/diverged": "parameters became NaN or infinite",
    "train/lr-factor": "the learning-rate schedule answered no finite factor",
    "train/no-update": "every batch was skipped",
    "train/not-finite": "a loss or gradient was NaN or infinite, and on_nan is fail",
    "train/quarantined": "too many batches could not be trained on",
    "train/unevaluable": "an evaluation could not be finished",
    "train/user-code": "an exception in the model, loss, data or optimizer",
    "train/workers-lost": "too few workers are left",
    "usage/arguments": "an option or argument that is not taken",
    "usage/bad-value": "an option's value is outside its rule",
    "usage/contradiction": "two things on the command line or in the call exclude each other",
    "usage/file-exists": "the file to write is there already",
    "usage/library-run": "a run of hogwild.train cannot be resumed from files",
    "usage/main-thread": "called from another thread",
    "usage/missing-extra": "a package of an extra is not installed",
    "usage/no-folder": "the folder to write into is not there",
    "usage/no-predictions": "outputs that are no tensor have no rows to write",
    "usage/not-linux": "the system is not Linux",
    "usage/objects": "hogwild.train lacks an object, or has it twice",
    "usage/omp-threads": "OMP_NUM_THREADS is no usable number",
    "usage/resume-changes": "a resumed job was changed into another",
    "usage/shadowed-package": "a package named workers came before ours",
    "usage/unknown-command": "there is no such command",
    "usage/unknown-task": "init has no such task",
}
