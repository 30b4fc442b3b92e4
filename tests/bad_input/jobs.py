# ruff: noqa: E501 -- a table of bad files reads best with one row on one line
"""Bad job files, as tables: each rule of the schema, of the YAML reader and of the fields together stands here once, with
its place, the field, the code and the words. `tests/config/test_config.py` reads them through `load_job`."""

from typing import NamedTuple


class BadJob(NamedTuple):
    """A text and the error that it must give. `place`: line:column, or "command line"."""

    text: str
    place: str
    path: str
    code: str
    words: str


GOOD = """\
model: {class_path: mymodel.Net}
data: {train: {class_path: mymodel.Data}}
"""

# Each text is appended to GOOD, so line 3 is its first.
_FIELDS = [
    # keys
    ("optimizer: {class_pth: a.B}", "3:13", "optimizer.class_pth", "config/unknown-key", "unknown key; did you mean 'class_path'? (allowed: class_path, init_args, state, groups)"),
    ("lr_schedule: {name: cosine, gamma: 0.1}", "3:29", "lr_schedule.gamma", "config/unknown-key", "unknown key (allowed: warmup_updates, name, final_factor)"),
    ("train: {batch_size: 3}", "3:9", "train.batch_size", "config/unknown-key", "did you mean 'data.batch_size'?"),
    ("train: {lr: 0.1}", "3:9", "train.lr", "config/unknown-key", "did you mean 'optimizer.init_args.lr'?"),
    ("trian: {epochs: 1}", "3:1", "trian", "config/unknown-key", "unknown key; did you mean 'train'?"),
    ("every_s: 3", "3:1", "every_s", "config/unknown-key", "did you mean 'checkpoint.every_s' or 'log.every_s'?"),
    ("epohcs: 3", "3:1", "epohcs", "config/unknown-key", "did you mean 'train.epochs'?"),
    ("n_epochs: 3", "3:1", "n_epochs", "config/unknown-key", "did you mean 'train.epochs'?"),
    ("num_workers: 2", "3:1", "num_workers", "config/unknown-key", "did you mean 'train.procs' or 'data.loaders'?"),
    ("train: {max_grad_norm: 1}", "3:9", "train.max_grad_norm", "config/unknown-key", "did you mean 'grad_clip'?"),
    ("resume: runs/a", "3:1", "resume", "config/unknown-key", "it is an option of the command line: --resume"),
    ("loss: {norm: true}", "3:8", "loss.norm", "config/unknown-key", "an argument of the class is written below init_args: loss.init_args.norm"),
    ("train: {epochs: 1}\ntrain: {epochs: 0}", "4:1", "train", "config/duplicate-key", "duplicate key; it was already given at line 3, column 1"),
    ("train: {epochs: 0}\ntrain: {epochs: 1}", "3:17", "train.epochs", "config/out-of-range", "must be >= 1, got 0"),
    # types
    ("train: {epochs: 1.5}", "3:17", "train.epochs", "config/wrong-type", "must be a whole number, got 1.5"),
    ("train: {epochs: 1e2}", "3:17", "train.epochs", "config/wrong-type", "must be a whole number, got 100.0; write 100"),
    ("train: {epochs: '3'}", "3:17", "train.epochs", "config/wrong-type", "must be a whole number, got '3'; remove the quotes"),
    ("train: {epochs: true}", "3:17", "train.epochs", "config/wrong-type", "must be a whole number, got true"),
    ("train: {epochs: 010}", "3:17", "train.epochs", "config/ambiguous-value", "write it in decimal digits"),
    ("train: {epochs: 99999999999999999999}", "3:17", "train.epochs", "config/out-of-range", "must fit into 64 bits"),
    ("train: {grad_clip: .inf}", "3:20", "train.grad_clip", "config/not-finite", "must be finite, got .inf"),
    ("evaluate: {target: {accuracy: high}}", "3:31", "evaluate.target.accuracy", "config/wrong-type", "must be a number, got 'high'"),
    ("evaluate: {target: 0.9}", "3:20", "evaluate.target", "config/wrong-type", "must be a map of keys and values, got 0.9"),
    ("checkpoint: {on_signal: no}", "3:25", "checkpoint.on_signal", "config/wrong-type", "must be true or false, got 'no'; write false"),
    ("log: {progress: on}", "3:17", "log.progress", "config/wrong-type", "must be auto, true or false, got 'on'; write true"),
    ("loss: {init_args: [1]}", "3:19", "loss.init_args", "config/wrong-type", "must be a map of keys and values, got [1]"),
    ("loss: mse", "3:7", "loss", "config/wrong-type", "loss: must be a map of keys and values, got 'mse'; write {class_path: torch.nn.MSELoss}"),
    ("lr_schedule: cosine", "3:14", "lr_schedule", "config/wrong-type", "write {name: cosine}"),
    ("train:", "3:7", "train", "config/wrong-type", "got null; write its keys below it, or remove it"),
    ("log:\n  every_s:3", "4:3", "log", "config/wrong-type", "a space is missing after the colon: every_s: 3"),
    # ranges and choices
    ("train: {sync_every: 0}", "3:21", "train.sync_every", "config/out-of-range", "must be >= 1, got 0"),
    ("train: {max_time_s: 0}", "3:21", "train.max_time_s", "config/out-of-range", "must be > 0, got 0"),
    ("train: {accumulate: 70000}", "3:21", "train.accumulate", "config/out-of-range", "must be <= 65535, got 70000"),
    ("log: {every_s: 1e10}", "3:16", "log.every_s", "config/out-of-range", "must be <= 1e+09"),
    ("lr_schedule: {name: one_cycle, peak_fraction: 1}", "3:47", "lr_schedule.peak_fraction", "config/out-of-range", "must be < 1, got 1"),
    ("train: {procs: 2000}", "3:16", "train.procs", "config/out-of-range", "must be auto or a whole number from 0 to 1024, got 2000"),
    ("train: {procs: ato}", "3:16", "train.procs", "config/wrong-type", "got 'ato'; did you mean 'auto'?"),
    ("train: {device: tpu}", "3:17", "train.device", "config/unknown-choice", "must be auto, cpu, cuda or cuda:N, got 'tpu'"),
    ("train: {device: 'cuda:'}", "3:17", "train.device", "config/unknown-choice", "must be auto, cpu, cuda or cuda:N"),
    ("train: {precision: 16}", "3:20", "train.precision", "config/unknown-choice", "must be one of fp32, bf16, fp16, got 16; write fp16"),
    ("optimizer: {state: sharred}", "3:20", "optimizer.state", "config/unknown-choice", "must be one of auto, private, shared, got 'sharred'; did you mean 'shared'?"),
    ("version: true", "3:10", "version", "config/unknown-choice", "must be 1, the only version of the job file, got true"),
    ("name: a/b", "3:7", "name", "config/bad-name", "must be usable as a folder name"),
    ("name: ..", "3:7", "name", "config/bad-name", "must be usable as a folder name"),
    ("tags: [a, a]", "3:7", "tags", "config/bad-name", "must be at most 20 tags, each once"),
    ('tags: ["a\\nb"]', "3:7", "tags", "config/bad-name", "must be tags of 1 to 50 printable characters"),
    ("tags: [a, '']", "3:7", "tags", "config/bad-name", "must be tags of 1 to 50 printable characters"),
    ("lr_schedule: {name: cosin}", "3:21", "lr_schedule.name", "config/unknown-choice", "must be one of constant, step, linear, cosine, one_cycle, or a class path, got 'cosin'; did you mean 'cosine'?"),
    ("lr_schedule: {name: torch.optim.lr_scheduler.StepLR}", "3:21", "lr_schedule.name", "config/unknown-choice", "write class_path: torch.optim.lr_scheduler.StepLR, with its init_args"),
    ("lr_schedule: {name: step}", "3:1", "lr_schedule.every_updates", "config/missing-key", "is required"),
    # classes and their arguments
    ("loss: {class_path: CrossEntropyLoss}", "3:20", "loss.class_path", "config/class-path", "must be a dotted path to a class or function, such as mymodel.Net, got 'CrossEntropyLoss'; write torch.nn.CrossEntropyLoss"),
    ("loss: {class_path: torch.nn.CrossEntropyLos}", "3:20", "loss.class_path", "config/class-path", "torch.nn has no loss 'CrossEntropyLos'; did you mean 'CrossEntropyLoss'?"),
    ("loss: {class_path: torch.L1Loss}", "3:20", "loss.class_path", "config/class-path", "torch has no loss 'L1Loss'; write torch.nn.L1Loss"),
    ("optimizer: {class_path: torch.optim.Adm}", "3:25", "optimizer.class_path", "config/class-path", "torch.optim has no 'Adm'; did you mean 'Adam'? (known: "),
    ("optimizer: {class_path: torch.optim.LBFGS}", "3:25", "optimizer.class_path", "optimizer/closure", "needs a closure"),
    ("optimizer: {init_args: {mometum: 0.5}}", "3:25", "optimizer.init_args.mometum", "config/unknown-argument", "unknown argument of SGD; did you mean 'momentum'?"),
    ("optimizer: {init_args: {learning_rate: 0.5}}", "3:25", "optimizer.init_args.learning_rate", "config/unknown-argument", "did you mean 'lr'?"),
    ("optimizer: {init_args: {params: []}}", "3:25", "optimizer.init_args.params", "config/unknown-argument", "is filled in with the model's parameters"),
    ("optimizer: {groups: [{params: ['*'], init_args: {wieght_decay: 0}}]}", "3:50", "optimizer.groups[0].init_args.wieght_decay", "config/unknown-argument", "did you mean 'weight_decay'?"),
    ("optimizer: {groups: [{params: ['*'], init_args: {differentiable: true}}]}", "3:50", "optimizer.groups[0].init_args.differentiable", "config/unknown-argument", "applies to all groups; set it in optimizer.init_args"),
    ("optimizer: {init_args: {nesterov: true}}", "3:35", "optimizer.init_args.nesterov", "config/bad-argument", "needs a momentum > 0"),
    ("optimizer: {init_args: {nesterov: yes}}", "3:35", "optimizer.init_args.nesterov", "config/bad-argument", "must be true or false, got 'yes'"),
    ("optimizer: {init_args: {momentum: 1.5}}", "3:35", "optimizer.init_args.momentum", "config/bad-argument", "must be < 1, got 1.5"),
    ("optimizer: {init_args: {lr: -1e-3}}", "3:29", "optimizer.init_args.lr", "config/bad-argument", "must be >= 0, got -0.001"),
    ("optimizer: {init_args: {lr: '0.1'}}", "3:29", "optimizer.init_args.lr", "config/bad-argument", "must be a number without quotes, got '0.1'"),
    ("optimizer: {init_args: {lr: true}}", "3:29", "optimizer.init_args.lr", "config/bad-argument", "must be a number, got true"),
    ("optimizer: {class_path: torch.optim.Adam, init_args: {betas: [0.9, 1]}}", "3:62", "optimizer.init_args.betas", "config/bad-argument", "must be < 1 in each entry, got [0.9, 1]"),
    ("optimizer: {class_path: torch.optim.Adam, init_args: {betas: 0.9}}", "3:62", "optimizer.init_args.betas", "config/bad-argument", "must be a list of 2 numbers, got 0.9"),
    ("loss: {init_args: {reduction: none}}", "3:31", "loss.init_args.reduction", "config/bad-argument", "must be mean or sum, got 'none'"),
    ("loss: {init_args: {weight: evenly}}", "3:28", "loss.init_args.weight", "config/bad-argument", "must be a list of numbers, one for each class or balanced"),
    # metrics
    ("evaluate: {metrics: [acuracy]}", "3:22", "evaluate.metrics[0]", "config/unknown-metric", "did you mean 'accuracy'?"),
    ("evaluate: {metrics: [acc]}", "3:22", "evaluate.metrics[0]", "config/unknown-metric", "write accuracy"),
    ("evaluate: {metrics: [auc, auc]}", "3:27", "evaluate.metrics[1]", "config/duplicate-key", "must not be listed twice, got 'auc'"),
    ("evaluate: {metrics: [mine.epoch]}", "3:22", "evaluate.metrics[0]", "config/metric-name", "evaluation records already have a field of this name; rename the function"),
    ("evaluate: {metrics: acc}", "3:21", "evaluate.metrics", "config/unknown-metric", "write accuracy"),
    ("evaluate: {metrics: auc, monitor: accuracy}", "3:35", "evaluate.monitor", "config/unknown-metric", "must be listed in evaluate.metrics"),
    ("evaluate: {metrics: [accuracy], monitor: auc}", "3:42", "evaluate.monitor", "config/unknown-metric", "must be listed in evaluate.metrics"),
    ("evaluate: {monitor: a b}", "3:21", "evaluate.monitor", "config/unknown-metric", "must be a metric's name"),
    ("evaluate: {target: {acuracy: 0.9}}", "3:21", "evaluate.target.acuracy", "config/unknown-metric", "must be a known metric, or be listed in evaluate.metrics; did you mean 'accuracy'?"),
    # fields together
    ("evaluate: {patience: 3}", "3:12", "evaluate.patience", "config/needs-validation", "needs data.val, as nothing is evaluated without it; such as data.val={fraction: 0.1}"),
    ("train: {device: cpu, placement: cuda-replica}", "3:33", "train.placement", "config/contradiction", "must be auto or cpu where train.device is cpu: workers compute on the CPU, got 'cuda-replica'"),
    ("train: {device: cuda, exchange: direct}", "3:33", "train.exchange", "config/contradiction", "must be delta or auto where train.placement is cuda-replica"),
    ("queue: {elastic: {min: 2}}\ntrain: {pin: true}", "3:18", "queue.elastic", "config/contradiction", "must be null where train.pin is true: workers are bound to their cores, got a map"),
    ("optimizer: {state: shared}\ntrain: {exchange: delta}", "4:19", "train.exchange", "config/contradiction", "must be direct or auto where optimizer.state is shared"),
    ("train: {device: cuda, procs: 2, device_per_worker: [0]}", "3:52", "train.device_per_worker", "config/contradiction", "each of 2 workers"),
    ("train: {device: 'cuda:1', device_per_worker: [0]}", "3:27", "train.device_per_worker", "config/contradiction", "without an index"),
    ("train: {sync_every: 1000, accumulate: 66}", "3:21", "train.sync_every", "config/contradiction", "times train.accumulate must be <= 65535 batches, got 1000 x 66"),
    ("supervise: {min_workers: 3}\ntrain: {procs: 2}", "3:26", "supervise.min_workers", "config/contradiction", "must be <= train.procs (2), got 3"),
    ("supervise: {grace_s: 301}", "3:22", "supervise.grace_s", "config/contradiction", "must be <= supervise.deadlock_timeout_s (300, the default), got 301"),
    ("supervise: {deadlock_timeout_s: 5}", "3:33", "supervise.deadlock_timeout_s", "config/contradiction", "must be >= supervise.grace_s (10, the default), got 5"),
]  # fmt: skip
FIELDS = [BadJob(GOOD + text, *rest) for text, *rest in _FIELDS]

_TRAIN = "data: {train: {class_path: a.B}"
_DEEP = "[" * 100 + "]" * 100
_ALIASES = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdef", "bcdefg", strict=True)
)
# Whole files: what GOOD cannot be part of.
_FILES = [
    ("", "1:1", "", "config/empty", "the job file is empty"),
    ("# only a comment\n", "1:1", "", "config/empty", "the job file is empty"),
    ("[1, 2]", "1:1", "", "config/empty", "must be a map of sections, not a list"),
    ("hello", "1:1", "", "config/empty", "not the single value 'hello'"),
    ("model: {class_path: a.B}", "1:1", "data", "config/missing-key", "is required"),
    ("model: {init_args: {}}", "1:1", "model.class_path", "config/missing-key", "is required"),
    ("model: {class_path: hogwild.models.LeNt}", "1:21", "model.class_path", "config/class-path", "hogwild.models has no 'LeNt'; did you mean 'LeNet'?"),
    ("data: {train: {class_path: hogwild.data.Minst}}", "1:28", "data.train.class_path", "config/class-path", "did you mean 'Mnist'?"),
    ("data: {train: {class_path: a.B}, val: {class_path: hogwild.data.Follow, init_args: {path: '-'}}}", "1:91", "data.val.init_args.path", "data/standard-input", "must be a file: standard input can be read only once"),
    ("data: {train: {class_path: hogwild.data.Follow, init_args: {path: '-'}}}\ncluster: {engine: torchrun}", "1:67", "data.train.init_args.path", "data/standard-input", "must be a file with cluster.engine"),
    ("data: {train: {class_path: hogwild.data.Kafka}}\ncluster: {engine: torchrun}", "1:28", "data.train.class_path", "config/contradiction", "must not be hogwild.data.Kafka with cluster.engine"),
    ("model: {class_path: a.B, freeze: backbone}", "1:34", "model.freeze", "config/wrong-type", "must be a list, got 'backbone'; write [backbone]"),
    ("model: {class_path: a.B, freeze: [[x]]}", "1:35", "model.freeze[0]", "config/wrong-type", "must be text, got ['x']"),
    ("model: {class_path: a.B, init_args: {x: .nan}}", "1:41", "model.init_args.x", "config/not-finite", "must be finite"),
    ("model: [a.B]", "1:8", "model", "config/wrong-type", "must be a map of keys and values, got ['a.B']"),
    (_TRAIN + ", val: {fraction: 1}}", "1:50", "data.val.fraction", "config/out-of-range", "must be < 1, got 1"),
    (_TRAIN + ", val: {fractoin: 0.2}}", "1:40", "data.val.fractoin", "config/unknown-key", "did you mean 'fraction'?"),
    (_TRAIN + ", val: 0.2}", "1:39", "data.val", "config/wrong-type", "data.val: must be a map of keys and values, got 0.2; write {fraction: 0.2}"),
    (_TRAIN + ", val: {class_path: a.B, fraction: 0.2}}", "1:57", "data.val.fraction", "config/unknown-key", "unknown key"),
    (_TRAIN + ", feed: resident, collate: {class_path: a.b}}", "1:50", "data.collate", "data/stream-only", "needs data.feed: stream, but the job sets resident"),
    (_TRAIN + ", lanes: 4, val: {fraction: 0.2}}", "1:49", "data.val", "config/contradiction", "must be a separate data set with data.lanes"),
    (_TRAIN + ", lanes: 4, shuffle: full}", "1:53", "data.shuffle", "config/contradiction", "must be auto or none with data.lanes: lanes are read in order, got 'full'"),
    (GOOD + "name: \x07\n", "3:7", "", "config/encoding", "character U+0007 is not allowed in YAML"),
    (GOOD + "name: " + _DEEP, "3:70", "", "config/too-large", "nested more than 64 levels deep"),
    (_ALIASES + GOOD, "1:35", "e[7][8][8][8][9]", "config/too-large", "more than 100,000 values"),
    (GOOD + "seed: !!python/object/apply:os.getpid []\n", "3:7", "seed", "config/bad-yaml", "tag !!python/object/apply:os.getpid is not allowed"),
    (GOOD + "evaluate: {<<: {a: 1}}\n", "3:12", "evaluate.<<", "config/bad-yaml", "merge keys are not supported; write the fields out"),
    (GOOD + "---\n" + GOOD, "3:1", "", "config/bad-yaml", "but found another document"),
    (GOOD + "seed:\t@\n", "3:6", "", "config/bad-yaml", "a tab; YAML takes only spaces here"),
]  # fmt: skip
FILES = [BadJob(*row) for row in _FILES]

# key=value on the command line; they are read by the same rules.
_OVERRIDES = [
    ("trian.epochs=3", "trian", "config/unknown-key", "unknown key; did you mean 'train'?"),
    ("train.epochs=0", "train.epochs", "config/out-of-range", "must be >= 1, got 0"),
    ("train.epochs=010", "train.epochs", "config/ambiguous-value", "write it in decimal digits"),
    ("train.epochs=[1", "train.epochs", "config/bad-yaml", "in '[1'"),
    ("train.epochs.count=3", "train.epochs", "config/wrong-type", "must be a whole number, got a map"),
    ("optimizer.init_args.lr={a: 1, a: 2}", "optimizer.init_args.lr.a", "config/duplicate-key", "duplicate key"),
    ("train..epochs=3", "", "config/bad-override", "'train..epochs=3' is not an override; write key.path=value"),
    ("train", "", "config/bad-override", "'train' is not an override; write key.path=value"),
    ("=3", "", "config/bad-override", "'=3' is not an override"),
]
OVERRIDES = [BadJob(text, "command line", *rest) for text, *rest in _OVERRIDES]
BAD_JOBS = [*FIELDS, *FILES, *OVERRIDES]
