"""The targets that a loss takes. A loss that compares signs or ranges computes a number from any target: labels 1 and 2
would both be positive, and the accuracy 1.

CrossEntropyLoss, NLLLoss, MultiMarginLoss       class numbers from 0 on, and the ignored one
MultiLabelMarginLoss                             the same, and -1
CrossEntropyLoss with probabilities, BCELoss, BCEWithLogitsLoss, MultiLabelSoftMarginLoss     0 to 1
LogisticLoss, HingeLoss                          0 and 1, or -1 and 1
SoftMarginLoss, HingeEmbeddingLoss               -1 and 1
PoissonNLLLoss, KLDivLoss                        0 or more; with log_target 0 or less
BprLoss, WarpLoss                                more than 0; data in memory lose the others (`job.packed_data`)
any other                                        any number"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from torch import Tensor, nn

from hogwild.losses import BprLoss, HingeLoss, LogisticLoss, WarpLoss
from hogwild.metrics.loss_sums import BY_CLASS, is_torch_loss

AT_ONCE = 1 << 24  # elements per check: keeps the temporaries small
PROBABLE = (nn.BCELoss, nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss)
NUMBERED = (nn.MultiMarginLoss, nn.MultiLabelMarginLoss)
ABOVE_0 = 2.0**-126  # the least normal number of float32
ZERO_ONE, SIGNS = (0, 1), (-1, 1)


@dataclass(frozen=True, slots=True)
class Labels:
    """The valid targets: numbers from `least` to `most`, or of one of the `pairs` if there are any; and `ignored`.
    `classes`: of the model, if they are class numbers."""

    loss: str
    least: float = -inf
    most: float = inf
    pairs: tuple[tuple[int, int], ...] = ()
    ignored: int | None = None
    classes: int = 0

    @classmethod
    def of(cls, loss: Any, output: tuple[int, ...], target: Tensor, *, is_judged: bool = False) -> "Labels | None":
        """Return the rule for a loss, as a module, of outputs (B, …) and targets (B, …); None if any number will do.
        `is_judged`: a metric reads the targets as classes, or as yes and no, whatever the loss is."""
        name, is_whole = type(loss).__name__, not target.is_floating_point()
        if isinstance(loss, BY_CLASS + NUMBERED):
            if len(output) < 2:
                return None
            if is_whole:
                least = -1 if isinstance(loss, nn.MultiLabelMarginLoss) else 0
                return cls(name, least, output[1] - 1, (), getattr(loss, "ignore_index", None), output[1])
            return cls(name, 0, 1) if tuple(target.shape[1:]) == output[1:] else None
        if getattr(type(loss), "forward", None) in (LogisticLoss.forward, HingeLoss.forward):
            return cls(name, pairs=(ZERO_ONE, SIGNS))
        if isinstance(loss, BprLoss | WarpLoss):
            return cls(name, ABOVE_0)
        if is_torch_loss(loss):
            if isinstance(loss, PROBABLE):
                return cls(name, 0, 1)
            if isinstance(loss, nn.SoftMarginLoss | nn.HingeEmbeddingLoss):
                return cls(name, pairs=(SIGNS,))
            if isinstance(loss, nn.PoissonNLLLoss | nn.KLDivLoss):
                return cls(name, -inf, 0) if getattr(loss, "log_target", False) else cls(name, 0, inf)
            return None
        if is_judged and is_whole and tuple(target.shape[1:]) == output[1:]:
            return cls("evaluate.metrics", pairs=(ZERO_ONE, SIGNS))
        return None

    def narrowed(self, target: Tensor) -> "Labels":
        """Return the rule after some targets: the pairs that hold all of them."""
        kept = tuple(pair for pair in self.pairs if not self._wrong(target, pair).any())
        return replace(self, pairs=kept or self.pairs)

    def wrong(self, target: Tensor) -> tuple[int, float] | None:
        """Return (row, value) of the first invalid target in (B, …), or None."""
        begin, rows = 0, max(1, AT_ONCE // max(1, target[:1].numel()))
        pairs = self.narrowed(target).pairs
        for some in target.split(rows):
            if (is_wrong := self._wrong(some, pairs[0] if pairs else None)).any():
                row = int(is_wrong.reshape(len(some), -1).any(dim=1).nonzero()[0])
                return begin + row, some[row][is_wrong[row]].reshape(-1)[0].item()
            begin += len(some)
        return None

    def ends_of(self, target: Tensor) -> set[float]:
        """Return the least and the largest of the targets that are not ignored; of a loss that does not divide samples
        into classes -inf and inf."""
        if self.most == inf and not self.pairs:
            return {-inf, inf}
        kept = target if self.ignored is None else target[target.long() != self.ignored]
        return {float(kept.min()), float(kept.max())} if kept.numel() else set()

    def describe(self, value: float, names: Sequence[Any] = ()) -> str:
        """Return what is wrong with a label. `names`: the labels as they are in the file, if they were numbered."""
        name = f" ({names[int(value)]} in the file)" if 0 <= value < len(names) else ""
        if self.classes:
            return f"{value}{name}; the model has {self.classes} outputs, so labels must be in [0, {self.classes - 1}]"
        if not self.pairs:
            least, most = f"{self.least:g}", f"{self.most:g}"
            rule = (
                f"from {least} to {most}"
                if inf not in (-self.least, self.most)
                else (f"from {least} on" if self.most == inf else f"up to {most}")
            )
            rule = "above 0: each sample is a like" if self.least == ABOVE_0 else rule
            return f"{value:g}{name}; {self.loss} takes numbers {rule}"
        rule = ", or ".join(f"{low} and {high}" for low, high in self.pairs)
        return (
            f"{value:g}{name}; {self.loss} takes two labels, {rule}. Change them in the data, or number the classes "
            "for CrossEntropyLoss (hogwild.data.LibSvm: labels: classes; Csv: categorical)"
        )

    def _wrong(self, target: Tensor, pair: tuple[int, int] | None) -> Tensor:
        """Return (B, …) of bool; `pair`: the only valid ones."""
        numbers = target if target.is_floating_point() else target.long()  # -1 is 255 beside uint8
        if pair is not None:
            return (numbers != pair[0]) & (numbers != pair[1])
        is_wrong = (numbers < self.least) | (numbers > self.most)
        return is_wrong if self.ignored is None else is_wrong & (numbers != self.ignored)
