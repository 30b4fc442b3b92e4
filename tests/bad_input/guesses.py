"""Bad inputs, a part of the table: names of other frameworks and first guesses. The error says what to write."""

from tests.bad_input.row import Row, check

_ELSEWHERE = {  # a key at the wrong level, or another framework's: -> the fields that are meant
    "learning_rate=0.1": "'optimizer.init_args.lr'",
    "train.lr=0.1": "'optimizer.init_args.lr'",
    "optimizer.lr=0.1": "'optimizer.init_args.lr'",
    "optimizer.momentum=0.9": "'optimizer.init_args.momentum'",
    "weight_decay=0.1": "'optimizer.init_args.weight_decay'",
    "loss.label_smoothing=0.1": "'loss.init_args.label_smoothing'",
    "epochs=3": "'train.epochs'",
    "data.n_epochs=3": "'train.epochs'",
    "batch_size=32": "'data.batch_size'",
    "train.batch_size=32": "'data.batch_size'",
    "workers=2": "'train.procs'",
    "num_workers=2": "'train.procs' or 'data.loaders'",
    "data.num_workers=2": "'loaders'",
    "device=cpu": "'train.device'",
    "train.seed=3": "'seed'",
    "optim=adam": "'optimizer'",
    "optimizer.name=adam": "'class_path'",
    "model.args={}": "'init_args'",
    "scheduler=cosine": "'lr_schedule'",
    "lr_schedule={type: cosine}": "'name'",
    "dataset=mine.Data": "'data.train'",
    "val_split=0.1": "'data.val.fraction'",
    "criterion=mse": "'loss'",
    "network=mine.Net": "'model'",
    "train.early_stopping=3": "'evaluate.patience'",
    "train.max_grad_norm=1": "'grad_clip'",
    "every_s=3": "'checkpoint.every_s' or 'log.every_s'",
    "epohcs=3": "'train.epochs'",
}
_VALUES = {  # a value -> code, field and rule, what to write
    "loss.class_path=CrossEntropyLoss": ("config/class-path", "a dotted path", "write torch.nn.CrossEntropyLoss"),
    "loss.class_path=cross_entropy": ("config/class-path", "a dotted path", "write torch.nn.CrossEntropyLoss"),
    "loss.class_path=bce": ("config/class-path", "dotted", "write torch.nn.BCEWithLogitsLoss or torch.nn.BCELoss"),
    "loss.class_path=torch.nn.mse": ("config/class-path", "no loss 'mse'", "write torch.nn.MSELoss"),
    "loss.class_path=torch.L1Loss": ("config/class-path", "torch has no loss 'L1Loss'", "write torch.nn.L1Loss"),
    "optimizer.class_path=Adam": ("config/class-path", "a dotted path", "write torch.optim.Adam"),
    "optimizer.class_path=sgd": ("config/class-path", "a dotted path", "write torch.optim.SGD"),
    "optimizer.class_path=torch.optim.adam": ("config/class-path", "no 'adam'", "write torch.optim.Adam"),
    "optimizer.class_path=torch.AdamW": ("config/class-path", "torch has no 'AdamW'", "write torch.optim.AdamW"),
    "model.class_path=mlp": ("config/class-path", "a dotted path", "write hogwild.models.Mlp"),
    "data.train.class_path=MNIST": ("config/class-path", "a dotted path", "write hogwild.data.Mnist"),
    "loss=mse": ("config/wrong-type", "loss: must be a map", "write {class_path: torch.nn.MSELoss}"),
    "optimizer=adam": ("config/wrong-type", "optimizer: must be a map", "write {class_path: torch.optim.Adam}"),
    "model=guilty.Net": ("config/wrong-type", "model: must be a map", "write {class_path: guilty.Net}"),
    "lr_schedule=cosine": ("config/wrong-type", "lr_schedule: must be a map", "write {name: cosine}"),
    "data.val=0.2": ("config/wrong-type", "data.val: must be a map", "write {fraction: 0.2}"),
    "model.freeze=first": ("config/wrong-type", "model.freeze: must be a list", "write [first]"),
    "lr_schedule.name=StepLR": ("config/unknown-choice", "must be one of constant, step", "write step"),
    "lr_schedule.name=torch.optim.lr_scheduler.CosineAnnealingLR": (
        "config/unknown-choice",
        "must be a function of the number of updates",
        "write class_path: torch.optim.lr_scheduler.CosineAnnealingLR, with its init_args",
    ),
    "train.precision=16": ("config/unknown-choice", "fp32, bf16, fp16", "write fp16"),
    "train.precision=bfloat16": ("config/unknown-choice", "fp32, bf16, fp16", "write bf16"),
    "train.device=gpu": ("config/unknown-choice", "auto, cpu, cuda", "write cuda"),
    "train.procs=all": ("config/wrong-type", "auto or a whole number", "write auto"),
    "data.shuffle=true": ("config/unknown-choice", "auto, full, chunked, none", "write full"),
    "evaluate.mode=maximize": ("config/unknown-choice", "auto, min, max", "write max"),
    "evaluate.metrics=[acc]": ("config/unknown-metric", "loss, accuracy", "write accuracy"),
    "evaluate.monitor=val_loss": ("config/unknown-metric", "a known metric", "write loss"),
    "optimizer.init_args.learning_rate=0.1": (
        "config/unknown-argument",
        "unknown argument of SGD",
        "did you mean 'lr'?",
    ),
    "evaluate.metrics=auc": ("config/unknown-choice", "must be auto", "for a list write [auc]"),
}
_OPTIONS = {  # arguments -> what is said, the command to copy
    ("--lr=0.1",): ("--lr is not an option; write optimizer.init_args.lr=0.1", "optimizer.init_args.lr=0.1"),
    ("--batch-size", "32"): ("--batch-size is not an option; write data.batch_size=32", "data.batch_size=32"),
    ("--train.max_updates", "5"): ("--train.max_updates is not an option", "train.max_updates=5"),
    ("--workers", "2", "--seed=3"): ("write train.procs=2; --seed is not an option", "train.procs=2 seed=3"),
    ("-lr", "0.1"): ("-lr is not an option", "optimizer.init_args.lr=0.1"),
    ("--pin", "seed=3"): ("--pin is not an option; write train.pin=VALUE", "train.pin=VALUE seed=3"),
    ("--model.init_args.sizes", "[1, 2]"): ("write model.init_args.sizes='[1, 2]'", "'model.init_args.sizes=[1, 2]'"),
    ("--keep", "1"): ("write checkpoint.keep=1", "checkpoint.keep=1"),
    ("--every-s", "1"): ("write checkpoint.every_s=1 or log.every_s=1", "checkpoint.every_s=1"),
}
_NOT_FIELDS = {"resume": "--resume", "data_dir": "--data-dir", "train.run_dir": "--run-dir"}

GUESSES: dict[str, Row] = {
    **{
        f"a key elsewhere: {change}": Row(
            check(change),
            2,
            "config/unknown-key",
            (f"{change.partition('=')[0].removesuffix('={}')}", f"unknown key; did you mean {meant}?"),
        )
        for change, meant in _ELSEWHERE.items()
    },
    **{
        f"another word: {change}": Row(check(change), 2, code, (f"command line: {change.partition('=')[0]}", *words))
        for change, (code, *words) in _VALUES.items()
    },
    **{
        f"a field as option: {' '.join(options)}": Row(
            check(*options), 2, "usage/field-as-option", (said, f"\nTry: hogwild check job.yaml {command}\n")
        )
        for options, (said, command) in _OPTIONS.items()
    },
    **{
        f"an option as field: {field}": Row(
            check(f"{field}=x"), 2, "config/unknown-key", (f"{field}: unknown key", f"of the command line: {option}")
        )
        for field, option in _NOT_FIELDS.items()
    },
    "an argument of the model beside its class": Row(
        check("model.norm=true"), 2, "config/unknown-key", ("is written below init_args: model.init_args.norm",)
    ),
}
