"""The request to run a job, from the command line or from `hogwild.train`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hogwild.cluster.launch import Launch
from hogwild.config.load import Job
from hogwild.monitoring.callbacks import Callbacks
from hogwild.monitoring.profile_report import Window

if TYPE_CHECKING:  # it imports torch
    from hogwild.feeds.materialise import Reader
    from hogwild.job.parts import Parts

COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Request:
    """A request to run a job. `make_parts` builds or takes over the objects, and has the reader bring their data into
    memory (user code runs only there)."""

    job: Job
    make_parts: "Callable[[Reader], Parts]"
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
    launch: Launch | None = None  # this node's place in a cluster
