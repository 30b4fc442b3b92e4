"""Records on their way into a slot of the ring: what comes out is the same whether they are looked at one by one, as
nested ones are, or field by field; and what does not fit together is named."""

from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hogwild.feeds import collate
from hogwild.feeds.collate import BadBatch, Collator
from hogwild.feeds.ring import Ring, RingSpec

Pair = namedtuple("Pair", "x y")
THREE = torch.arange(3.0)

PLAIN: dict[str, Sequence[Any]] = {
    "tensors": [(THREE + n, torch.tensor(n)) for n in range(4)],
    "lists among tuples": [(THREE, torch.tensor(0)), [THREE + 1, torch.tensor(1)]],
    "named tuples": [Pair(THREE + n, n) for n in range(4)],
    "arrays": [(np.arange(3, dtype=np.int16) + n, n) for n in range(4)],
    "numbers": [(n, n + 0.5) for n in range(4)],
    "whole and broken numbers": [(THREE, 1), (THREE, 1.5)],
    "numpy's numbers": [(np.float64(n), np.int32(n), True) for n in range(4)],
    "gradients": [(THREE.clone().requires_grad_(), n) for n in range(4)],
}


def put(records: Sequence[Any], first: Sequence[Any] | None = None) -> tuple[list[Tensor], Any]:
    """(leaves in a slot, the batch) of a ring whose form is that of `first`."""
    collator = Collator()
    form, shapes = collator.form(list(first or records))
    ring = Ring.allocate("ring", RingSpec(form, 1, 0, form.nbytes(shapes) + 4096))
    rows, shapes = collator.put(list(records), ring, 0)
    ring.seal(0, rows, shapes)
    leaves = [leaf.clone() for leaf in ring.leaves(0)]
    return leaves, form.batch(leaves, 0, rows)


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_records_are_collated_as_nested_ones(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick, batch = put(PLAIN[kind])
    assert batch.size == len(PLAIN[kind]) and len(batch.inputs) == len(quick) - 1
    monkeypatch.setattr(collate, "_plain_fields", lambda records: None)
    slow, _ = put(PLAIN[kind])
    assert [leaf.dtype for leaf in quick] == [leaf.dtype for leaf in slow]
    assert all(torch.equal(mine, its) for mine, its in zip(quick, slow, strict=True))


def test_nested_records_keep_their_nesting() -> None:
    _, batch = put([({"a": THREE + n, "b": (n, THREE)}, n) for n in range(4)])
    ((inputs),) = batch.inputs
    assert inputs["a"].shape == (4, 3) and inputs["b"][0].tolist() == [0, 1, 2, 3]
    assert batch.target.tolist() == [0, 1, 2, 3]


UNLIKE: dict[str, tuple[Any, int, str]] = {
    "another shape": ((torch.zeros(4), 1), 2, r"field 0 is \(4,\) float32"),
    "another type": ((THREE.double(), 1), 2, r"field 0 is \(3,\) float64"),
    "an array among tensors": ((THREE.numpy(), 1), 2, "field 0 is"),
    "a text": ((THREE, "1"), 2, "field 1 is a str"),
    "a field more": ((THREE, 1, 2), 2, "is nested as"),
    "nested": (((THREE, THREE), 1), 2, "is nested as"),
    "no tuple": (THREE, 2, "is a Tensor; a record is a tuple"),
    "a single field": ((THREE,), 2, "is a tuple; a record is a tuple"),
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_a_record_unlike_the_first_of_its_batch_is_named(kind: str) -> None:
    record, number, words = UNLIKE[kind]
    with pytest.raises(BadBatch, match=words) as caught:
        put([(THREE, 0), (THREE, 1), record, (THREE, 3)], first=[(THREE, 0)])
    assert caught.value.record == number


@pytest.mark.parametrize("records", [[(THREE, THREE, 0)], [((THREE, THREE), 0)]])
def test_a_batch_nested_otherwise_than_the_first_is_refused(records: list[Any]) -> None:
    with pytest.raises(BadBatch, match="the first batch as"):
        put(records, first=[(THREE, 0)])
