"""Outputs of several tensors: their names, and the same structure again around other tensors."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

from hogwild.errors import ModelError
from hogwild.training.outputs import AllOutputs, described, joined, leaves_of, mapped, of_rows

Pair = namedtuple("Pair", "left right")
A, B, C = torch.arange(6.0).reshape(3, 2), torch.arange(3), torch.tensor(0.5)


@dataclass
class Answer:
    logits: Tensor
    score: Any = None
    note: str = "as it was"


@dataclass(frozen=True, slots=True)
class Frozen:
    logits: Tensor
    score: Any


CASES: list[tuple[Any, list[str]]] = [
    (A, [""]),
    ({"logits": A, "score": B}, ["logits", "score"]),
    (OrderedDict(b=A, a=B), ["b", "a"]),
    ((A, B), ["output.0", "output.1"]),
    ([A, {"x": B}], ["output.0", "output.1.x"]),
    (Pair(A, B), ["left", "right"]),
    (Answer(A, B), ["logits", "score"]),
    (Frozen(A, {"deep": (A, B)}), ["logits", "score.deep.0", "score.deep.1"]),
    (torch.max(A, 1), ["output.0", "output.1"]),
    ({"a": {"b": A}, "a.b": B}, ["a.b", "a.b_"]),
    ({"": A, 'a "b"\n': B}, ["output.", 'a "b"\n']),
    ({7: A, "temperature": 2.0, "nothing": None}, ["output.7"]),
    (MappingProxyType({"a": A}), ["a"]),
]


@pytest.mark.parametrize(("output", "names"), CASES)
def test_each_tensor_has_a_name_and_the_structure_stays(output: Any, names: list[str]) -> None:
    leaves = leaves_of(output)
    assert [*leaves] == names
    twice = mapped(output, lambda _, one: one * 2)
    assert type(twice) is (dict if isinstance(output, MappingProxyType) else type(output)) and twice is not output
    assert all(torch.equal(one, 2 * leaves[name]) for name, one in leaves_of(twice).items())
    whole = joined([output, output, output])
    assert type(whole) is type(twice)
    assert all(torch.equal(one, torch.cat([leaves[name]] * 3)) for name, one in leaves_of(whole).items())


@pytest.mark.parametrize("output", [case for case, _ in CASES])
def test_the_outputs_of_all_samples_have_the_form_of_one_batch(output: Any) -> None:
    like = mapped(output, lambda _, one: one[:0])
    whole = AllOutputs.of(like, 5)
    empty = whole.empty()
    assert [one.shape for one in leaves_of(empty).values()] == [
        (5, *one.shape[1:]) for one in leaves_of(output).values()
    ]
    assert whole.nbytes >= sum(one.nbytes for one in leaves_of(empty).values())
    assert all(field.offset % 64 == 0 for field in whole.fields)


def test_what_is_no_tensor_stays_and_a_tensor_without_rows_is_none() -> None:
    found = of_rows(Answer(A, {"sum": C, "state": torch.zeros(1, 3)}), 3)
    assert found.logits is A and found.score == {"sum": None, "state": None} and found.note == "as it was"
    assert described(found) == "logits (B, 2)" and described(A) == "(B, 2)"


@pytest.mark.parametrize("other", [{"a": A[:, :1]}, {"b": A}])
def test_rows_of_other_shapes_are_told(other: Any) -> None:
    with pytest.raises(ModelError, match="output a is") as raised:
        joined([{"a": A}, other])
    assert raised.value.code == "model/output-shape"
