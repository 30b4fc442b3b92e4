"""A model's output: one tensor, or several in dicts, tuples, lists and dataclasses, each with a name by its place.

    {"logits": a, "parts": (b, c)}     logits, parts.0, parts.1
    (a, b)                             output.0, output.1

A tensor without a row for each sample (a sum, a state) is none of all samples: None stands in its place. Anything else,
such as a number, stays as it is."""

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hogwild.errors import ModelError
from hogwild.feeds.resident import FieldSpec
from hogwild.shared_memory.region import Region

ALIGNED = 64  # bytes: where a field of all outputs begins


def mapped(output: Any, change: Callable[[str, Tensor], Any], name: str = "") -> Any:
    """Return the output with change(name, tensor) in the place of each tensor, in their order; "" names the only one.
    Dicts, tuples and dataclasses in which something changes are copies."""
    if isinstance(output, Tensor):
        return change(name, output)
    if (parts := _parts(output)) is None:
        return output
    made = {key: mapped(part, change, _joined(name, key)) for key, part in parts}
    if all(made[key] is part for key, part in parts):
        return output
    if isinstance(output, tuple | list):
        return type(output)(*made.values()) if hasattr(output, "_fields") else type(output)(made.values())
    if isinstance(output, Mapping) and not isinstance(output, MutableMapping):
        return made
    twin = copy.copy(output)
    for key, part in made.items():
        if isinstance(twin, MutableMapping):
            twin[key] = part
        else:
            object.__setattr__(twin, key, part)  # it may be frozen
    return twin


def leaves_of(output: Any) -> dict[str, Tensor]:
    """Return the tensors by name, in their order."""
    found: dict[str, Tensor] = {}

    def note(name: str, tensor: Tensor) -> None:
        while name in found:
            name += "_"
        found[name] = tensor

    mapped(output, note)
    return found


def of_rows(output: Any, rows: int) -> Any:
    """Return the output with None for each tensor that has not so many rows."""
    return mapped(output, lambda _, one: one if one.dim() and len(one) == rows else None)


def joined(parts: Sequence[Any]) -> Any:
    """Return the outputs of consecutive samples as one. Raises ModelError if rows have different shapes."""
    each = [leaves_of(part) for part in parts]
    for name, first in each[0].items():
        for tensors in each:
            require_shape(name, tensors.get(name), first.shape[1:])
    whole = iter([torch.cat([tensors[name] for tensors in each]) for name in each[0]])
    return mapped(parts[0], lambda *_: next(whole))


def require_shape(name: str, found: Tensor | None, shape: Sequence[int]) -> None:
    """Raise ModelError if a tensor is missing, or its rows have not this shape."""
    if found is None or tuple(found.shape[1:]) != tuple(shape):
        got = "missing" if found is None else f"of shape {tuple(found.shape[1:])}"
        raise ModelError(
            f"the model's output{f' {name}' if name else ''} is {got} for a row of one batch, and of shape "
            f"{tuple(shape)} for one of the batch before; the answers of all rows need equal shapes",
            code="model/output-shape",
        )


def described(output: Any) -> str:
    """Return names and shapes of the rows, for people: `logits (B, 2), score (B)`."""
    return ", ".join(
        f"{name} ({', '.join(['B', *map(str, one.shape[1:])])})".strip() for name, one in leaves_of(output).items()
    )


@dataclass(frozen=True, slots=True)
class AllOutputs:
    """The outputs of all samples of an evaluation, in a region or in this process. `like`: an output of no sample."""

    like: Any
    fields: tuple[FieldSpec, ...]

    @classmethod
    def of(cls, like: Any, samples: int) -> "AllOutputs":
        fields: list[FieldSpec] = []
        end = 0
        for leaf in leaves_of(like).values():
            fields.append(FieldSpec(leaf.dtype, (samples, *leaf.shape[1:]), end))
            end += math.ceil(fields[-1].nbytes / ALIGNED) * ALIGNED
        return cls(like, tuple(fields))

    @property
    def nbytes(self) -> int:
        return self.fields[-1].offset + self.fields[-1].nbytes

    def view(self, region: Region) -> Any:
        """Return the outputs in shared memory, (N, …) each."""
        rest = iter(self.fields)
        return mapped(self.like, lambda *_: next(rest).view(region))

    def empty(self) -> Any:
        """Return outputs to write into."""
        rest = iter(self.fields)
        return mapped(self.like, lambda _, one: torch.empty(next(rest).shape, dtype=one.dtype))


def _parts(output: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(output, Mapping):
        return [*output.items()]
    if isinstance(output, tuple | list):
        return [*zip(getattr(output, "_fields", range(len(output))), output, strict=True)]
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return [(field.name, getattr(output, field.name)) for field in dataclasses.fields(output)]
    return None


def _joined(name: str, key: Any) -> str:
    if not name and (not str(key) or str(key).isdigit()):
        name = "output"
    return f"{name}.{key}" if name else str(key)
