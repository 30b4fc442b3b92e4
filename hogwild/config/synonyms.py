"""Names of other frameworks and first guesses, and what to write instead: keys, class paths, words. Job files have one
name for each thing; these only make the error name it. Torch-free."""

import re
from collections.abc import Collection, Iterator
from importlib import import_module
from typing import Any

from hogwild.config import torch_arguments
from hogwild.errors import did_you_mean

# What is meant -> the words for it. A word may mean several things: the place decides. Names that are only similar need
# no entry, nor do fields at another level and arguments of torch's optimizers and losses. At most 20 entries.
_WORDS = {
    "class_path": "name type class cls _target_",
    "init_args": "args kwargs params arguments",
    "train.epochs": "n_epochs num_epochs max_epochs",
    "train.max_updates": "steps max_steps iterations",
    "train.procs": "workers n_jobs nproc num_workers",
    "train.grad_clip": "clip max_grad_norm gradient_clip_val",
    "data.batch_size": "bs batch",
    "data.train": "dataset train_dataset",
    "data.val": "validation val_dataset",
    "data.val.fraction": "val_split validation_split",
    "data.loaders": "num_workers",
    "optimizer.init_args.lr": "learning_rate",
    "lr_schedule": "scheduler",
    "loss": "criterion val_loss",
    "accuracy": "acc val_accuracy",
    "evaluate.patience": "early_stopping",
    "cuda": "gpu",
    "fp16": "float16 half 16",
    "true": "yes on y",
    "false": "no off n",
}
_PACKAGES = {"model": "hogwild.models", "data": "hogwild.data"}


def meanings(word: object, among: Collection[str]) -> list[str]:
    """Return those of `among` for which `word` is another name."""
    return [name for name, words in _WORDS.items() if name in among and str(word).lower() in words.split()]


def class_paths(section: str, text: str) -> list[str]:
    """Return the class paths that someone who wrote `text` in `section` (model, loss, data, optimizer) may mean."""
    name, known = _plain(text.rpartition(".")[2], section), list(_known_classes(section))
    return meanings(name, known) or [path for path in known if _plain(path.rpartition(".")[2], section) == name]


def word_for(value: Any, allowed: Collection[str]) -> str:
    """Return the allowed word that `value` is another name of; "" if there is none."""
    same = [word for word in allowed if _plain(word, "lr") == _plain(str(value), "lr")]
    return next(iter(same or meanings(value, allowed)), "")


def close_word(value: Any, allowed: Collection[str]) -> str:
    """Return what an error adds about the allowed word that is meant, or the most similar one: `; write fp32`."""
    word = word_for(value, allowed)
    return f"; write {word}" if word else did_you_mean(value, allowed) if isinstance(value, str) else ""


def _plain(text: str, ending: str) -> str:
    """Return the letters and digits of a name, in lower case, without the ending: `mse` for MSELoss of a loss."""
    return re.sub(r"[^a-z0-9]", "", text.lower()).removesuffix(ending)


def _known_classes(section: str) -> Iterator[str]:
    if section == "loss":
        yield from (f"torch.nn.{name}" for name in torch_arguments.LOSSES)
        ours = ("LogisticLoss", "HingeLoss", "NegativeSampling", "BprLoss", "WarpLoss")
        yield from (f"hogwild.losses.{name}" for name in ours)
    elif section == "optimizer":
        yield from (f"torch.optim.{name}" for name in torch_arguments.OPTIMIZERS)
        yield from ("hogwild.optimizers.RowWiseAdagrad", "hogwild.optimizers.FTRL")
    elif section in _PACKAGES:
        package = _PACKAGES[section]
        yield from (f"{package}.{name}" for name in import_module(package).CATALOG)  # neither imports torch
