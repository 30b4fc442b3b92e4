"""The kernels that a job will need, from its job file alone: before torch is imported, and before there is a model. The
update that is chosen later (`update_choice.py`) may be another one; nothing but time depends on it.

    model, loss, optimizer, options of the job  ──►  the update's kernels
    evaluate.metrics: those of all items        ──►  their kernels
    data: texts as ids, of a stream             ──►  their keys

Not the parser of libsvm: data that were parsed before need none, and compiling it took a core for three seconds."""

from typing import Any

from hogwild.config.load import Job
from hogwild.config.schema import Component
from hogwild.kernels import signatures
from hogwild.kernels.signatures import Kernels, has_numba
from hogwild.metrics.catalog import AUC, RANKED
from hogwild.training.lr_schedule import is_of_torch

MODELS = "hogwild.models"
PAIRS = ("BprFactorization", "WarpFactorization")
NAMED = {  # by id, and their kernels
    "NamedLinear": "linear", "NamedFactorizationMachine": "factorization_machine", "NamedFactorization": "ratings",
    "NamedBprFactorization": "pairs", "NamedSkipGram": "words",
}  # fmt: skip
GRAPHS = ("ComplEx", "DistMult", "RotatE", "TransE")
FTRL, ROW_WISE = "FTRL", "RowWiseAdagrad"
KNOWN_RULES = {"torch.optim": ("SGD", "Adagrad"), "hogwild.optimizers": (FTRL, ROW_WISE)}
FACTORS = 32  # of a MatrixFactorization that does not say
MOST = frozenset({"lr_schedule", "freeze"})  # options that any update implements
OF_NO_KERNEL = ("momentum", "dampening", "nesterov", "lr_decay", "maximize")  # options of optimizers
FEATURES = ("user_features", "item_features")
STREAMS = ("Follow", "Kafka")  # of texts


def foreseen(job: Job, update: Any = None) -> tuple[Kernels, ...]:
    """Return the kernels that this job probably needs, in the order of need. `update`: that of the model's objects, if
    they are there already."""
    if not has_numba():
        return ()
    found: list[Kernels] = []
    if job.train.update != "autograd" and {name for name, _ in options_set(job)} <= MOST:
        own = getattr(update, "kernels", None) if update is not None else _of_model(job)
        found += [own] if isinstance(own, Kernels) else []
        found += [signatures.row_claims()] if found and _name(job.model, MODELS) in NAMED else []
    is_of_items = _name(job.model, MODELS) in ("MatrixFactorization", *PAIRS)
    if is_of_items and any(RANKED.match(name) or name == AUC for name in job.evaluate.metrics):
        found.append(signatures.ranking())
    data = job.data.train
    if _name(data, "hogwild.data") in STREAMS and any(data.init_args.get(key) for key in ("ids", "features", "text")):
        found.append(signatures.text_keys())
    return tuple(found)


def options_set(job: Job) -> list[tuple[str, str]]:
    """Return (name in `FusedUpdate.implements`, the job's field) of every option that is not at its neutral value and
    changes an update."""
    train = job.train
    asked = [
        ("lr_schedule", "lr_schedule", job.lr_schedule.name != "constant" or job.lr_schedule.warmup_updates > 0),
        ("lr_schedule", "supervise.on_nan: rollback", job.supervise.on_nan == "rollback"),
        ("torch_schedule", f"lr_schedule: {job.lr_schedule.name}", is_of_torch(job.lr_schedule)),
        ("freeze", "model.freeze", bool(job.model.freeze)),
        ("thaw", "model.freeze until an update", any(not isinstance(entry, str) for entry in job.model.freeze)),
        ("transform", "data.transform", job.data.transform is not None),
        ("grad_clip", "train.grad_clip", train.grad_clip is not None),
        ("max_staleness", "train.max_staleness", train.max_staleness is not None),
        ("accumulate", "train.accumulate", train.accumulate > 1),
        ("compile", f"model.compile: {job.model.compile}", job.model.compile != "none"),
        ("precision", f"train.precision: {train.precision}", train.precision != "fp32"),
    ]
    return [(name, option) for name, option, is_set in asked if is_set]


def _of_model(job: Job) -> Kernels | None:
    """Return the kernels of the model's update. A combination that has none may get some: they are never called."""
    name, loss = _name(job.model, MODELS), job.loss.class_path
    package, _, rule = job.optimizer.class_path.rpartition(".")
    is_plain = not any(job.optimizer.init_args.get(option) for option in OF_NO_KERNEL)
    if rule not in KNOWN_RULES.get(package, ()) or not is_plain:
        return None
    if name in ("SkipGram", "NamedSkipGram"):
        return signatures.words(is_named=name in NAMED)
    if name in GRAPHS:
        return signatures.graph()
    if name in ("MatrixFactorization", "NamedFactorization"):
        factors, is_named = job.model.init_args.get("factors", FACTORS), name in NAMED
        is_known = rule not in (FTRL, ROW_WISE) if is_named else rule != FTRL
        return signatures.ratings(rule, factors, is_named=is_named) if is_known and type(factors) is int else None
    if rule == ROW_WISE:
        return None
    if name in PAIRS:
        has_features = any(
            given.get(key) for given in (job.model.init_args, job.data.train.init_args) for key in FEATURES
        )
        return signatures.pairs(rule, has_features=has_features) if rule != FTRL else None
    if name == "NamedBprFactorization":
        return signatures.pairs(rule, is_named=True) if rule != FTRL else None
    if name == "SparseLinear":
        return signatures.sparse("softmax" if loss.endswith(".CrossEntropyLoss") else "linear", rule)
    if name in NAMED:
        return signatures.sparse(NAMED[name], rule)
    if name == "FactorizationMachine":
        return signatures.sparse("factorization_machine", rule)
    return signatures.sparse("field_factorization_machine", rule) if name == "FieldFactorizationMachine" else None


def _name(component: Component, home: str) -> str:
    """Return the class's name if it is directly in this package, else ""."""
    package, _, name = component.class_path.rpartition(".")
    return name if package == home else ""
