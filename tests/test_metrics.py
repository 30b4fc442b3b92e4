"""Evaluation sums: however a set is cut into batches, the result is that of the whole set in one."""

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hogwild.errors import UsageError
from hogwild.metrics import WORDS, EvalSums, check_target, evaluate_batch, finalize, meets, metrics_for

N, C = 37, 4
GENERATOR = torch.Generator().manual_seed(3)
LOGITS = torch.randn(N, C, generator=GENERATOR)
CLASSES = torch.randint(0, C, (N,), generator=GENERATOR)
SOME_IGNORED = torch.where(torch.rand(N, generator=GENERATOR) < 0.3, -100, CLASSES)
ONLY_ZERO_IGNORED = CLASSES  # with ignore_index=0
WEIGHT = torch.tensor([0.1, 2.0, 1.0, 5.0])
PROBABILITIES = torch.rand(N, C, generator=GENERATOR).softmax(1)
YES_NO = (torch.rand(N, C, generator=GENERATOR) > 0.5).float()
PIXELS = torch.randn(N, C, 3, 2, generator=GENERATOR)
PIXEL_CLASSES = torch.randint(0, C, (N, 3, 2), generator=GENERATOR)

Case = tuple[Callable[..., Tensor], Tensor, Tensor]


def cases() -> Iterable[tuple[str, Case]]:
    """Losses whose value on the whole set, with reduction mean, is the truth."""
    yield "ce", (nn.CrossEntropyLoss(), LOGITS, CLASSES)
    yield "ce weighted", (nn.CrossEntropyLoss(weight=WEIGHT), LOGITS, CLASSES)
    yield "ce ignored", (nn.CrossEntropyLoss(), LOGITS, SOME_IGNORED)
    yield "ce both", (nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=0), LOGITS, ONLY_ZERO_IGNORED)
    yield "ce smoothed", (nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1), LOGITS, SOME_IGNORED)
    yield "ce probabilities", (nn.CrossEntropyLoss(weight=WEIGHT), LOGITS, PROBABILITIES)
    yield "ce pixels", (nn.CrossEntropyLoss(weight=WEIGHT), PIXELS, PIXEL_CLASSES)
    yield "nll", (nn.NLLLoss(weight=WEIGHT), LOGITS.log_softmax(1), SOME_IGNORED)
    yield "bce logits", (nn.BCEWithLogitsLoss(pos_weight=WEIGHT), LOGITS, YES_NO)
    yield "bce", (nn.BCELoss(), LOGITS.sigmoid(), YES_NO)
    yield "mse", (nn.MSELoss(), LOGITS, PROBABILITIES)
    yield "huber", (nn.HuberLoss(), LOGITS, PROBABILITIES)
    yield "multi margin", (nn.MultiMarginLoss(weight=WEIGHT), LOGITS, CLASSES)
    yield "kl mean", (nn.KLDivLoss(reduction="mean"), LOGITS.log_softmax(1), PROBABILITIES)
    yield "kl batchmean", (nn.KLDivLoss(reduction="batchmean"), LOGITS.log_softmax(1), PROBABILITIES)
    yield "function", (F.cross_entropy, LOGITS, SOME_IGNORED)
    yield "own function", (lambda output, target: (output - target).abs().mean(), LOGITS, PROBABILITIES)


CASES: dict[str, Case] = dict(cases())


def sums_over(case: Case, cuts: Iterable[int]) -> EvalSums:
    loss, output, target = case
    edges = sorted({0, N, *cuts})
    parts = [evaluate_batch(output[a:b], target[a:b], loss) for a, b in pairwise(edges)]
    return sum(parts, EvalSums())


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss by both:UserWarning")
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(1, N - 1), max_size=12))
def test_any_slicing_gives_the_loss_of_the_whole_set(name: str, cuts: list[int]) -> None:
    loss, output, target = CASES[name]
    whole = loss(output, target)  # in float32: good to six digits
    assert finalize(sums_over(CASES[name], cuts))["loss"] == pytest.approx(float(whole), rel=5e-6)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "accuracy" in metrics_for(case[0])])
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(1, N - 1), max_size=12))
def test_any_slicing_counts_exactly_what_the_whole_set_counts(name: str, cuts: list[int]) -> None:
    whole, cut = sums_over(CASES[name], []), sums_over(CASES[name], cuts)
    assert (cut.correct, cut.count) == (whole.correct, whole.count)
    assert whole.count > 0


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_reduction_of_a_classification_loss_does_not_change_the_accuracy(reduction: str) -> None:
    sums = evaluate_batch(LOGITS, CLASSES, nn.CrossEntropyLoss(reduction=reduction))
    assert finalize(sums)["accuracy"] == float((LOGITS.argmax(1) == CLASSES).double().mean())
    assert finalize(sums)["loss"] == pytest.approx(float(F.cross_entropy(LOGITS, CLASSES)), rel=1e-6)


def test_a_summed_loss_is_reported_per_sample() -> None:
    sums = evaluate_batch(LOGITS, PROBABILITIES, nn.MSELoss(reduction="sum"))
    assert finalize(sums)["loss"] == pytest.approx(float((LOGITS - PROBABILITIES).pow(2).sum()) / N, rel=1e-6)


def test_ignored_targets_are_neither_right_nor_wrong() -> None:
    sums = evaluate_batch(LOGITS, SOME_IGNORED, nn.CrossEntropyLoss())
    kept = SOME_IGNORED != -100
    assert sums.count == float(kept.sum()) < N
    assert sums.correct == float((LOGITS.argmax(1) == CLASSES)[kept].sum())


def test_a_batch_of_which_everything_is_ignored_changes_nothing() -> None:
    nothing = evaluate_batch(LOGITS, torch.full((N,), -100), nn.CrossEntropyLoss())
    assert nothing == EvalSums()
    assert math.isnan(finalize(nothing)["loss"]) and "accuracy" not in finalize(nothing)


def test_a_yes_is_above_zero_for_logits_and_above_a_half_for_probabilities() -> None:
    right = float(((LOGITS > 0) == (YES_NO > 0.5)).sum())
    for loss, output in ((nn.BCEWithLogitsLoss(), LOGITS), (nn.BCELoss(), LOGITS.sigmoid())):
        sums = evaluate_batch(output, YES_NO, loss)
        assert (sums.correct, sums.count) == (right, N * C)


def test_the_loss_given_is_not_changed() -> None:
    loss = nn.CrossEntropyLoss(weight=WEIGHT.clone())
    evaluate_batch(LOGITS, CLASSES, loss)
    assert loss.reduction == "mean" and loss.weight is not None and torch.equal(loss.weight, WEIGHT)


class Focal(nn.CrossEntropyLoss):
    """A user's own: inherits `reduction` but gives a mean of its own making."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        surprise = F.cross_entropy(output, target, reduction="none")
        return ((1 - torch.exp(-surprise)) ** 2 * surprise).mean()


class PerSample:
    """A callable that is no module and cannot be hashed; answers one loss per sample."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).pow(2).sum(1)


def test_a_subclass_with_a_forward_of_its_own_is_weighted_by_batch_size_and_keeps_its_accuracy() -> None:
    sums = sums_over((Focal(), LOGITS, CLASSES), [10])
    assert finalize(sums)["loss"] == pytest.approx(float(Focal()(LOGITS, CLASSES)), rel=1e-6)
    assert sums.count == N and metrics_for(Focal()) == ("loss", "accuracy")


def test_a_loss_per_sample_is_averaged_over_all_samples() -> None:
    sums = sums_over((PerSample(), LOGITS, PROBABILITIES), [5, 6, 30])
    expected = float((LOGITS - PROBABILITIES).pow(2).sum(1).mean())
    assert finalize(sums)["loss"] == pytest.approx(expected, rel=1e-6)
    assert metrics_for(PerSample()) == ("loss",)


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        (nn.CrossEntropyLoss(), ("loss", "accuracy")),
        (nn.NLLLoss(), ("loss", "accuracy")),
        (nn.BCEWithLogitsLoss(), ("loss", "accuracy")),
        (nn.BCELoss(), ("loss", "accuracy")),
        (F.cross_entropy, ("loss", "accuracy")),
        (nn.MSELoss(), ("loss",)),
        (F.mse_loss, ("loss",)),
        (abs, ("loss",)),
    ],
)
def test_which_metrics_are_reported_follows_from_the_loss(loss: Any, names: tuple[str, ...]) -> None:
    assert metrics_for(loss) == names


def test_what_is_finalized_has_the_names_promised() -> None:
    for loss, output, target in CASES.values():
        assert tuple(finalize(evaluate_batch(output, target, loss))) == metrics_for(loss)


class Flattened(nn.CrossEntropyLoss):
    """A language model's loss: output (B, T, C), target (B, T)."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return super().forward(output.flatten(0, 1), target.flatten())


def test_predictions_of_another_shape_than_the_targets_are_not_judged() -> None:
    output, target = PIXELS.flatten(2).transpose(1, 2), PIXEL_CLASSES.flatten(1)
    sums = evaluate_batch(output, target, Flattened())
    assert (sums.correct, sums.count) == (0.0, 0.0)
    expected = F.cross_entropy(PIXELS, PIXEL_CLASSES)
    assert finalize(sums)["loss"] == pytest.approx(float(expected), rel=1e-6)


def test_no_gradient_is_recorded() -> None:
    output = LOGITS.clone().requires_grad_()
    evaluate_batch(output, CLASSES, nn.CrossEntropyLoss())
    assert output.grad is None


@given(words=st.lists(st.floats(allow_nan=False), min_size=WORDS, max_size=WORDS))
def test_a_row_of_shared_memory_holds_the_sums_exactly(words: list[float]) -> None:
    table = np.zeros((3, WORDS))
    EvalSums(*words).write(table[1])
    assert EvalSums.read(table[1]) == EvalSums(*words)
    assert not table[0].any() and not table[2].any()


@pytest.mark.parametrize(
    ("metrics", "target", "expected"),
    [
        ({"loss": 0.2, "accuracy": 0.98}, {"accuracy": 0.98}, True),
        ({"loss": 0.2, "accuracy": 0.97}, {"accuracy": 0.98}, False),
        ({"loss": 0.2, "accuracy": 0.97}, {"loss": 0.2}, True),
        ({"loss": 0.3, "accuracy": 0.97}, {"loss": 0.2}, False),
        ({"loss": 0.3, "accuracy": 0.99}, {"loss": 0.2, "accuracy": 0.98}, False),
        ({"loss": math.nan}, {"loss": 0.2}, False),
        ({"loss": 0.0}, {}, False),
        ({"loss": 0.1}, {"accuracy": 0.5}, False),
    ],
)
def test_a_target_is_met_when_every_goal_is(
    metrics: dict[str, float], target: dict[str, float], expected: bool
) -> None:
    assert meets(metrics, target) is expected


def test_a_goal_that_is_not_reported_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"accuracy: not reported by this job; it reports loss"):
        check_target({"accuracy": 0.9}, metrics_for(nn.MSELoss()))
    check_target({"accuracy": 0.9, "loss": 0.1}, metrics_for(nn.NLLLoss()))
