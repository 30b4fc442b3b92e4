"""`hogwild.train` and `hogwild.load`, the library's calls. A call runs through the same code as a YAML job; only the
objects come from the caller."""

import os
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from hogwild.config.schema import Split
from hogwild.data.pair_tables import as_data
from hogwild.errors import BuildError, ModelError, UsageError
from hogwild.job.foreseen_kernels import foreseen
from hogwild.keywords import UNSET, Keywords, job_of, objects_of, own_functions, path_of, signature_of
from hogwild.models import has_kernels
from hogwild.monitoring.callbacks import Callbacks
from hogwild.storage.run_directory import LIBRARY, require_current_folder
from hogwild.train_result import History, TrainInterrupted, TrainResult
from hogwild.user_code import user_path

if TYPE_CHECKING:
    from hogwild.inference.trained_model import Trained


def train(
    model: nn.Module = UNSET,
    dataset: Any = UNSET,
    loss: Any = UNSET,
    optimizer: Optimizer = UNSET,
    /,
    *,
    val: Any = None,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    optimizer_state: Literal["auto", "private", "shared"] | None = None,
    callbacks: Sequence[object] = (),
    on_interrupt: Literal["raise", "return"] = "raise",
    **keywords: Unpack[Keywords],
) -> TrainResult:
    """Train `model` with several worker processes that share its parameters. Afterwards the model holds the result in
    private memory, and the optimizer the shared state, or the state of the worker with the most updates.

    `dataset` and `val` are data sets of (input, …, target), map-style or iterable, or pairs of users and items: a
    scipy.sparse matrix, a data frame or an array (`hogwild.data.pair_tables`). `val={"fraction": 0.2}` uses a random
    part of `dataset`. `loss` is called as loss(output, target). `optimizer` is a torch.optim instance over
    model.parameters(); its class, groups, hyper-parameters and state are used. These four may also be given as
    keywords. Every other keyword is a field of the job file's `train` or `data` section (`procs=4`, `epochs=3`,
    `batch_size=64`), `name`, `seed`, or a section as a dict (`checkpoint={"every_s": 5}`). Examples:
    `model={"freeze": ["conv*"]}` freezes parameters until the call returns; `evaluate={"metrics": ["accuracy", gini]}`
    uses your function gini(outputs, targets) of all outputs; `lr_schedule` may be one of torch's schedulers over
    `optimizer`, of which a copy is stepped. `collate` (of a list of records) and `transform` (of a
    batch's inputs and target) may be functions. `optimizer_state` is "auto" (the default), "private" or "shared".
    `resume` continues from the run directory of an earlier call with the same objects.

    `callbacks` are objects with any of the methods `on_start`, `on_evaluation`, `on_checkpoint` and `on_end`. Each is
    called with a `hogwild.monitoring.callbacks.JobEvent`, in order, by one thread, while training goes on. An exception
    in one stops the job with a checkpoint, and is raised here as UserCodeError.

    The first call starts one more process, the fork server: it imports torch once, for the processes of this call and
    of all later ones. `hogwild.close()` ends it. Call it from the main thread; `if __name__ == "__main__"` is not
    needed. Raises HogwildError, with the messages of the command line, if the job cannot start or fails. Returns if the
    job was stopped by `max_time_s`, a callback or a signal other than Ctrl-C. After a Ctrl-C, once the checkpoint is
    written, it raises TrainInterrupted, a KeyboardInterrupt with the result as `result`, so that a loop of calls ends;
    `on_interrupt="return"` returns the result instead.
    """
    began_s = time.monotonic()
    require_current_folder()
    if run_dir is not None and resume is not None and os.path.realpath(run_dir) != os.path.realpath(resume):
        raise UsageError(
            f"resume={str(resume)!r} continues in that folder, but run_dir={str(run_dir)!r} names another; remove "
            "run_dir, or remove resume for a new run",
            code="usage/contradiction",
        )
    if on_interrupt not in ("raise", "return"):
        raise UsageError(f'on_interrupt={on_interrupt!r} must be "raise" or "return"', code="usage/bad-value")
    settings: dict[str, Any] = {**keywords}
    model, dataset, loss, optimizer = objects_of((model, dataset, loss, optimizer), settings)
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model is a {type(model).__name__}, not a torch.nn.Module", code="model/not-a-module")
    if not callable(loss):
        raise BuildError(
            f"the loss is a {type(loss).__name__}; it must be callable as loss(output, target)",
            code="model/loss-not-callable",
        )
    if optimizer_state is not None:
        settings["optimizer_state"] = optimizer_state
    dataset, val, chosen = as_data(model, dataset, val)
    given = own_functions(settings)
    job = job_of(model, dataset, loss, optimizer, val, settings)
    told = Callbacks(callbacks)
    from hogwild.feeds.packed import Packed
    from hogwild.feeds.row_reader import Reader
    from hogwild.job.build import from_objects
    from hogwild.job.initial_values import held_out_notes, load_initial
    from hogwild.job.packed_data import names_of, packs
    from hogwild.job.parameter_groups import freeze_parameters
    from hogwild.job.parts import Functions, Parts
    from hogwild.planning.job_plan import JobPlan
    from hogwild.workers.run import run
    from hogwild.workers.session.startup import Description

    held_back = job.data.val if isinstance(job.data.val, Split) else cast("Dataset | None", val)

    def read(plan: JobPlan, reader: Reader) -> Parts:
        data: Any = dataset
        started: list[str] = []
        if resume is None and job.model.init_from is not None:
            if packs(data):
                data = data.pack(reader, "data.train", None, job.data.on_bad_line)
            names = names_of(data, data if isinstance(data, Packed) else None)
            started = [load_initial(model, job.model.init_from, names).give_state(model, optimizer)]
        freeze_parameters(model, job.model.freeze)
        parts = from_objects(plan, model, loss, optimizer, data, held_back, Functions.of(job, given), reader)
        if started:
            started += held_out_notes(job, parts.train.packed)
        parts.notes[:0] = [*chosen, *started]
        return parts

    modes = [(module, module.training) for module in model.modules()]
    trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    if not model.training:
        model.train()
    try:
        with told:
            result = run(
                Description(
                    job=job,
                    read=read,
                    run_dir=Path(run_dir) if run_dir is not None else None,
                    resume=Path(resume) if resume is not None else None,
                    caller=LIBRARY,
                    began_s=began_s,
                    callbacks=told,
                    kernels=foreseen(job, _update_of(model, loss, optimizer)),
                )
            )
    finally:
        for module, was_training in modes:
            module.training = was_training
        for parameter, was_trained in trained:
            parameter.requires_grad_(was_trained)
    result.shared.release()
    if (error := result.error or told.error) is not None:
        raise error
    names = {field.name for field in fields(TrainResult)}
    values = {key: value for key, value in result.summary.items() if key in names}
    run_dir = Path(values["run_dir"])
    found = TrainResult(**{**values, "run_dir": run_dir, "history": History.of(run_dir)})
    if found.reason == "SIGINT" and on_interrupt == "raise":
        raise TrainInterrupted(found)
    return found


def _update_of(model: Any, loss: Any, optimizer: Optimizer) -> Any:
    """Return the fused update of a model of ours, or None: other models are asked when the job is built."""
    return model.fused(loss, optimizer) if has_kernels(path_of(model)) and hasattr(model, "fused") else None


train.__signature__ = signature_of(train)  # type: ignore[attr-defined]


def close() -> None:
    """End the process from which those of `train` are forked, now rather than at the end of this process."""
    from hogwild.workers.processes.fork_server import SERVER

    SERVER.close()


def load(
    source: str | Path,
    *,
    model: nn.Module | None = None,
    which: str | None = None,
    data_dir: str | Path | None = None,
    live: bool = False,
) -> "Trained":
    """Load a run's model, ready to use. `source` is a run directory (its best checkpoint, or `which="latest"`) or a
    checkpoint. `model` gets the weights, in place, and is used instead of a new object of the run's class: a run of
    `train` records no arguments of classes, so it needs one unless the class can be built without. With `live`
    the model is that of the running job at each call, as `hogwild predict --live` has it; only `predict` is of use. See
    `hogwild.inference.trained_model`. Raises NotFoundError, UsageError, ModelError, CheckpointError, RunError."""
    from hogwild.config.of_run import checkpoint_of, data_folder, is_of_library, recorded, require_run
    from hogwild.data.locate import set_data_dir
    from hogwild.inference.trained_model import Trained

    if live and (model is not None or which is not None):
        raise UsageError(
            "live=True: the job's own model answers; leave model and which out", code="usage/contradiction"
        )
    if live:
        run = require_run(Path(source)).parent
    else:
        path = checkpoint_of(Path(source), which)
        run = path.parent.parent
    job, users_file, _ = recorded(run)
    folder = data_folder(Path(data_dir) if data_dir is not None else None, run)
    user_path(users_file)
    if folder is not None:
        set_data_dir(folder)
    if live:
        from hogwild.monitoring.live_calls import LiveCalls
        from hogwild.monitoring.live_model import live_model

        return live_model(run, LiveCalls(run), consistent=False)
    return Trained.of(job, path, model, is_of_objects=is_of_library(run))
