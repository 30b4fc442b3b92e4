"""The trial of a job's code, in a process that then ends (`hogwild/job/parts.py`)."""

import os
import socket
import traceback
from typing import NoReturn

import torch
from torch import nn

from hogwild import by_value, host
from hogwild.host.thread_pools import limited_pools
from hogwild.job.parts import Findings, Trial
from hogwild.shared_memory.region import Region
from hogwild.training import torch_settings
from hogwild.workers.messages import Report, TrialTask


def try_out(channel: socket.socket, task: TrialTask, regions: dict[str, Region]) -> NoReturn:
    """Run the trial, write its findings into the region `answer`, and end. Raises ParentGone; errors of user code are
    among the findings."""
    Report("trying").send(channel)
    answer = regions["answer"].descriptor
    os.pwrite(answer, by_value.dumps(_findings(regions["trial"], task)), 1)
    os.pwrite(answer, b"\1", 0)  # last: it is whole
    os._exit(0)


def _findings(written: Region, task: TrialTask) -> Findings | None:
    """Return the findings; None if the trial must run in the parent: a class that cannot be imported or unpickled here,
    or a model whose first forward makes buffers or modules, which the layout of the job needs."""
    try:
        # Mapped, not read: tensors are private copies of the pages that are written.
        trial: Trial = torch.load(host.path_of(written.descriptor), weights_only=False, mmap=True)
        torch_settings.apply(task.torch_settings)  # again: importing the model's module may have changed them
    except (Exception, SystemExit):  # the parent reports it
        traceback.print_exc()
        return None
    constructed = _structure(trial.model)
    with limited_pools(1) as pools:  # those that the module made or widened; training has its own limit
        found: Findings = trial.run()
    for pool in pools:  # not before: the last words before a crash are the user's
        print(f"{pool}, limited to 1 in the trial", flush=True)
    if found.error is None and _structure(trial.model) != constructed:
        return None
    if found.error is not None:  # the traceback does not travel with it
        found.error.add_note("".join(traceback.format_exception(found.error)))
    return found


def _structure(model: nn.Module) -> tuple[object, ...]:
    """Return what a forward pass may add to a model beside parameters, which are an error of the trial."""
    buffers = [(name, tuple(buffer.shape)) for name, buffer in model.named_buffers()]
    return buffers, [path for path, _ in model.named_modules()]
