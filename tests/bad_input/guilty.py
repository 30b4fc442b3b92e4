"""Code of users on bad days. Every class and function is named for its crime; `Net` and `blobs` are innocent.

The jobs of `test_bad_input.py` find this file beside them, as a user's own module."""

import json
import os
import sys
import threading
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from tests.helpers.processes import in_worker

NOT_A_CLASS = 3


def blobs(
    samples: int = 32, wrong_label_at: int | None = None, nan_at: int | None = None, dtype: str = "float32"
) -> TensorDataset:
    """x (N, 4), y (N,) in {0, 1}."""
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    y = (x[:, 0] > 0).long()
    if wrong_label_at is not None:
        y[wrong_label_at] = 7
    if nan_at is not None:
        x[nan_at, 2] = float("nan")
    return TensorDataset(x, y)


class Net(nn.Module):
    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.relu(self.norm(self.first(x))))


# ---- models that cannot be built, or cannot be shared ---------------------------------------------------------------


class RaisesInTheConstructor(Net):
    def __init__(self) -> None:
        raise ValueError("no weights today")


class NeedsASize(Net):
    def __init__(self, size: int) -> None:
        super().__init__()


class ExitsInTheConstructor(Net):
    def __init__(self) -> None:
        sys.exit(7)


class OnMeta(Net):
    def __init__(self) -> None:
        super().__init__()
        self.to("meta")


class LazyNotYetShaped(Net):
    """The trial forward leaves this layer out, so nothing gives it a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.LazyLinear(2)


class WithoutParameters(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2]


class AllFrozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class HoldsALock(Net):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class ReturnsATuple(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), 1


class RaisesInForward(Net):
    def forward(self, x: Tensor) -> Any:
        raise KeyError("no such layer")


class WithPython(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 2)

    @torch.jit.ignore
    def doubled(self, x: Tensor) -> Tensor:
        return 2 * x

    def forward(self, x: Tensor) -> Tensor:
        return self.first(self.doubled(x))


def scripted_with_python() -> nn.Module:
    return torch.jit.script(WithPython())  # type: ignore[no-any-return]


class MadeAnew(Net):
    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.first.weight = nn.Parameter(self.first.weight.detach().clone())


class KeepsAView(Net):
    def __init__(self) -> None:
        super().__init__()
        self.table = self.first.weight.data


class HidesParameters(Net):
    def parameters(self, recurse: bool = True) -> Any:
        return self.last.parameters(recurse)


def overlapping() -> nn.Module:
    """Two Parameters over the same words."""
    net = Net()
    net.first.bias = nn.Parameter(net.first.weight.data.view(-1)[:8])
    return net


# ---- models that misbehave only while training, in a worker ---------------------------------------------------------


class ExitsInForward(Net):
    def forward(self, x: Tensor) -> Any:
        if self.training:
            sys.exit(0)
        return super().forward(x)


class GrowsInForward(Net):
    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.late = nn.Parameter(torch.zeros(3))
        return super().forward(x)


class SaysWhatCannotBeEncoded(Net):
    def forward(self, x: Tensor) -> Any:
        if self.training:
            raise ValueError("half a character: \udcff")
        return super().forward(x)


class Waits(Net):
    """In a worker: no batch before there is a file `finish`."""

    def forward(self, x: Tensor) -> Any:
        while in_worker() and not os.path.exists("finish"):
            time.sleep(0.01)
        return super().forward(x)


class EvaluatesForEver(Net):
    """In a worker; the supervisor's trial evaluates, too."""

    def forward(self, x: Tensor) -> Any:
        if not self.training and in_worker():
            with open("evaluating", "w"):
                pass
            time.sleep(600)
        return super().forward(x)


class SwallowsCtrlC(Net):
    """Says that it is being built by making a file, then waits in a bare `except`."""

    def __init__(self) -> None:
        super().__init__()
        try:
            with open("building", "w"):
                pass
            time.sleep(600)
        except:  # noqa: E722 - the crime
            os.replace("building", "swallowed")


class SlowToBuild(Net):
    def __init__(self) -> None:
        super().__init__()
        with open("building", "w"):
            pass
        time.sleep(600)


# ---- losses ----------------------------------------------------------------------------------------------------------


def a_loss_per_sample(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target, reduction="none")


def no_loss(output: Tensor, target: Tensor) -> None:
    return None


def a_plain_float(output: Tensor, target: Tensor) -> float:
    return 1.0


def always_nan(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target) * float("nan")


def of(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    """In the place of an optimizer."""
    return parameters


# ---- data sets -------------------------------------------------------------------------------------------------------


class Items(Dataset[Any]):
    """Reads item by item; item 5 is bad in the way `how` says."""

    def __init__(self, how: str, samples: int = 8) -> None:
        self.how = how
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        x, y = torch.zeros(4), index % 2
        return self._bad(x, y) if index == 5 else (x, y)

    def _bad(self, x: Tensor, y: int) -> Any:
        if self.how == "raises":
            raise OSError("disk on fire")
        if self.how == "exits":
            sys.exit(4)
        return {
            "longer": (torch.zeros(5), y),
            "wider": (x.double(), y),
            "alone": (x,),
            "a word": (x, "cat"),
            "a map": {"x": x},
            "three": (x, x, y),
        }[self.how]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.zeros(4), 0)])


class WithoutLength(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(4), 0


class LengthRaises(WithoutLength):
    def __len__(self) -> int:
        raise RuntimeError("nobody counted")


class LargerThanAnyMemory(WithoutLength):
    def __len__(self) -> int:
        return 10**15


def vast() -> TensorDataset:
    """10^14 samples on one word of memory; whole numbers, so that nobody looks for NaN in them."""
    word = torch.zeros(1, dtype=torch.int8)
    return TensorDataset(word.expand(10**14, 4), word.expand(10**14))


class TakesWholeNumbers(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x.float())


def distance_to_whole_numbers(output: Tensor, target: Tensor) -> Tensor:
    return (output[:, 0] - target).square().mean()


def nothing() -> None:
    """A factory that forgot its return."""


# ---- exceptions below libraries: the line to show is one of this file ------------------------------------------------


class RaisesBelowTorch(Net):
    """torch's own frames are the last ones: the shapes do not fit."""

    def forward(self, x: Tensor) -> Any:
        return self.last(x)  # the line of a shape


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        raise ArithmeticError("no way back")


class RaisesInBackward(Net):
    def forward(self, x: Tensor) -> Any:
        return _Backward.apply(super().forward(x))


class LoadsNothing(Net):
    def __init__(self) -> None:
        super().__init__()
        self.load_state_dict({})  # the line of missing keys


def raises_in_a_loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.nll_loss(output, target[:1])  # the line of a loss


def raises_in_a_transform(x: Tensor, y: Tensor) -> Any:
    return x[:, 99], y  # the line of a transform


def raises_in_a_metric(outputs: Tensor, targets: Tensor) -> float:
    raise LookupError("nothing to compare")


def raises_in_collate(records: list[Any]) -> Any:
    return torch.stack([record["x"] for record in records])  # the line of a collate


class RaisesInStep(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise RuntimeError("not today")


class RowsRaise(Items):
    def rows(self, start: int, stop: int) -> Any:
        raise EOFError("the file ended")


class StreamRaises(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield torch.zeros(4), 0
        raise ConnectionError("the server left")


class BelowALibrary(Items):
    """json's own frames are the last ones."""

    def _bad(self, x: Tensor, y: int) -> Any:
        return json.loads("{not json")  # the line of a library


class WithACause(Items):
    def _bad(self, x: Tensor, y: int) -> Any:
        try:
            return {}["picture"]
        except KeyError as error:
            raise ValueError("no picture") from error
