"""A model at work on blocks of inputs, in this process or in any that gets a copy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hogwild.data.input_rows import InputRows
from hogwild.errors import HogwildError, ModelError, UsageError
from hogwild.inference.answer_file import Encode
from hogwild.inference.inputs import Cut, Inputs
from hogwild.inference.scores import Meaning, Scores
from hogwild.training.evaluator import evaluating
from hogwild.training.model_steps import forward_of
from hogwild.user_code import raised_text

Part = tuple[int, bytes]  # number of rows, and their encoded answer


@dataclass(frozen=True, slots=True)
class Predictor:
    """A model, its inputs and the meaning of its outputs."""

    model: nn.Module
    inputs: Inputs
    meaning: Meaning

    def parts(self, encode: Encode) -> Iterator[Part]:
        """Yield the answers of all blocks, in the order of the rows."""
        for number, block in enumerate(self.inputs.blocks()):
            yield self._part(encode, block, number == 0)

    def scores(self) -> Iterator[Scores]:
        """Yield the answers of all blocks as scores."""
        for block in self.inputs.blocks():
            yield self.meaning.scores(block, outputs_of(self.model, block.inputs))

    def part(self, encode: Encode, cut: Cut, is_first: bool) -> Part:
        """Return the answer for one block, which `inputs.cuts` names."""
        return self._part(encode, self.inputs.read(cut), is_first)

    def _part(self, encode: Encode, block: InputRows, is_first: bool) -> Part:
        scores = self.meaning.scores(block, outputs_of(self.model, block.inputs))
        return len(scores.values), encode(scores, is_first)

    def tensors(self) -> Iterator[Tensor]:
        """Yield the answers of all blocks as tensors (n, …)."""
        for block in self.inputs.blocks():
            yield self.meaning.probabilities(outputs_of(self.model, block.inputs))


def outputs_of(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    """Return the model's outputs (n, …) for a block. Raises ModelError for a model that cannot take the inputs, and
    UsageError for one that does not return a tensor with a row for each."""
    try:
        with evaluating(model):
            output: Any = forward_of(model)(*inputs)
    except HogwildError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{tuple(one.shape)} {str(one.dtype).removeprefix('torch.')}" for one in tree_leaves(inputs))
        raise ModelError(
            f"{type(model).__name__} cannot take the inputs ({shapes}): {raised_text(error)}",
            code="model/forward-failed",
        ) from error
    if not isinstance(output, Tensor) or not output.dim():
        got = "one number" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise UsageError(f"{type(model).__name__} returns {got}, not one tensor per batch", code="usage/no-predictions")
    return output.clone()  # a model may reuse its buffer
