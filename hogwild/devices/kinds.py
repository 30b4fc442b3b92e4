"""Kinds of device by name. Imports no torch: the job file is checked against these names.

    HOGWILD_DEVICE_KINDS=NAME=MODULE[,NAME=MODULE]      registers more, in this process and its children

MODULE has `DEVICES`, a count, and `open_device(index)`, which returns an `accelerator.Accelerator`. Our tests register
a GPU that is simulated on the CPU; a backend that torch gets one day is tried the same way."""

import os

CPU, CUDA = "cpu", "cuda"
VARIABLE = "HOGWILD_DEVICE_KINDS"


def registered() -> dict[str, str]:
    """Return the module of each registered kind, by its name."""
    return dict(entry.split("=", 1) for entry in os.environ.get(VARIABLE, "").split(",") if "=" in entry)


def accelerators() -> tuple[str, ...]:
    """Return the names of all kinds that are not the CPU."""
    return (CUDA, *registered())
