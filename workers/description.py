"""The description of a job to run, from the command line or from `hogwild.train`: the first of five steps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hogwild.cluster.launch import Launch
from hogwild.config.load import Job
from hogwild.kernels.signatures import Kernels
from hogwild.monitoring.callbacks import Callbacks
from hogwild.monitoring.profile_report import Window
from hogwild.planning.job_plan import JobPlan

if TYPE_CHECKING:  # it imports torch
    from hogwild.feeds.row_reader import Reader
    from hogwild.job.parts import Parts

COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Description:
    """A job, and where it comes from. `read` builds or takes over the objects of a planned job, and has the reader
    bring their data into memory (user code runs only there)."""

    job: Job
    read: "Callable[[JobPlan, Reader], Parts]"
    job_text: str = ""
    run_dir: Path | None = None
    resume: Path | None = None
    data_dir: Path | None = None
    user_folders: tuple[str, ...] = ()
    job_file: Path | None = None
    caller: str = COMMAND_LINE  # or run_directory.LIBRARY
    profile: Window | None = None  # updates of each worker to record
    began_s: float = 0.0  # monotonic: when the command, or the call, began
    callbacks: Callbacks = field(default_factory=Callbacks)  # of the library's caller
    kernels: tuple[Kernels, ...] = ()  # foreseen, for processes that load or compile them beforehand
    launch: Launch | None = None  # this node's place in a cluster
