"""Evaluation sums: however a set is cut into batches, the result is that of the whole set in one."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hogwild.errors import BuildError, UsageError
from hogwild.losses import HingeLoss, LogisticLoss
from hogwild.metrics.loss_sums import WeightedLoss
from hogwild.metrics.panel import Panel, meets, named
from hogwild.metrics.result_row import WORDS, EvalSums

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

NOBODY = nn.Identity()  # a model that names no metrics

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


def sums_over(case: Case, cuts: Iterable[int], metrics: list[Any] | None = None) -> EvalSums:
    loss, output, target = case
    edges = sorted({0, N, *cuts})
    panel = Panel.of(None if metrics is None else named(metrics), NOBODY, loss)
    return sum((panel.add(output[a:b], target[a:b], loss) for a, b in pairwise(edges)), EvalSums())


def values_over(case: Case, cuts: Iterable[int] = (), metrics: list[Any] | None = None) -> dict[str, float]:
    """Sums over the slices, and scores of the whole where a metric needs that."""
    loss, output, target = case
    panel = Panel.of(None if metrics is None else named(metrics), NOBODY, loss)
    return panel.values(sums_over(case, cuts, metrics), panel.score(output, target, loss))


def metrics_for(loss: Any) -> tuple[str, ...]:
    return Panel.of(None, NOBODY, loss).reported


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss by both:UserWarning")
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(1, N - 1), max_size=12))
def test_any_slicing_gives_the_loss_of_the_whole_set(name: str, cuts: list[int]) -> None:
    loss, output, target = CASES[name]
    whole = loss(output, target)  # in float32: good to six digits
    assert values_over(CASES[name], cuts)["loss"] == pytest.approx(float(whole), rel=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "accuracy" in metrics_for(case[0])])
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(1, N - 1), max_size=12))
def test_any_slicing_counts_exactly_what_the_whole_set_counts(name: str, cuts: list[int]) -> None:
    whole, cut = sums_over(CASES[name], []), sums_over(CASES[name], cuts)
    assert cut.words[2:4] == whole.words[2:4]
    assert whole.words[3] > 0


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_reduction_of_a_classification_loss_does_not_change_the_accuracy(reduction: str) -> None:
    values = values_over((nn.CrossEntropyLoss(reduction=reduction), LOGITS, CLASSES))
    assert values["accuracy"] == float((LOGITS.argmax(1) == CLASSES).double().mean())
    assert values["loss"] == pytest.approx(float(F.cross_entropy(LOGITS, CLASSES)), rel=1e-6)


def test_a_summed_loss_is_reported_per_sample() -> None:
    values = values_over((nn.MSELoss(reduction="sum"), LOGITS, PROBABILITIES))
    assert values["loss"] == pytest.approx(float((LOGITS - PROBABILITIES).pow(2).sum()) / N, rel=1e-6)


def test_ignored_targets_are_neither_right_nor_wrong() -> None:
    _, _, right, judged, *_ = sums_over((nn.CrossEntropyLoss(), LOGITS, SOME_IGNORED), []).words
    kept = SOME_IGNORED != -100
    assert judged == float(kept.sum()) < N
    assert right == float((LOGITS.argmax(1) == CLASSES)[kept].sum())


def test_a_batch_of_which_everything_is_ignored_changes_nothing() -> None:
    case = (nn.CrossEntropyLoss(), LOGITS, torch.full((N,), -100))
    assert sums_over(case, []) == EvalSums()
    assert math.isnan(values_over(case)["loss"]) and "accuracy" not in values_over(case)


def test_a_yes_is_above_zero_for_logits_and_above_a_half_for_probabilities() -> None:
    right = float(((LOGITS > 0) == (YES_NO > 0.5)).sum())
    for loss, output in ((nn.BCEWithLogitsLoss(), LOGITS), (nn.BCELoss(), LOGITS.sigmoid())):
        assert sums_over((loss, output, YES_NO), []).words[2:4] == (right, N * C)


def test_the_loss_given_is_not_changed() -> None:
    loss = nn.CrossEntropyLoss(weight=WEIGHT.clone())
    values_over((loss, LOGITS, CLASSES))
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
    assert values_over((Focal(), LOGITS, CLASSES), [10])["loss"] == pytest.approx(
        float(Focal()(LOGITS, CLASSES)), rel=1e-6
    )
    assert sums.words[3] == N and metrics_for(Focal()) == ("loss", "accuracy")


def test_a_loss_per_sample_is_averaged_over_all_samples() -> None:
    values = values_over((PerSample(), LOGITS, PROBABILITIES), [5, 6, 30])
    expected = float((LOGITS - PROBABILITIES).pow(2).sum(1).mean())
    assert values["loss"] == pytest.approx(expected, rel=1e-6)
    assert metrics_for(PerSample()) == ("loss",)


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        (nn.CrossEntropyLoss(), ("loss", "accuracy")),
        (nn.NLLLoss(), ("loss", "accuracy")),
        (nn.BCEWithLogitsLoss(), ("loss", "accuracy")),
        (nn.BCELoss(), ("loss", "accuracy")),
        (F.cross_entropy, ("loss", "accuracy")),
        (nn.MSELoss(), ("loss", "rmse")),
        (F.mse_loss, ("loss", "rmse")),
        (nn.HuberLoss(), ("loss", "rmse")),
        (nn.L1Loss(), ("loss", "mae")),
        (F.l1_loss, ("loss", "mae")),
        (abs, ("loss",)),
    ],
)
def test_which_metrics_are_reported_follows_from_the_loss(loss: Any, names: tuple[str, ...]) -> None:
    assert metrics_for(loss) == names


def test_what_is_finalized_has_the_names_promised() -> None:
    for case in CASES.values():
        assert tuple(values_over(case)) == metrics_for(case[0])


class Flattened(nn.CrossEntropyLoss):
    """A language model's loss: output (B, T, C), target (B, T)."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return super().forward(output.flatten(0, 1), target.flatten())


def test_a_language_models_classes_are_in_the_last_dimension() -> None:
    output, target = PIXELS.flatten(2).transpose(1, 2), PIXEL_CLASSES.flatten(1)
    values = values_over((Flattened(), output, target), [7])
    assert values["loss"] == pytest.approx(float(F.cross_entropy(PIXELS, PIXEL_CLASSES)), rel=1e-6)
    assert values["accuracy"] == float((PIXELS.argmax(1) == PIXEL_CLASSES).double().mean())


def test_what_suits_the_loss_but_not_the_outputs_is_left_out() -> None:
    narrow = torch.randn(N, 3, 2)  # cross-entropy in a loss of the user's own, which makes what it needs of it
    panel = Panel.of(None, NOBODY, Flattened())
    assert panel.select_metrics(PIXELS, PIXEL_CLASSES, nn.CrossEntropyLoss()).names == ("accuracy",)
    own = Panel.of(named(["accuracy"]), NOBODY, lambda output, target: output.sum() * 0)
    with pytest.raises(BuildError, match=r"accuracy: neither a class nor a binary problem.*\(37, 3, 2\)") as raised:
        own.select_metrics(narrow, torch.rand(N), lambda output, target: output.sum() * 0)
    assert raised.value.code == "model/metric"


def test_no_gradient_is_recorded() -> None:
    output = LOGITS.clone().requires_grad_()
    values_over((nn.CrossEntropyLoss(), output, CLASSES), metrics=["auc", "log_loss"])
    assert output.grad is None


@given(words=st.lists(st.floats(allow_nan=False), min_size=WORDS, max_size=WORDS))
def test_a_row_of_shared_memory_holds_the_sums_exactly(words: list[float]) -> None:
    table = np.zeros((3, WORDS))
    EvalSums.of(words).write(table[1])
    assert EvalSums.read(table[1]) == EvalSums.of(words)
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
    assert meets(metrics, target, {"loss": False, "accuracy": True}) is expected


# ---- metrics that are asked for -------------------------------------------------------------------------------------

SUMS = ["accuracy", "top1", "top3", "log_loss", "perplexity"]


@pytest.mark.slow
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(1, N - 1), max_size=12))
def test_any_slicing_gives_the_metrics_of_the_whole_set(cuts: list[int]) -> None:
    whole = values_over(CASES["ce ignored"], [], SUMS)
    assert values_over(CASES["ce ignored"], cuts, SUMS) == pytest.approx(whole, rel=1e-12)
    numbers = ["rmse", "mae"]
    assert values_over(CASES["mse"], cuts, numbers) == pytest.approx(values_over(CASES["mse"], [], numbers), rel=1e-6)


def test_metrics_that_are_sums_against_their_definitions() -> None:
    kept = SOME_IGNORED != -100
    logits, wanted = LOGITS[kept], SOME_IGNORED[kept]
    values = values_over((nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1), LOGITS, SOME_IGNORED), [9], SUMS)
    surprise = float(F.cross_entropy(logits.double(), wanted))
    in_order = logits.argsort(1, descending=True)
    assert values["log_loss"] == pytest.approx(surprise, rel=1e-12)
    assert values["perplexity"] == pytest.approx(math.exp(surprise), rel=1e-12)
    assert values["accuracy"] == values["top1"] == float((in_order[:, 0] == wanted).double().mean())
    assert values["top3"] == float((in_order[:, :3] == wanted[:, None]).any(1).double().mean())
    values = values_over((nn.MSELoss(), LOGITS, PROBABILITIES), [9], ["rmse", "mae"])
    assert values["rmse"] == pytest.approx(float((LOGITS - PROBABILITIES).double().pow(2).mean().sqrt()), rel=1e-6)
    assert values["mae"] == pytest.approx(float((LOGITS - PROBABILITIES).double().abs().mean()), rel=1e-6)


def test_log_loss_of_yes_and_no_is_the_same_from_logits_and_from_probabilities() -> None:
    ours = [
        values_over((loss, output, YES_NO.double()), [4], ["log_loss"])["log_loss"]
        for loss, output in ((nn.BCEWithLogitsLoss(), LOGITS.double()), (nn.BCELoss(), LOGITS.double().sigmoid()))
    ]
    assert ours == pytest.approx([float(F.binary_cross_entropy_with_logits(LOGITS.double(), YES_NO.double()))] * 2)


def area_by_definition(scores: Tensor, wanted: Tensor) -> float:
    """Return the share of pairs in which a positive is above a negative, ties counting half: every pair is looked
    at."""
    above = scores[wanted][:, None] - scores[~wanted][None, :]
    return float(((above > 0).double() + (above == 0).double() / 2).mean())


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30))
def test_the_area_under_the_curve_is_that_of_all_pairs_ties_included(pairs: list[tuple[int, bool]]) -> None:
    output = torch.tensor([[float(score)] for score, _ in pairs])
    wanted = torch.tensor([[float(answer)] for _, answer in pairs])
    value = values_over((nn.BCEWithLogitsLoss(), output, wanted), metrics=["auc"])["auc"]
    if len({answer for _, answer in pairs}) == 1:
        assert math.isnan(value)
    else:
        assert value == pytest.approx(area_by_definition(output[:, 0], wanted[:, 0] > 0.5))


def test_the_area_of_two_classes_and_of_several() -> None:
    two = CLASSES % 2
    value = values_over((nn.CrossEntropyLoss(), LOGITS[:, :2], two), metrics=["auc"])["auc"]
    assert value == pytest.approx(area_by_definition(LOGITS[:, 1] - LOGITS[:, 0], two == 1))
    shares = LOGITS.double().softmax(1)
    expected = sum(area_by_definition(shares[:, c], c == CLASSES) for c in range(C)) / C
    assert values_over((nn.CrossEntropyLoss(), LOGITS, CLASSES), metrics=["auc"])["auc"] == pytest.approx(expected)


def f1_by_definition(predicted: list[int], wanted: list[int]) -> float:
    scores = []
    for each in sorted({*predicted, *wanted}):
        hits = sum(p == w == each for p, w in zip(predicted, wanted, strict=True))
        precision, recall = hits / max(1, predicted.count(each)), hits / max(1, wanted.count(each))
        scores.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    return sum(scores) / len(scores)


def test_the_calibration_error_compares_ten_groups_of_probabilities_with_what_came_true() -> None:
    draw = np.random.default_rng(0)
    chance = draw.random(1000).round(3)
    came_true = draw.random(1000) < chance**2
    logits = torch.from_numpy(np.log((chance + 1e-6) / (1 - chance + 1e-6))).float()
    wanted = torch.from_numpy(came_true).float()
    found = values_over((nn.BCEWithLogitsLoss(), logits, wanted), metrics=["calibration_error"])["calibration_error"]
    order = np.argsort(chance)
    parts = [abs((chance[part] - came_true[part]).sum()) for part in np.array_split(order, 10)]
    assert found == pytest.approx(sum(parts) / 1000, rel=0.02) and 0.1 < found < 0.3  # ties may cross a border
    constant = torch.zeros(1000), torch.tensor([0.0, 1.0]).repeat_interleave(500)  # one group, whatever their order
    assert values_over((nn.BCEWithLogitsLoss(), *constant), metrics=["calibration_error"])["calibration_error"] == 0.0
    sure = torch.tensor([[9.0, -9.0, -9.0]]).repeat(4, 1)
    found = values_over((nn.CrossEntropyLoss(), sure, torch.tensor([0, 0, 0, 2])), metrics=["calibration_error"])
    assert found["calibration_error"] == pytest.approx(0.25, abs=1e-6)


def test_macro_f1_is_the_mean_over_the_classes_that_occur() -> None:
    expected = f1_by_definition(LOGITS.argmax(1).tolist(), CLASSES.tolist())
    assert values_over((nn.NLLLoss(), LOGITS, CLASSES), metrics=["macro_f1"])["macro_f1"] == pytest.approx(expected)
    wide = torch.cat([LOGITS, torch.full((N, 1), -9.0)], 1)  # a class that nobody predicts and nothing is
    assert values_over((nn.NLLLoss(), wide, CLASSES), metrics=["macro_f1"])["macro_f1"] == pytest.approx(expected)
    column = LOGITS[:, :1], YES_NO[:, :1]
    expected = f1_by_definition((column[0][:, 0] > 0).long().tolist(), column[1][:, 0].long().tolist())
    found = values_over((nn.BCEWithLogitsLoss(), *column), metrics=["macro_f1"])["macro_f1"]
    assert found == pytest.approx(expected)


def spread(outputs: Tensor, targets: Tensor) -> float:
    return float(outputs.max() - outputs.min()) + len(targets)


def test_a_function_of_the_users_own_gets_all_outputs_and_targets_at_once() -> None:
    values = values_over((nn.CrossEntropyLoss(), LOGITS, CLASSES), [3, 20], ["accuracy", spread])
    assert tuple(values) == ("loss", "accuracy", "spread")
    assert values["spread"] == pytest.approx(float(LOGITS.max() - LOGITS.min()) + N)


def test_what_a_metric_is_called_and_which_way_is_better() -> None:
    panel = Panel.of(named([spread, "auc", "rmse", "top7"]), NOBODY, nn.CrossEntropyLoss())
    assert [panel.higher_is_better(name) for name in panel.reported] == [False, None, True, False, True]
    assert list(named([spread, "auc", nn.Identity()])) == ["spread", "auc", "Identity"]


def test_a_model_may_name_its_metrics() -> None:
    model = nn.Identity()
    model.metrics = ["macro_f1", spread]  # type: ignore[assignment]
    assert Panel.of(None, model, nn.CrossEntropyLoss()).reported == ("loss", "macro_f1", "spread")
    model.metrics = {"accuracy": 3}  # type: ignore[assignment]  # something else of the same name
    assert Panel.of(None, model, nn.CrossEntropyLoss()).reported == ("loss", "accuracy")
    with pytest.raises(UsageError, match="no such metric: nosuch"):
        Panel.of(named(["nosuch"]), model, nn.CrossEntropyLoss())


# ---- weights of samples ----------------------------------------------------------------------------------------------

REPEATED = {
    **{name: case for name, case in CASES.items() if name != "own function"},
    "ce summed": (nn.CrossEntropyLoss(reduction="sum"), LOGITS, CLASSES),
    "logistic": (LogisticLoss(positive_weight=3.0), LOGITS[:, 0], YES_NO[:, 0]),
    "hinge": (HingeLoss(), LOGITS[:, 0], YES_NO[:, 0]),
    "one answer": (nn.BCEWithLogitsLoss(), LOGITS[:, :1], YES_NO[:, :1]),
}
TIMES = st.lists(st.integers(0, 3), min_size=N, max_size=N).map(torch.tensor).filter(lambda times: times.sum() > 0)


def suiting(loss: Any, output: Tensor, target: Tensor) -> Panel:
    names = ("accuracy", "log_loss", "auc", "calibration_error", "macro_f1", "top2", "rmse", "mae")
    return replace(Panel.of(named(names), NOBODY, loss), is_auto=True).select_metrics(output, target, loss)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss by both:UserWarning")
@pytest.mark.parametrize("name", REPEATED)
@settings(max_examples=15)
@given(times=TIMES)
def test_a_weight_of_a_whole_number_is_the_sample_so_often(name: str, times: Tensor) -> None:
    """In the loss, its gradient and every metric; zero leaves it out."""
    loss, output, target = REPEATED[name]
    panel, weight = suiting(loss, output, target), times.float()
    repeated = output.repeat_interleave(times, 0), target.repeat_interleave(times, 0)
    edges = [0, 5, 20, N]
    sums = sum((panel.add(output[a:b], target[a:b], loss, weight[a:b]) for a, b in pairwise(edges)), EvalSums())
    found = panel.values(sums, panel.score(output, target, loss, weight))
    expected = panel.values(panel.add(*repeated, loss), panel.score(*repeated, loss))
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True)
    if math.isnan(expected["loss"]) or loss is F.cross_entropy:  # a function: its module is tried as such
        return
    theirs, ours = (output.clone().requires_grad_() for _ in range(2))
    whole = loss(theirs.repeat_interleave(times, 0), repeated[1])
    whole = whole / weight.mean() if getattr(loss, "reduction", "") == "sum" else whole
    value = WeightedLoss(loss, float(weight.mean()))(ours, target, weight)
    torch.testing.assert_close(value, whole, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(*(torch.autograd.grad(one, of)[0] for one, of in ((value, ours), (whole, theirs))))


def test_batches_of_weighted_samples_add_up_to_the_whole_and_a_common_factor_changes_nothing() -> None:
    weight = torch.rand(N, generator=torch.Generator().manual_seed(1)) + 0.1
    loss = WeightedLoss(nn.MSELoss(), float(weight.mean()))
    whole = loss(LOGITS, PROBABILITIES, weight)
    parts = sum(loss(LOGITS[i : i + 1], PROBABILITIES[i : i + 1], weight[i : i + 1]) for i in range(N)) / N
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(
        WeightedLoss(nn.MSELoss(), float(8 * weight.mean()))(LOGITS, PROBABILITIES, 8 * weight), whole
    )
    assert float(loss(LOGITS, PROBABILITIES, torch.zeros(N))) == 0.0


def test_a_loss_that_says_nothing_of_single_samples_cannot_be_weighted() -> None:
    with pytest.raises(BuildError, match=r"by_sample\(output, target\)"):
        WeightedLoss(lambda output, target: (output - target).mean(), 1.0)
    assert WeightedLoss(F.cross_entropy, 1.0).loss.__class__ is nn.CrossEntropyLoss
