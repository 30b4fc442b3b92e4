"""What a caller, the command line or `hogwild.train`, wants run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hogwild.config.load import Job
from hogwild.monitoring.profile_report import Window

if TYPE_CHECKING:  # it imports torch
    from hogwild.feeds.materialise import Reader
    from hogwild.job.parts import Parts


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller wants run. `make_parts` builds or takes over the objects, and has the reader bring their data into
    memory (user code runs there, and only there)."""

    job: Job
    make_parts: "Callable[[Reader], Parts]"
    job_text: str = ""
    run_dir: Path | None = None
    resume: Path | None = None
    data_dir: Path | None = None
    user_folders: tuple[str, ...] = ()
    caller: str = "command line"  # or rundir.LIBRARY
    progress: bool | None = None
    profile: Window | None = None  # which updates of each worker are recorded
    began_s: float = 0.0  # monotonic: when the command, or the call, began
