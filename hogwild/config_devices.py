"""What fields about devices must agree on. Torch-free: which devices there are is only known later (`placing.py`)."""

from collections.abc import Iterator, Mapping
from typing import Any

from hogwild.strict_yaml import Path

CONTRADICTION = "config/contradiction"
ON_GPU = ("cuda", "simulated")


def findings(values: Mapping[str, Any]) -> Iterator[tuple[Path, str, bool, str]]:
    """As `config_rules.findings`; `values` may be wrong in any way."""
    train, optimizer = values.get("train"), values.get("optimizer")
    if not isinstance(train, Mapping):
        return
    kind = str(train.get("device", "auto")).partition(":")[0]
    placement = train.get("placement", "auto")
    yield from _placement(kind, placement)
    yield from _workers(train, kind)
    is_shared = placement == "cuda-shared"
    if placement == "cpu" or not (kind in ON_GPU or placement == "cuda-replica" or is_shared):
        return
    state = optimizer.get("state") if isinstance(optimizer, Mapping) else None
    for path, value, rule in (
        (
            ("train", "exchange"),
            train.get("exchange"),
            ("delta", "direct or auto: what is shared on a device is written there")
            if is_shared
            else ("direct", "delta or auto: a copy on a device is exchanged"),
        ),
        (("train", "update"), train.get("update"), ("fused", "auto or autograd: kernels run on the CPU")),
        (("optimizer", "state"), state, ("shared", "private: each worker's state lies on its device")),
    ):
        if value == rule[0]:
            yield path, f"must be {rule[1]} (train.device is {kind}), got {value!r}", False, CONTRADICTION


def _placement(kind: str, placement: Any) -> Iterator[tuple[Path, str, bool, str]]:
    if kind == "cpu" and placement in ("cuda-replica", "cuda-shared"):
        rule = "must be auto or cpu where train.device is cpu"
    elif kind in ON_GPU and placement == "cpu":
        rule = (
            f"must be auto or cuda-replica where train.device is {kind}: parameters lie where the mathematics is done"
        )
    else:
        return
    yield ("train", "placement"), f"{rule}, got {placement!r}", False, CONTRADICTION


def _workers(train: Mapping[str, Any], kind: str) -> Iterator[tuple[Path, str, bool, str]]:
    chosen, procs, device = train.get("device_per_worker"), train.get("procs"), train.get("device", "auto")
    if not isinstance(chosen, list):
        return
    here: Path = ("train", "device_per_worker")
    if device not in ON_GPU:
        yield (
            here,
            f"needs train.device: cuda (or simulated), without an index, and it is {device}",
            True,
            CONTRADICTION,
        )
    if type(procs) is int and len(chosen) != max(1, procs):
        yield here, f"must name one device for each of {max(1, procs)} workers, got {len(chosen)}", False, CONTRADICTION
