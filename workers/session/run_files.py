"""The files that describe a job in its run directory, written before the first worker starts."""

import json
import os
import sys

import torch

from hogwild import host
from hogwild.job.parts import Parts
from hogwild.planning.job_plan import JobPlan
from hogwild.storage.run_directory import LIBRARY, NAMES, RunDir
from hogwild.version import __version__
from hogwild.workers.description import Description

OF_OBJECTS = (
    f"# Written by a call of {LIBRARY}: class paths name its objects; their arguments are not recorded.\n"
    "# Only the same call can resume it, with resume=.\n"
)


def write_descriptions(description: Description, plan: JobPlan, parts: Parts, rundir: RunDir) -> None:
    """Write env.json, resolved.yaml and job.yaml; for a resume, only once nothing can refuse it. resolved.yaml makes
    the folder a run, so everything else that a resume needs is written first: a job killed earlier leaves a folder that
    counts as new. All is durable before the first checkpoint, which would be useless without it."""
    resolved = (OF_OBJECTS if description.caller == LIBRARY else "") + plan.job.to_yaml()
    environment = {
        "hogwild": __version__,
        "caller": description.caller,
        "torch": torch.__version__,
        "host": host.describe_host(),
        "plan": plan.record(),
        "data_dir": str(description.data_dir) if description.data_dir else None,
        "user_folders": list(description.user_folders),
        "job_file": str(description.job_file) if description.job_file else None,
        "argv": sys.argv,
        "pid": os.getpid(),
        "parameters": sum(parameter.numel() for parameter in parts.model.parameters()),
    }
    rundir.write_json("env.json", environment, sync=True)
    if parts.names is not None:
        rundir.write_text(
            NAMES, json.dumps(parts.names, allow_nan=False) + "\n", sync=True
        )  # perhaps millions: no indent
    else:  # left by a job that was killed before there was a run
        (rundir.path / NAMES).unlink(missing_ok=True)
    rundir.write_text("resolved.yaml", resolved, sync=True)
    if not plan.is_resumed or not rundir.job_file.exists():
        rundir.write_text("job.yaml", description.job_text or resolved, sync=True)
