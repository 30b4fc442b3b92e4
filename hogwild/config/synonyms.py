"""Names of other frameworks and first guesses, and what to write instead: keys, class paths, words. Job files have one
name for each thing; these only make the error name it. Torch-free."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

from hogwild.config import torch_arguments
from hogwild.errors import did_you_mean


def _meanings(names: Mapping[str, str]) -> dict[str, list[str]]:
    """Return word -> the names that it may mean, from name -> its words."""
    found: dict[str, list[str]] = {}
    for name, words in names.items():
        for word in words.split():
            found.setdefault(word, []).append(name)
    return found


# Fields of the schema under their own names, and arguments of torch's optimizers and losses, need no entry.
FIELDS = _meanings(
    {
        "train.epochs": "epoch n_epochs num_epochs max_epochs nb_epoch",
        "train.max_updates": "steps max_steps num_steps n_steps iterations max_iter num_iterations",
        "train.max_time_s": "max_time timeout time_limit",
        "train.procs": "workers nproc n_procs num_procs processes num_processes nprocs n_jobs world_size num_workers",
        "train.threads": "num_threads n_threads",
        "train.device": "gpu gpus cuda accelerator devices",
        "train.precision": "amp fp16 bf16 mixed_precision dtype",
        "train.grad_clip": "clip gradient_clip gradient_clip_val clip_grad clip_grad_norm max_grad_norm grad_norm",
        "train.accumulate": "accumulate_grad_batches gradient_accumulation gradient_accumulation_steps grad_accum",
        "data.batch_size": "batch batchsize bs train_batch_size per_device_train_batch_size",
        "data.train": "dataset data_set datasets train_dataset trainset train_data training_data",
        "data.val": "val valid validation validation_data val_dataset valset val_data",
        "data.val.fraction": "val_split validation_split val_fraction val_size",
        "data.collate": "collate_fn",
        "data.loaders": "num_workers",
        "data.transform": "transforms augmentation",
        "optimizer": "optim opt solver",
        "optimizer.init_args.lr": "learning_rate lr_rate learningrate",
        "optimizer.init_args.weight_decay": "wd l2 decay",
        "lr_schedule": "scheduler lr_scheduler schedule sched",
        "lr_schedule.warmup_updates": "warmup warmup_steps num_warmup_steps",
        "loss": "criterion loss_fn loss_function objective",
        "model": "net network arch architecture module",
        "model.init_from": "pretrained weights init_weights load_from",
        "seed": "random_seed manual_seed random_state",
        "evaluate": "eval evaluation validate",
        "evaluate.patience": "early_stopping early_stop",
        "evaluate.monitor": "metric_for_best_model best_metric",
        "checkpoint": "checkpoints checkpointing ckpt save",
        "checkpoint.every_updates": "save_every save_steps checkpoint_every",
        "checkpoint.keep": "save_total_limit max_to_keep save_top_k",
        "log.every_s": "log_every log_interval logging_steps",
    }
)
# Keys of a section that names a class, such as `model`.
CLASS_KEYS = {
    **dict.fromkeys(("name", "type", "class", "cls", "target", "_target_", "function", "kind"), "class_path"),
    **dict.fromkeys(("args", "kwargs", "params", "parameters", "arguments", "options", "config"), "init_args"),
}
ARGUMENTS = {"learning_rate": "lr", "lr_rate": "lr", "wd": "weight_decay", "l2": "weight_decay", "epsilon": "eps"}
WORDS = _meanings(
    {
        "cuda": "gpu",
        "fp32": "float32 32",
        "fp16": "float16 half 16",
        "bf16": "bfloat16",
        "max": "maximize maximise higher",
        "min": "minimize minimise lower",
        "step": "steplr",
        "linear": "linearlr",
        "cosine": "cosineannealinglr cosine_annealing",
        "one_cycle": "onecyclelr onecycle",
        "auto": "all",
        "full": "true shuffle random",
        "none": "false",
        "accuracy": "acc val_acc val_accuracy",
        "loss": "val_loss",
        "auc": "roc_auc auroc",
        "log_loss": "nll",
        "perplexity": "ppl",
        "macro_f1": "f1",
        "rmse": "mse",
    }
)
_CLASSES = _meanings(
    {
        "torch.nn.BCEWithLogitsLoss": "bce binarycrossentropy",
        "torch.nn.BCELoss": "bce binarycrossentropy",
        "torch.nn.CrossEntropyLoss": "ce softmax categoricalcrossentropy",
        "torch.nn.MSELoss": "l2 meansquarederror",
        "torch.nn.L1Loss": "mae meanabsoluteerror",
        "torch.nn.KLDivLoss": "kldivergence",
        "hogwild.models.ConvNet": "cnn",
        "hogwild.models.CharRnn": "lstm gru rnn",
        "hogwild.models.SkipGram": "word2vec",
        "hogwild.models.FactorizationMachine": "fm",
        "hogwild.models.MatrixFactorization": "mf",
        "hogwild.data.ImageFolder": "imagefolder",
        "hogwild.data.Ratings": "movielens",
    }
)
_PACKAGES = {"loss": "torch.nn", "model": "hogwild.models", "data": "hogwild.data"}


def class_paths(section: str, text: str) -> list[str]:
    """Return the class paths that someone who wrote `text` in `section` (model, loss, data, optimizer) may mean."""
    name = _plain(text, section)
    guesses = [path for path in _CLASSES.get(name, ()) if path.rpartition(".")[0] == _PACKAGES.get(section)]
    return guesses or [path for path in _known_classes(section) if _plain(path, section) == name]


def one_of(options: Iterable[str]) -> str:
    """Return `'a'`, or `'a' or 'b'`."""
    return " or ".join(f"'{option}'" for option in options)


def word_for(value: Any, allowed: Iterable[str]) -> str:
    """Return the allowed word that `value` is another name of; "" if there is none."""
    words = {_word(word): word for word in allowed}
    meant = next(iter(WORDS.get(str(value).lower(), ())), "")
    return words.get(_word(str(value))) or words.get(_word(meant)) or ""


def close_word(value: Any, allowed: Collection[str]) -> str:
    """Return what an error adds about the allowed word that is meant, or the most similar one: `; write fp32`."""
    word = word_for(value, allowed)
    return f"; write {word}" if word else did_you_mean(value, allowed) if isinstance(value, str) else ""


def _word(text: str) -> str:
    return text.lower().replace("-", "_")


def _plain(text: str, section: str) -> str:
    name = re.sub(r"[^a-z0-9]", "", text.rpartition(".")[2].lower())
    return name.removesuffix("loss") if section == "loss" and name != "loss" else name


def _known_classes(section: str) -> Iterator[str]:
    if section == "loss":
        yield from (f"torch.nn.{name}" for name in torch_arguments.LOSSES)
        yield from (
            f"hogwild.losses.{name}"
            for name in ("LogisticLoss", "HingeLoss", "NegativeSampling", "BprLoss", "WarpLoss")
        )
    elif section == "optimizer":
        yield from (f"torch.optim.{name}" for name in torch_arguments.OPTIMIZERS)
        yield from ("hogwild.optimizers.RowWiseAdagrad", "hogwild.optimizers.FTRL")
    elif section in ("model", "data"):
        package = _PACKAGES[section]
        yield from (f"{package}.{name}" for name in import_module(package).CATALOG)  # neither imports torch
