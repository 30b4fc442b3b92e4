"""Bad inputs, a part of the table: job files as they are written, and fields as they are set."""

from tests.bad_input.row import Row, check, job

GOOD = """\
model: {class_path: guilty.Net}
data: {train: {class_path: guilty.blobs}, batch_size: 8}
optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}
train: {procs: 1}
"""
WRONG_IN_FOUR_PLACES = """\
model: {class_pth: guilty.Net}
data: {train: {class_path: guilty.blobs}, batch_size: 0}
train: {epochs: many}
sede: 1
"""
BILLION = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdef", "bcdefg", strict=True)
)


def of(init_args: str) -> str:
    """The good job with these arguments of its model."""
    return GOOD.replace("{class_path: guilty.Net}", f"{{class_path: guilty.Net, init_args: {{{init_args}}}}}")


# What lies in the user's folder: name -> text, or bytes where they are no text.
TEXTS: dict[str, str | bytes] = {
    "job.yaml": GOOD,
    "four.yaml": WRONG_IN_FOUR_PLACES,
    "twice.yaml": GOOD + "train: {procs: 2}\n",
    "tab.yaml": "model:\n\tclass_path: guilty.Net\n",
    "latin.yaml": "name: Blåbær\n".encode("latin-1"),
    "empty.yaml": "",
    "open.yaml": "model: {class_path: guilty.Net\ntrain: {procs: 1}\n",
    "tag.yaml": GOOD + "seed: !!python/object/apply:os.getpid []\n",
    "merged.yaml": "base: &base {procs: 1}\n" + GOOD + "evaluate: {<<: *base}\n",
    "listed_key.yaml": GOOD + "? [a, b]\n: 1\n",
    "in_itself.yaml": of("norm: &a [*a]"),
    "two.yaml": GOOD + "---\n" + GOOD,
    "list.yaml": "- model\n- data\n",
    "word.yaml": "hello\n",
    "utf16.yaml": GOOD.encode("utf-16"),
    "bom.yaml": b"\xef\xbb\xbf" + GOOD.encode(),
    "bell.yaml": GOOD + "name: ding\x07\n",
    "deep.yaml": GOOD + "name: " + "[" * 70 + "]" * 70 + "\n",
    "aliases.yaml": BILLION + GOOD,
    "long.yaml": GOOD + "#" * 1_000_001,
    "escape.yaml": GOOD + 'name: "\\U00110000"\n',
    "octal.yaml": of("norm: 010"),
    "sixties.yaml": of("norm: 1:30"),
    "hexadecimal.yaml": of("norm: 0x1f"),
    "underscore.yaml": of("norm: 1_000"),
    "infinite.yaml": of("norm: .inf"),
    "overflowing.yaml": of("norm: 1e999"),
    "digits.yaml": of("norm: " + "9" * 400),
    "boolean_key.yaml": of("norm: {true: 1}"),
    "no_model.yaml": "data: {train: {class_path: guilty.blobs}}\n",
    "null.yaml": GOOD.replace("train: {procs: 1}", "train:"),
    "no_map.yaml": "model: [guilty.Net]\ndata: {train: {class_path: guilty.blobs}}\n",
}

FILES: dict[str, Row] = {
    "a bracket left open": Row(
        ("check", "open.yaml"),
        2,
        "config/bad-yaml",
        ("open.yaml:2:6: ", "the { of line 1, column 8 is not closed", "',' or '}'"),
    ),
    "a tag": Row(("check", "tag.yaml"), 2, "config/bad-yaml", ("tag.yaml:5:7: seed: tag !!python", "not allowed")),
    "a merge key": Row(("check", "merged.yaml"), 2, "config/invalid", ("evaluate.<<: merge keys are not supported",)),
    "a list as key": Row(("check", "listed_key.yaml"), 2, "config/bad-yaml", (":5:3: a key must be plain text",)),
    "an anchor in itself": Row(("check", "in_itself.yaml"), 2, "config/bad-yaml", ("anchor that contains itself",)),
    "two documents": Row(
        ("check", "two.yaml"),
        2,
        "config/bad-yaml",
        ("two.yaml:5:1: ", "but found another document"),
    ),
    "a list": Row(("check", "list.yaml"), 2, "config/empty", ("list.yaml:1:1", "a map of sections, not a list")),
    "a word": Row(("check", "word.yaml"), 2, "config/empty", ("not the single value 'hello'",)),
    "UTF-16": Row(("check", "utf16.yaml"), 2, "config/encoding", ("utf16.yaml:1:1: saved as UTF-16",)),
    "a byte order mark": Row(("check", "bom.yaml"), 2, "config/encoding", ("bom.yaml:1:1", "byte order mark")),
    "a control character": Row(("check", "bell.yaml"), 2, "config/encoding", ("bell.yaml:5:11: character U+0007",)),
    "too deep": Row(("check", "deep.yaml"), 2, "config/too-large", ("deep.yaml:5:", "more than 64 levels")),
    "a million aliases": Row(("check", "aliases.yaml"), 2, "config/too-large", ("more than 100,000 values",)),
    "a megabyte": Row(("check", "long.yaml"), 2, "config/too-large", ("a job file has at most 1,000,000",)),
    "an escape beyond Unicode": Row(
        ("check", "escape.yaml"), 2, "config/bad-yaml", ("escape.yaml:5:8", "beyond the last character of Unicode")
    ),
    "an octal number": Row(
        ("check", "octal.yaml"), 2, "config/ambiguous-value", (":1:51: model.init_args.norm: 010", "write 10")
    ),
    "minutes": Row(
        ("check", "sixties.yaml"), 2, "config/ambiguous-value", ("1:30 is 90 for some", 'or "1:30" for text')
    ),
    "hexadecimal": Row(("check", "hexadecimal.yaml"), 2, "config/ambiguous-value", ("0x1f", "write 31")),
    "an underscore": Row(("check", "underscore.yaml"), 2, "config/ambiguous-value", ("1_000", "write 1000")),
    "infinity": Row(
        ("check", "infinite.yaml"), 2, "config/not-finite", ("model.init_args.norm: must be finite, got .inf",)
    ),
    "a number that overflows": Row(
        ("check", "overflowing.yaml"), 2, "config/not-finite", ("must be finite, got 1e999",)
    ),
    "400 digits": Row(("check", "digits.yaml"), 2, "config/out-of-range", ("a number of 400 digits is too large",)),
    "true as key": Row(("check", "boolean_key.yaml"), 2, "config/bad-yaml", ("text or a whole number, got 'true'",)),
    "no model": Row(("check", "no_model.yaml"), 2, "config/missing-key", ("no_model.yaml:1:1: model: is required",)),
    "an empty section": Row(
        ("check", "null.yaml"), 2, "config/wrong-type", ("train: must be a map", "got null; write its keys")
    ),
    "a list for a section": Row(
        ("check", "no_map.yaml"), 2, "config/wrong-type", ("model: must be a map", "['guilty.Net']")
    ),
    "four errors": Row(
        ("train", "four.yaml"),
        2,
        "config/invalid",
        ("four.yaml:1:", "did you mean 'class_path'?", "batch_size", "epochs", "'seed'?", "nothing was started"),
    ),
    "a duplicate key": Row(
        ("train", "twice.yaml"), 2, "config/duplicate-key", ("twice.yaml:5:1", "train", "duplicate")
    ),
    "a tab": Row(("train", "tab.yaml"), 2, "config/bad-yaml", ("tab.yaml:2:1",)),
    "not UTF-8": Row(("train", "latin.yaml"), 2, "config/encoding", ("latin.yaml", "UTF-8")),
    "an empty job file": Row(("train", "empty.yaml"), 2, "config/empty", ("empty.yaml", "model")),
    "no such job file": Row(
        ("train", "nowhere.yaml"), 3, "run/job-file-not-found", ("nowhere.yaml", "No such file", "looked for /")
    ),
    "a folder as job file": Row(("train", "damaged/"), 3, "run/job-file-not-found", ("damaged",)),
    "an unknown override": Row(
        job("optimizer.init_args.lrr=1"), 2, "config/unknown-argument", ("lrr", "did you mean 'lr'?")
    ),
    "a negative rate": Row(job("optimizer.init_args.lr=-1"), 2, "config/bad-argument", ("lr: must be >= 0, got -1",)),
    "procs that are no number": Row(
        job("--procs", "many"), 2, "config/wrong-type", ("train.procs", "auto or a whole number", "'many'")
    ),
    "no update between two flushes": Row(
        job("train.sync_every=0"), 2, "config/out-of-range", ("train.sync_every", "must be >= 1, got 0")
    ),
    "an exchange too long to count": Row(
        job("train.sync_every=1000", "train.accumulate=66"),
        2,
        "config/contradiction",
        ("train.sync_every", "times train.accumulate must be <= 65535 batches, got 1000 x 66"),
    ),
    "a negative staleness": Row(
        job("train.max_staleness=-1"), 2, "config/out-of-range", ("train.max_staleness", "must be >= 0, got -1")
    ),
    "delta with a state for all": Row(
        job("train.exchange=delta", "optimizer.state=shared"),
        2,
        "config/contradiction",
        ("train.exchange", "must be direct or auto where optimizer.state is shared", "got 'delta'"),
    ),
    "a misspelt target": Row(
        job("data.val={fraction: 0.5}", "evaluate.target={accurcy: 0.9}"),
        2,
        "config/unknown-metric",
        ("did you mean 'accuracy'?",),
    ),
    "a target without data.val": Row(
        check("evaluate.target={accuracy: 0.9}"),
        2,
        "config/needs-validation",
        ("evaluate.target: needs data.val", "such as data.val={fraction: 0.1}"),
    ),
    "a run that is not there": Row(("train", "--resume", "nowhere"), 3, "run/not-found", ("nowhere", "no such folder")),
    "a run that is none": Row(("train", "--resume", "damaged"), 3, "run/not-a-run", ("not a run", "resolved.yaml")),
    "a data folder that is not there": Row(
        job("--data-dir", "nowhere"), 3, "data/folder-not-found", ("--data-dir nowhere", "no such folder")
    ),
}

FIELDS: dict[str, Row] = {
    "patience without data.val": Row(
        check("evaluate.patience=3"), 2, "config/needs-validation", ("command line: evaluate.patience: needs data.val",)
    ),
    "evaluations between epochs of nothing": Row(
        check("evaluate.every_updates=5"), 2, "config/needs-validation", ("evaluate.every_updates: needs data.val",)
    ),
    "too few slots for the workers": Row(
        job("data.feed=stream", "data.slots=3"),
        2,
        "config/contradiction",
        ("data.slots: must be >= 4 for 1 workers, 1 loaders and exchanges of 1 batches, got 3",),
    ),
    "too few slots for an exchange": Row(
        job("data.feed=stream", "data.slots=9", "train.exchange=delta", "train.sync_every=4", "data.loaders=2"),
        2,
        "config/contradiction",
        ("data.slots: must be >= 12", "2 loaders and exchanges of 4 batches, got 9"),
    ),
    "a collate_fn for resident data": Row(
        check("data.feed=resident", "data.collate={class_path: guilty.nothing}"),
        2,
        "data/stream-only",
        ("data.collate: needs data.feed: stream, but the job sets resident",),
    ),
    "padding of resident data": Row(
        check("data.feed=resident", "data.padding={value: 0}"),
        2,
        "data/stream-only",
        ("data.padding: needs data.feed",),
    ),
    "a metric named as a field of the records": Row(
        check("evaluate.metrics=[guilty.epoch]"),
        2,
        "config/metric-name",
        ("evaluate.metrics[0]: evaluation records already have a field of this name", "rename the function"),
    ),
    "a word for yes": Row(
        check("data.drop_last=yes"), 2, "config/wrong-type", ("data.drop_last: must be true or false", "write true")
    ),
    "a number in quotes": Row(
        check("data.batch_size='64'"), 2, "config/wrong-type", ("a whole number, got '64'; remove the quotes",)
    ),
    "half a sample": Row(
        check("data.batch_size=2.5"), 2, "config/wrong-type", ("data.batch_size: must be a whole number, got 2.5",)
    ),
    "a whole number as float": Row(check("train.epochs=2.0"), 2, "config/wrong-type", ("got 2.0; write 2",)),
    "no epoch": Row(check("train.epochs=0"), 2, "config/out-of-range", ("train.epochs: must be >= 1, got 0",)),
    "fewer than no workers": Row(check("train.procs=-1"), 2, "config/out-of-range", ("from 0 to 1024, got -1",)),
    "more than 64 bits": Row(
        check("seed=99999999999999999999"), 2, "config/out-of-range", ("seed: must fit into 64 bits",)
    ),
    "a name with a slash": Row(
        check("name=../up"), 2, "config/bad-name", ("name: must be usable as a folder name", "'../up'")
    ),
    "another version": Row(check("version=2"), 2, "config/unknown-choice", ("version: must be 1", "got 2")),
    "a key of another section": Row(
        check("lr=0.1"), 2, "config/unknown-key", ("did you mean 'optimizer.init_args.lr'?",)
    ),
    "a class path without a dot": Row(
        check("model.class_path=Net"), 2, "config/class-path", ("a dotted path", "mymodel.Net, got 'Net'")
    ),
    "a device of another time": Row(
        check("train.device=tpu"), 2, "config/unknown-choice", ("train.device: must be auto, cpu, cuda",)
    ),
    "an unknown order": Row(
        check("data.shuffle=ful"), 2, "config/unknown-choice", ("data.shuffle", "did you mean 'full'?")
    ),
    "a fraction of two": Row(
        check("data.val={fraction: 2}"), 2, "config/out-of-range", ("data.val.fraction: must be < 1, got 2",)
    ),
    "a model we have not": Row(
        check("model.class_path=hogwild.models.LeNt"), 2, "config/class-path", ("did you mean 'LeNet'?",)
    ),
    "data we have not": Row(
        check("data.train.class_path=hogwild.data.Mnst"), 2, "config/class-path", ("did you mean 'Mnist'?",)
    ),
    "an optimizer torch has not": Row(
        check("optimizer.class_path=torch.optim.Adamm"), 2, "config/class-path", ("no 'Adamm'", "did you mean 'Adam")
    ),
    "a loss torch has not": Row(
        check("loss.class_path=torch.nn.MSLoss"),
        2,
        "config/class-path",
        ("torch.nn has no loss 'MSLoss'", "'MSELoss'?"),
    ),
    "a loss without a mean": Row(
        check("loss={class_path: torch.nn.MSELoss, init_args: {reduction: none}}"),
        2,
        "config/bad-argument",
        ("must be mean or sum, got 'none'",),
    ),
    "an argument that is filled in": Row(
        check("optimizer.init_args.params=[]"), 2, "config/unknown-argument", ("filled in with the model's parameters",)
    ),
    "too much momentum": Row(
        check("optimizer.init_args.momentum=1.5"), 2, "config/bad-argument", ("momentum: must be < 1, got 1.5",)
    ),
    "nesterov without momentum": Row(
        check("optimizer.init_args.nesterov=true"), 2, "config/bad-argument", ("needs a momentum > 0",)
    ),
    "a rate in quotes": Row(
        check("optimizer.init_args.lr='0.1'"), 2, "config/bad-argument", ("must be a number without quotes",)
    ),
    "more workers than there are": Row(
        check("supervise.min_workers=2"), 2, "config/contradiction", ("must be <= train.procs (1), got 2",)
    ),
    "grace beyond the deadline": Row(
        check("supervise.grace_s=900"), 2, "config/contradiction", ("supervise.deadlock_timeout_s (300, the default)",)
    ),
    "no time at all": Row(
        check("supervise.stall_timeout_s=0"), 2, "config/out-of-range", ("stall_timeout_s: must be > 0, got 0",)
    ),
    "an unknown schedule": Row(
        check("lr_schedule.name=cosin"), 2, "config/unknown-choice", ("lr_schedule.name", "did you mean 'cosine'?")
    ),
    "a step without its length": Row(
        check("lr_schedule.name=step"), 2, "config/missing-key", ("lr_schedule.every_updates: is required",)
    ),
    "a schedule with another's key": Row(
        check("lr_schedule={name: cosine, gamma: 0.5}"), 2, "config/unknown-key", ("lr_schedule.gamma: unknown key",)
    ),
    "gradients of no length": Row(
        check("train.grad_clip=0"), 2, "config/out-of-range", ("train.grad_clip: must be > 0",)
    ),
    "patience of none": Row(
        check("evaluate.patience=0"), 2, "config/out-of-range", ("evaluate.patience: must be >= 1, got 0",)
    ),
    "an evaluation after no update": Row(
        check("evaluate.every_updates=0"), 2, "config/out-of-range", ("evaluate.every_updates: must be >= 1",)
    ),
    "a better that is neither": Row(
        check("evaluate.mode=up"), 2, "config/unknown-choice", ("evaluate.mode: must be one of auto, min, max",)
    ),
    "a misspelt metric": Row(
        check("evaluate.metrics=[acuracy]"),
        2,
        "config/unknown-metric",
        ("evaluate.metrics[0]", "did you mean 'accuracy'?"),
    ),
    "a metric twice": Row(
        check("evaluate.metrics=[auc, auc]"),
        2,
        "config/duplicate-key",
        ("evaluate.metrics[1]: must not be listed twice",),
    ),
    "metrics that are no list": Row(
        check("evaluate.metrics=accuracy"), 2, "config/unknown-choice", ("evaluate.metrics: must be auto",)
    ),
    "a monitor that is not computed": Row(
        check("evaluate={metrics: [accuracy], monitor: auc}"),
        2,
        "config/unknown-metric",
        ("evaluate.monitor", "accuracy"),
    ),
    "a monitor that is no name": Row(
        check("evaluate.monitor=a b"), 2, "config/unknown-metric", ("evaluate.monitor: must be a metric's name",)
    ),
    "perhaps the best": Row(
        check("checkpoint.keep_best=perhaps"), 2, "config/wrong-type", ("checkpoint.keep_best: must be true or false",)
    ),
    "no checkpoint kept": Row(
        check("checkpoint.keep=0"), 2, "config/out-of-range", ("checkpoint.keep: must be >= 1, got 0",)
    ),
    "perhaps TensorBoard": Row(
        check("log.tensorboard=perhaps"), 2, "config/wrong-type", ("log.tensorboard: must be auto, true or false",)
    ),
    "a transform without a path": Row(
        check("data.transform={init_args: {}}"), 2, "config/missing-key", ("data.transform.class_path: is required",)
    ),
    "a transform that is a word": Row(
        check("data.transform=flip"), 2, "config/wrong-type", ("data.transform: must be a map",)
    ),
    "an argument left out": Row(
        job("model.class_path=guilty.NeedsASize"), 2, "config/missing-argument", ("init_args.size: is required",)
    ),
    "a metric that is not there": Row(
        job("data.val={fraction: 0.5}", "evaluate.metrics=[guilty.accuracy]"),
        2,
        "config/no-such-name",
        ("guilty has no 'accuracy'",),
    ),
    "a transform that is not there": Row(
        job("data.transform={class_path: guilty.fliped}"), 2, "config/no-such-name", ("guilty has no 'fliped'",)
    ),
}
