"""The role of a child process: its task makes it a trainer, a loader, a reader, the trial of the job's code, the owner
of a GPU, a cluster's communicator, or a predictor."""

import contextlib
import socket

from hogwild.workers.child.adoption import adopt, limit_threads
from hogwild.workers.child.build import build_trainer
from hogwild.workers.child.standard_streams import redirect_to_files
from hogwild.workers.child.trainer import Trainer
from hogwild.workers.child.worker_loop import Loop, serve
from hogwild.workers.messages import (
    CommunicateTask,
    Leaving,
    LoadTask,
    OwnTask,
    ParentGone,
    PredictTask,
    Report,
    Setup,
    Start,
    TrialTask,
    receive_task,
)
from hogwild.workers.warning_reports import hearing_warnings


def run(start: Start, channel: socket.socket, leaving: Leaving) -> int:
    """Run the worker or the loader; return its exit status."""

    def send_warning(text: str, place: str) -> None:
        with contextlib.suppress(ParentGone):  # the next message of ours will see it
            Report("warning", detail=text, place=place).send(channel)

    def receive_and_build() -> "Trainer | Loop":
        task, descriptors = receive_task(channel)
        if task.log:
            redirect_to_files(task.log, task.stacks)
        if isinstance(task, Setup):
            return build_trainer(start, task, descriptors)
        if isinstance(task, LoadTask):
            from hogwild.workers.child.loader import load  # few jobs stream, or read data this way

            return load(start, channel, leaving, task, descriptors)
        if isinstance(task, OwnTask | CommunicateTask):
            heard.close()  # its socket is for answers to others than the group
        if isinstance(task, OwnTask):
            from hogwild.workers.child.gpu_owner import serve_flats  # one process of few jobs

            serve_flats(channel, task.device, adopt(task, descriptors))
            raise ParentGone("nothing is to be owned any more")
        if isinstance(task, CommunicateTask):
            from hogwild.workers.child.communicator import Communicator  # torch.distributed

            regions = adopt(task, descriptors)
            limit_threads(1)
            return Communicator(start, channel, leaving, task, regions)
        if isinstance(task, PredictTask):
            from hogwild.workers.child.predictor import PredictorLoop  # on request, in few jobs

            regions = adopt(task, descriptors, written=("beats",))
            limit_threads(1)
            return PredictorLoop(start, channel, leaving, task, regions)
        assert isinstance(task, TrialTask)
        from hogwild.workers.child.trial import try_out  # in one process

        return try_out(channel, task, descriptors)

    with contextlib.ExitStack() as heard:
        heard.enter_context(hearing_warnings(send_warning))
        return serve(start, channel, leaving, receive_and_build)
