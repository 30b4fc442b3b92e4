"""Names of other frameworks and first guesses, and what to write instead: keys, class paths, words. Job files have one
name for each thing; these only make the error name it. Torch-free."""

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

from hogwild.config import torch_arguments

# Fields of the schema under their own names, and arguments of torch's optimizers and losses, need no entry.
_FIELDS: Mapping[str, str] = {
    "train.epochs": "epoch n_epochs num_epochs max_epochs nb_epoch",
    "train.max_updates": "steps max_steps num_steps n_steps iterations max_iter num_iterations",
    "train.max_time_s": "max_time timeout time_limit",
    "train.procs": "workers nproc n_procs num_procs processes num_processes nprocs n_jobs world_size",
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
FIELDS: dict[str, list[str]] = {word: [field] for field, words in _FIELDS.items() for word in words.split()}
FIELDS["num_workers"] = ["train.procs", "data.loaders"]
# Keys of a section that names a class, such as `model`.
CLASS_KEYS = {
    **dict.fromkeys(("name", "type", "class", "cls", "target", "_target_", "function", "kind"), "class_path"),
    **dict.fromkeys(("args", "kwargs", "params", "parameters", "arguments", "options", "config"), "init_args"),
}
ARGUMENTS = {"learning_rate": "lr", "lr_rate": "lr", "wd": "weight_decay", "l2": "weight_decay", "epsilon": "eps"}
WORDS: Mapping[str, str] = {
    "gpu": "cuda",
    "float32": "fp32",
    "32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "16": "fp16",
    "bfloat16": "bf16",
    "maximize": "max",
    "maximise": "max",
    "higher": "max",
    "minimize": "min",
    "minimise": "min",
    "lower": "min",
    "steplr": "step",
    "linearlr": "linear",
    "cosineannealinglr": "cosine",
    "cosine_annealing": "cosine",
    "onecyclelr": "one_cycle",
    "onecycle": "one_cycle",
    "all": "auto",
    "true": "full",
    "false": "none",
    "shuffle": "full",
    "random": "full",
    "acc": "accuracy",
    "val_acc": "accuracy",
    "val_accuracy": "accuracy",
    "val_loss": "loss",
    "roc_auc": "auc",
    "auroc": "auc",
    "nll": "log_loss",
    "ppl": "perplexity",
    "f1": "macro_f1",
    "mse": "rmse",
}
_CLASSES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "loss": {
        "bce": ("torch.nn.BCEWithLogitsLoss", "torch.nn.BCELoss"),
        "binarycrossentropy": ("torch.nn.BCEWithLogitsLoss", "torch.nn.BCELoss"),
        "ce": ("torch.nn.CrossEntropyLoss",),
        "softmax": ("torch.nn.CrossEntropyLoss",),
        "categoricalcrossentropy": ("torch.nn.CrossEntropyLoss",),
        "l2": ("torch.nn.MSELoss",),
        "meansquarederror": ("torch.nn.MSELoss",),
        "mae": ("torch.nn.L1Loss",),
        "meanabsoluteerror": ("torch.nn.L1Loss",),
        "kldivergence": ("torch.nn.KLDivLoss",),
    },
    "model": {
        "cnn": ("hogwild.models.ConvNet",),
        "lstm": ("hogwild.models.CharRnn",),
        "gru": ("hogwild.models.CharRnn",),
        "rnn": ("hogwild.models.CharRnn",),
        "word2vec": ("hogwild.models.SkipGram",),
        "fm": ("hogwild.models.FactorizationMachine",),
        "mf": ("hogwild.models.MatrixFactorization",),
    },
    "data": {"imagefolder": ("hogwild.data.ImageFolder",), "movielens": ("hogwild.data.Ratings",)},
}


def class_paths(section: str, text: str) -> list[str]:
    """Return the class paths that someone who wrote `text` in `section` (model, loss, data, optimizer) may mean."""
    name = _plain(text, section)
    guesses = _CLASSES.get(section, {})
    return list(guesses.get(name) or (path for path in _known_classes(section) if _plain(path, section) == name))


def one_of(options: Iterable[str]) -> str:
    """Return `'a'`, or `'a' or 'b'`."""
    return " or ".join(f"'{option}'" for option in options)


def word_for(value: Any, allowed: Iterable[str]) -> str:
    """Return the allowed word that `value` is another name of; "" if there is none."""
    words = {_word(word): word for word in allowed}
    return words.get(_word(str(value))) or words.get(_word(WORDS.get(str(value).lower(), ""))) or ""


def _word(text: str) -> str:
    return text.lower().replace("-", "_")


def _plain(text: str, section: str) -> str:
    name = re.sub(r"[^a-z0-9]", "", text.rpartition(".")[2].lower())
    return name.removesuffix("loss") if section == "loss" and name != "loss" else name


def _known_classes(section: str) -> Iterator[str]:
    if section == "loss":
        yield from (f"torch.nn.{name}" for name in (*torch_arguments.LOSSES, *torch_arguments.UNCHECKED_LOSSES))
        yield from (f"hogwild.losses.{name}" for name in ("LogisticLoss", "HingeLoss", "NegativeSampling", "BprLoss"))
    elif section == "optimizer":
        yield from (f"torch.optim.{name}" for name in torch_arguments.OPTIMIZERS)
        yield "hogwild.optimizers.RowWiseAdagrad"
    elif section in ("model", "data"):
        package = f"hogwild.{'models' if section == 'model' else 'data'}"
        yield from (f"{package}.{name}" for name in import_module(package).CATALOG)  # neither imports torch
