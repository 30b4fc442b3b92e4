"""The trial of a job's code, in a process that waits for its set-up (`hogwild/job/trial.py`)."""

import gc
import os
import pickle
import socket
import traceback

import torch

from hogwild import host
from hogwild.host.thread_pools import limit_pools
from hogwild.job.trial import Findings, Trial
from hogwild.training import torch_settings
from workers.child.adoption import adopt, limit_threads
from workers.messages import Report, Start, TrialTask


def try_out(start: Start, channel: socket.socket, task: TrialTask, descriptors: list[int]) -> None:
    """Run the trial, and write its findings into the region `answer`. Raises ParentGone; errors of user code are among
    the findings."""
    regions = adopt(start, task, descriptors)
    limit_threads(1)  # so that torch makes no pool: its threads would be created before training configures them
    Report("trying").send(channel)
    try:
        # Mapped, not read: tensors are private copies of the pages that are written.
        trial: Trial = torch.load(host.path_of(regions["trial"].descriptor), weights_only=False, mmap=True)
        torch_settings.apply(task.torch_settings)  # again: importing the model's module may have changed them,
        for pool in limit_pools(1):  # and made or widened pools
            print(f"{pool}, limited to 1", flush=True)
    except (Exception, SystemExit):  # a class that cannot be imported or unpickled here: the parent reports it
        traceback.print_exc()
        Report("untriable").send(channel)
        return
    try:
        found: Findings = trial.run()
        if found.error is not None:  # the traceback does not travel with it
            found.error.add_note("".join(traceback.format_exception(found.error)))
        answer = pickle.dumps(found)
    finally:
        torch.default_generator.manual_seed(0)
    os.pwrite(regions["answer"].descriptor, answer, 0)
    Report("tried", item=len(answer)).send(channel)
    del trial, found
    gc.collect()  # free reference cycles of user code: training needs the memory
