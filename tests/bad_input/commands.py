"""Bad inputs, a part of the table: command lines."""

from tests.bad_input.row import Row, check, job

COMMANDS: dict[str, Row] = {
    "a misspelt command": Row(
        ("trian",), 2, "usage/unknown-command", ("unknown command 'trian'", "did you mean 'train'?")
    ),
    "a field as option": Row(
        ("train", "job.yaml", "--resume", "run", "--epochs", "3"),
        2,
        "usage/field-as-option",
        ("--epochs is not an option; write train.epochs=3", "Try: hogwild train job.yaml --resume run train.epochs=3"),
    ),
    "an option nobody knows": Row(
        ("check", "job.yaml", "--depe"),
        2,
        "usage/arguments",
        ("No such option: --depe", "--deep", "hogwild check --help"),
    ),
    "an unknown code": Row(
        ("explain", "config/unknwon-key"), 2, "usage/bad-value", ("no error code", "did you mean 'config/unknown-key'?")
    ),
    "an option without its value": Row(("check", "--data-dir"), 2, "usage/arguments", ("--data-dir", "an argument")),
    "an option that is no number": Row(
        ("chaos", "job.yaml", "--kills", "many"), 2, "usage/arguments", ("--kills", "integer")
    ),
    "a word too many": Row(("doctor", "now"), 2, "usage/arguments", ("now", "Try: hogwild doctor --help")),
    "two job files": Row(
        ("check", "job.yaml", "four.yaml"),
        2,
        "usage/contradiction",
        ("only one job file is allowed, got job.yaml and four.yaml",),
    ),
    "a field without a value": Row(
        check("train.epochs"), 2, "usage/contradiction", ("job.yaml and train.epochs", "key=value")
    ),
    "a value without a field": Row(check("=3"), 2, "config/bad-override", ("command line: '=3' is not an override",)),
    "a field with a hole": Row(check("train..epochs=3"), 2, "config/bad-override", ("write key.path=value",)),
    "a bracket left open in a value": Row(
        check("data.val={fraction: 0.2"), 2, "config/bad-yaml", ("command line: data.val:", "in '{fraction: 0.2'")
    ),
    "an octal value": Row(
        check("train.epochs=010"), 2, "config/ambiguous-value", ("command line: train.epochs: 010", "write 10")
    ),
    "a duplicate key in a value": Row(
        check("train={procs: 1, procs: 2}"), 2, "config/duplicate-key", ("train.procs: duplicate key",)
    ),
    "a field of a number": Row(check("train.epochs.count=3"), 2, "config/wrong-type", ("train.epochs",)),
    "nothing shown of nowhere": Row(("show", "nowhere.yaml"), 3, "run/job-file-not-found", ("nowhere.yaml",)),
    "no plan for nonsense": Row(("plan", "job.yaml", "train.procs=lots"), 2, "config/wrong-type", ("train.procs",)),
    "a data folder that is not there, for a plan": Row(
        ("plan", "job.yaml", "--data-dir", "nowhere"), 3, "data/folder-not-found", ("--data-dir nowhere",)
    ),
    "a list of what there is not": Row(("list", "mdels"), 2, "usage/bad-value", ("cannot list 'mdels'", "models")),
    "a window that is none": Row(job("--profile", "soon"), 2, "usage/bad-value", ("--profile soon: must be A:B",)),
    "a window backwards": Row(job("--profile", "5:2"), 2, "usage/bad-value", ("--profile 5:2", "0 <= A < B")),
    "a resume and a job file": Row(
        job("--resume", "run"),
        2,
        "usage/contradiction",
        ("--resume takes the job and the folder from the run", "job.yaml"),
    ),
    "a resume and a run directory": Row(
        ("train", "--resume", "run", "--run-dir", "other"), 2, "usage/contradiction", ("--run-dir", "not allowed")
    ),
    "no kill": Row(("chaos", "job.yaml", "--kills", "0"), 2, "usage/arguments", ("Invalid value for '--kills'",)),
    "a negative seed": Row(
        ("chaos", "job.yaml", "--seed", "-1"), 2, "usage/arguments", ("Invalid value for '--seed'",)
    ),
    "faults without time between": Row(
        ("chaos", "job.yaml", "--every", "0"), 2, "usage/bad-value", ("--every 0: must be > 0",)
    ),
    "a fault nobody knows": Row(
        ("chaos", "job.yaml", "--faults", "kil"), 2, "usage/bad-value", ("--faults: unknown kind 'kil'", "kill")
    ),
    "chaos without workers": Row(
        ("chaos", "job.yaml", "train.procs=0"), 2, "usage/bad-value", ("train.procs: 0", "no worker to kill")
    ),
    "a report of nothing": Row(("report", "nowhere"), 3, "run/not-found", ("run nowhere: there is no such folder",)),
    "a report of what is no run": Row(
        ("report", "damaged"), 3, "run/not-a-run", ("run damaged: not a run", "resolved.yaml")
    ),
    "a report without a run": Row(("report",), 2, "usage/arguments", ("RUN", "Try: hogwild report --help")),
    "an evaluation of nothing": Row(("eval", "nowhere"), 3, "run/not-found", ("nowhere: there is no such folder",)),
    "an evaluation of which": Row(
        ("eval", "damaged", "--which", "worst"), 2, "usage/bad-value", ("--which worst: must be best or latest",)
    ),
    "an evaluation of what is no run": Row(("eval", "damaged"), 3, "export/no-checkpoint", ("damaged",)),
    "an export of nothing": Row(("export", "nowhere"), 3, "run/not-found", ("nowhere: there is no such folder",)),
    "an export of what is no run": Row(("export", "damaged"), 3, "export/no-checkpoint", ("damaged",)),
    "an unknown format": Row(
        ("export", "damaged", "--format", "hdf5"), 2, "usage/bad-value", ("--format hdf5: must be safetensors",)
    ),
    "a task nobody wrote": Row(
        ("init", "minst"), 2, "usage/unknown-task", ("unknown task 'minst'", "did you mean 'mnist'?")
    ),
    "a job file that is there": Row(
        ("init", "digits"), 2, "usage/file-exists", ("digits.yaml", "replace it with --force")
    ),
    "a job file in no folder": Row(
        ("init", "digits", "--out", "no/where.yaml"), 3, "usage/no-folder", ("there is no folder", "create it first")
    ),
}
