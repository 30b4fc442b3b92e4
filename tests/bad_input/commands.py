"""Bad inputs, a part of the table: command lines, and job files that a command reads from the disk. Rules of job files
are in `jobs.py`."""

from tests.bad_input.row import Row, check, job

TEXTS = {  # name in the user's folder -> text
    "job.yaml": (
        "model: {class_path: guilty.Net}\n"
        "data: {train: {class_path: guilty.blobs}, batch_size: 8}\n"
        "optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}\n"
        "train: {procs: 1}\n"
    ),
    "four.yaml": (
        "model: {class_pth: guilty.Net}\n"
        "data: {train: {class_path: guilty.blobs}, batch_size: 0}\n"
        "train: {epochs: many}\n"
        "sede: 1\n"
    ),
    "digits.yaml": "",
}

COMMANDS: dict[str, Row] = {
    "a misspelt command": Row(("trian",), 2, "usage/unknown-command",
        ("unknown command 'trian'", "did you mean 'train'?")),
    "a field as option": Row(("train", "job.yaml", "--resume", "run", "--epochs", "3"), 2, "usage/field-as-option",
        ("--epochs is not an option; write train.epochs=3",
        "Try: hogwild train job.yaml --resume run train.epochs=3\n")),
    "two fields as options": Row(check("--workers", "2", "--seed=3"), 2, "usage/field-as-option",
        ("write train.procs=2; --seed is not an option", "Try: hogwild check job.yaml train.procs=2 seed=3\n")),
    "a field as option without its value": Row(check("--pin", "seed=3"), 2, "usage/field-as-option",
        ("--pin is not an option; write train.pin=VALUE", "Try: hogwild check job.yaml train.pin=VALUE seed=3\n")),
    "a field as option with blanks": Row(check("--model.init_args.sizes", "[1, 2]"), 2, "usage/field-as-option",
        ("write model.init_args.sizes='[1, 2]'", "Try: hogwild check job.yaml 'model.init_args.sizes=[1, 2]'\n")),
    "a field of two sections as option": Row(check("--every-s", "1"), 2, "usage/field-as-option",
        ("write checkpoint.every_s=1 or log.every_s=1", "Try: hogwild check job.yaml checkpoint.every_s=1\n")),
    "an option nobody knows": Row(("check", "job.yaml", "--depe"), 2, "usage/arguments",
        ("No such option: --depe", "--deep", "hogwild check --help")),
    "an option without its value": Row(("check", "--data-dir"), 2, "usage/arguments", ("--data-dir", "an argument")),
    "an option that is no number": Row(("chaos", "job.yaml", "--kills", "many"), 2, "usage/arguments",
        ("--kills", "integer")),
    "a number out of range": Row(("chaos", "job.yaml", "--kills", "0"), 2, "usage/arguments",
        ("Invalid value for '--kills'",)),
    "a word too many": Row(("doctor", "now"), 2, "usage/arguments", ("now", "Try: hogwild doctor --help")),
    "a word too few": Row(("report",), 2, "usage/arguments", ("RUN", "Try: hogwild report --help")),
    "two job files": Row(("check", "job.yaml", "four.yaml"), 2, "usage/contradiction",
        ("only one job file is allowed, got job.yaml and four.yaml", "key=value")),
    "four errors in a job file": Row(("train", "four.yaml"), 2, "config/invalid",
        ("four.yaml:1:", "did you mean 'class_path'?", "batch_size", "epochs", "'seed'?", "nothing was started")),
    "a wrong field on the command line": Row(check("train.epochs=0"), 2, "config/out-of-range",
        ("command line: train.epochs: must be >= 1, got 0",)),
    "procs that are no number": Row(job("--procs", "many"), 2, "config/wrong-type",
        ("command line: train.procs", "auto or a whole number", "'many'")),
    "no such job file": Row(("train", "nowhere.yaml"), 3, "run/job-file-not-found",
        ("nowhere.yaml", "No such file", "looked for /")),
    "a folder as job file": Row(("train", "damaged/"), 3, "run/job-file-not-found", ("damaged",)),
    "too few slots for an exchange": Row(job("data.feed=stream", "data.slots=9", "train.exchange=delta",
        "train.sync_every=4", "data.loaders=2"), 2, "config/contradiction",
        ("data.slots: must be >= 12 for 1 workers, 2 loaders and exchanges of 4 batches, got 9",)),
    "a data folder that is not there": Row(("plan", "job.yaml", "--data-dir", "nowhere"), 3, "data/folder-not-found",
        ("--data-dir nowhere", "no such folder")),
    "a list of what there is not": Row(("list", "mdels"), 2, "usage/bad-value",
        ("cannot list 'mdels'", "choose models, data, configs, losses, metrics, tasks")),
    "arguments of what has none": Row(("list", "tasks", "--arguments"), 2, "usage/bad-value",
        ("choose models, data, losses, metrics",)),
    "a window that is none": Row(job("--profile", "soon"), 2, "usage/bad-value", ("--profile soon: must be A:B",)),
    "a window backwards": Row(job("--profile", "5:2"), 2, "usage/bad-value", ("--profile 5:2", "0 <= A < B")),
    "a resume and a job file": Row(job("--resume", "run"), 2, "usage/contradiction",
        ("--resume takes the job and the folder from the run", "job.yaml")),
    "a resume and a run directory": Row(("train", "--resume", "run", "--run-dir", "other"), 2, "usage/contradiction",
        ("--run-dir", "not allowed")),
    "a run that is not there": Row(("train", "--resume", "nowhere"), 3, "run/not-found", ("nowhere", "no such folder")),
    "a run that is none": Row(("train", "--resume", "damaged"), 3, "run/not-a-run", ("not a run", "resolved.yaml")),
    "faults without time between": Row(("chaos", "job.yaml", "--every", "0"), 2, "usage/bad-value",
        ("--every 0: must be > 0",)),
    "faults at no time": Row(("chaos", "job.yaml", "--every", "nan"), 2, "usage/bad-value",
        ("--every nan: must be > 0",)),
    "a fault nobody knows": Row(("chaos", "job.yaml", "--faults", "kill,stopp"), 2, "usage/bad-value",
        ("--faults: unknown kind 'stopp'; did you mean 'stop'? (kinds: kill, ",)),
    "chaos without workers": Row(("chaos", "job.yaml", "train.procs=0"), 2, "usage/bad-value",
        ("train.procs: 0", "no worker to kill")),
    "faults of loaders that may not be there": Row(("chaos", "job.yaml", "--faults", "loader-kill"), 2,
        "usage/bad-value", ("loader-kill hits loaders, which read streamed data, but with data.feed: auto",)),
    "faults of loaders that are not there": Row(("chaos", "job.yaml", "--faults", "kill,loader-stop",
        "data.feed=resident"), 2, "usage/bad-value", ("but this job has no loaders (data.feed: resident)",)),
    "a report of nothing": Row(("report", "nowhere"), 3, "run/not-found", ("run nowhere: there is no such folder",)),
    "a report of what is no run": Row(("report", "damaged"), 3, "run/not-a-run",
        ("run damaged: not a run", "resolved.yaml")),
    "an evaluation of nothing": Row(("eval", "nowhere"), 3, "run/not-found", ("nowhere: there is no such folder",)),
    "an evaluation of which": Row(("eval", "damaged", "--which", "worst"), 2, "usage/bad-value",
        ("--which worst: must be best or latest",)),
    "an export of what is no run": Row(("export", "damaged"), 3, "export/no-checkpoint",
        ("neither a run (no folder checkpoints/) nor a checkpoint",)),
    "an unknown format": Row(("export", "damaged", "--format", "hdf5"), 2, "usage/bad-value",
        ("--format hdf5: must be safetensors or state_dict or torch-export or onnx or word2vec",)),
    "a task nobody wrote": Row(("init", "minst"), 2, "usage/unknown-task",
        ("unknown task 'minst'", "did you mean 'mnist'?")),
    "a job file that is there": Row(("init", "digits"), 2, "usage/file-exists",
        ("digits.yaml already exists", "replace it with --force")),
    "a job file in no folder": Row(("init", "digits", "--out", "no/where.yaml"), 3, "usage/no-folder",
        ("there is no folder", "create it first")),
    "a job file in a file": Row(("init", "digits", "--out", "/dev/null/job.yaml"), 1, "run/output-not-written",
        ("cannot be written",)),
}  # fmt: skip
