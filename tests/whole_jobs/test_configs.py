"""The job files that come with hogwild, and those `init` writes: each trains, its words are true, and an editor sees in
them what we see."""

import gzip
import json
import random
import re
import shutil
import struct
import zipfile
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml

from hogwild.cli.catalog import MODELINE, job_text, sample_files, tasks
from hogwild.cli.main import run as command
from hogwild.config.locate import list_configs, shipped
from tests.helpers.jobs import Ended, in_turn

CONFIGS = list_configs()[0].parent
ALL = [*list_configs(), *sorted((CONFIGS / "templates").glob("*.yaml"))]
UPDATES = 3
STREAMED = ("mnist_stream", "names", "online", "speakers")  # by a loader, where there is a worker
# The others train in the parent: a worker imports torch, a second each.
IN_A_WORKER = ("own_model", "csv_regression", *STREAMED)


def name(file: Path) -> str:
    return str(file.relative_to(CONFIGS).with_suffix(""))


# ---- an editor's eyes -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CONFIGS / "job.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(found)
    return found


@pytest.mark.parametrize("file", ALL, ids=name)
def test_the_first_line_leads_an_editor_to_the_schema_which_accepts_the_job(file: Path, schema: dict[str, Any]) -> None:
    first = file.read_text().splitlines()[0]
    assert first.startswith(MODELINE)
    assert (file.parent / first.removeprefix(MODELINE)).resolve() == (CONFIGS / "job.schema.json").resolve()
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(file.read_text()))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("train: {epochs: 0}", "train.epochs"),
        ("train: {epoch: 3}", "train"),
        ("train: {procs: many}", "train.procs"),
        ("train: {max_updates: 0}", "train.max_updates"),  # a bound of an optional number
        ("checkpoint: {every_updates: -1}", "checkpoint.every_updates"),
        ("supervise: {on_nan: ignore}", "supervise.on_nan"),
        ("seed: 1.5", "seed"),
        ("data: {batch_size: 16}", "data"),  # nothing to train on
        ("optimiser: {}", ""),
        ("version: 2", "version"),
    ],
)
def test_an_editor_sees_a_mistake_where_it_is(change: str, where: str, schema: dict[str, Any]) -> None:
    job = yaml.safe_load((CONFIGS / "digits.yaml").read_text()) | yaml.safe_load(change)
    errors = [*jsonschema.Draft202012Validator(schema).iter_errors(job)]
    assert {".".join(map(str, error.absolute_path)) for error in errors} == {where}


def test_every_job_file_belongs_to_a_task_and_is_written_with_all_it_needs() -> None:
    assert {shipped(f"configs/{task.job}").resolve() for task in tasks().values()} == {file.resolve() for file in ALL}
    for name, task in tasks().items():
        mentioned = {*re.findall(r"\b(\w+)\.\w+\b", job_text(name))} | {*re.findall(r"\b\w+\.csv\b", job_text(name))}
        ours = {"mymodel", "shifted", "tastes", "ads.csv", "houses.csv"}
        assert {file.removesuffix(".py") for file in task.beside} == ours & mentioned


# ---- training -------------------------------------------------------------------------------------------------------


def idx(folder: Path, stem: str, values: np.ndarray) -> None:
    """A file as the publishers of MNIST and Fashion-MNIST have it, gzipped."""
    head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    (folder / f"{stem}-idx{values.ndim}-ubyte.gz").write_bytes(gzip.compress(head + values.tobytes()))


def make_sparse_data(folder: Path, draw: np.random.Generator) -> None:
    """Rows, ratings, triples and texts: enough for a few updates."""
    for own in ("imdb", "a9a", "jester", "codex-m", "word-similarity"):
        (folder / own).mkdir()
    lines = []
    for row in range(64):
        features = sorted(draw.choice(np.arange(1, 100), 5, replace=False))
        lines.append(f"{'+1' if row % 2 else '-1'} " + " ".join(f"{k}:1" for k in features))
    rows = "\n".join(lines) + "\n"
    for half in ("train", "test"):
        (folder / "imdb" / f"imdb_bow_{half}.svm.gz").write_bytes(gzip.compress(rows.encode()))
    for file in ("a9a", "a9a.t"):
        (folder / "a9a" / file).write_text(rows)
    jokes = np.where(draw.random((80, 100)) < 0.5, 99, draw.uniform(-10, 10, (80, 100)).round(2))
    table = [",".join([str(int((row != 99).sum())), *(f"{value:g}" for value in row)]) for row in jokes]
    with zipfile.ZipFile(folder / "jester" / "jester-data-1.zip", "w") as archive:
        archive.writestr("jester-data-1.csv", "\n".join(table) + "\n")
    words = ["king", "queen", "man", "woman", "love", "sex", *(f"w{k}" for k in range(30))]
    text = [" ".join(draw.choice(words, 12)) for _ in range(400)]
    (folder / "imdb" / "imdb_text.txt.gz").write_bytes(gzip.compress("\n".join(text).encode()))
    with zipfile.ZipFile(folder / "text8.zip", "w") as archive:
        archive.writestr("text8", " ".join(text))
    pairs = ["king\tqueen\t8.58", "man\twoman\t8.3", "love\tsex\t6.77", "king\tlove\t1.2"]
    (folder / "word-similarity" / "wordsim353.tsv").write_text("\n".join(pairs) + "\n")
    for file in ("train.txt", "valid.txt"):
        triples = {(draw.integers(20), draw.integers(3), draw.integers(20)) for _ in range(90)}
        (folder / "codex-m" / file).write_text("".join(f"Q{h}\tP{r}\tQ{t}\n" for h, r, t in sorted(triples)))


def make_texts(folder: Path, draw: np.random.Generator) -> None:
    """A play of ten speakers; names of three languages."""
    (folder / "tinyshakespeare").mkdir()
    lines = ["".join(draw.choice([*"abcdefgh "], 60)) for _ in range(800)]
    speeches = [f"SPEAKER {k % 10}:\n{line}\n" for k, line in enumerate(lines)]
    (folder / "tinyshakespeare" / "input.txt").write_text("\n".join(speeches))
    (folder / "names").mkdir()
    for language in ("Dutch", "Irish", "Thai"):
        names = {"".join(draw.choice([*"abcdefgh"], draw.integers(2, 12))) for _ in range(60)}
        (folder / "names" / f"{language}.txt").write_text("\n".join(sorted(names)))


def make_data(folder: Path) -> None:
    """Few samples, in the right format, of what does not come with hogwild."""
    draw = np.random.default_rng(0)
    for own in ("mnist", "fashion_mnist"):
        (folder / own).mkdir(parents=True)
        for stem, count in (("train", 256), ("t10k", 32)):
            idx(folder / own, f"{stem}-images", draw.integers(0, 256, (count, 28, 28), np.uint8))
            idx(folder / own, f"{stem}-labels", draw.integers(0, 10, count, np.uint8))
    make_sparse_data(folder, draw)
    make_texts(folder, draw)
    samples = [sample_files(task).items() for task in ("arrays", "pictures", "clicks", "plays")]
    for file, content in chain.from_iterable(samples):
        (folder / "samples" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "samples" / file).write_bytes(content)


def make_pretrained(folder: Path) -> None:
    """By the commands that finetune.yaml names."""
    run, file = str(folder / "base"), str(folder / "data" / "digits.safetensors")
    assert command(["train", "--run-dir", run, "--no-progress", "train.procs=0", "train.max_updates=1"]) == 0
    assert command(["export", run, "--format", "safetensors", "--out", file]) == 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Ended]:
    """Every job for a few updates, from a copy of configs/ that lies elsewhere, as in a wheel, in other folders."""
    folder = tmp_path_factory.mktemp("configs")
    make_data(folder / "data")
    make_pretrained(folder)
    shutil.copytree(CONFIGS, folder / "configs")
    for companion in ("houses.csv", "mymodel.py"):  # where `init` puts them: beside the job
        shutil.copy(CONFIGS / companion, folder / "configs" / "templates")
    jobs = {
        name(file): [
            "train",
            str(folder / "configs" / file.relative_to(CONFIGS)),
            *("--data-dir", str(folder / "data")),
            f"train.procs={int(name(file) in IN_A_WORKER)}",
            f"train.max_updates={UPDATES}",
        ]
        for file in ALL
    }
    return in_turn(folder / "jobs", {job.replace("/", "-"): argv for job, argv in jobs.items()})


@pytest.mark.processes
@pytest.mark.parametrize("file", ALL, ids=name)
def test_it_trains_from_the_command_line_wherever_it_lies(file: Path, trained: Mapping[str, Ended]) -> None:
    ended = trained[name(file).replace("/", "-")]
    assert ended.status == 0, ended.stderr
    summary = ended.summary
    assert summary["updates"] == UPDATES and summary["state"] == "succeeded"
    job = yaml.safe_load(file.read_text())
    wanted = ["loss", *job.get("evaluate", {}).get("metrics", [])] if "val" in job["data"] else []
    assert len(ended.events("loader-spawn")) == (name(file) in STREAMED)
    assert {metric.rpartition(".")[2] for metric in wanted} <= (summary["metrics"] or {}).keys()


# ---- true words -----------------------------------------------------------------------------------------------------

HEATING = {"gas": 0.0, "district": 0.15, "heat pump": 0.35}


def houses() -> str:
    """configs/houses.csv: invented by this formula, so it is nobody's, and the best possible error is known."""
    draw = random.Random(2011)
    lines = ["area_m2,rooms,age_years,distance_km,heating,price,band"]
    for _ in range(240):
        area = 30 + round(150 * draw.random())
        rooms = 1 + round(area / 32 + 2 * draw.random() - 1)
        age = round(90 * draw.random())
        distance = round(25 * draw.random(), 1)
        heating = [*HEATING][int(3 * draw.random())]
        noise = 0.2 * (sum(draw.random() for _ in range(3)) - 1.5)  # of deviation 0.1
        price = 0.9 + 0.022 * area + 0.12 * rooms - 0.009 * age - 0.055 * distance + HEATING[heating] + noise
        band = "affordable" if price < 2 else "middle" if price < 3.2 else "expensive"
        lines.append(f"{area},{rooms},{age},{distance},{heating},{price:.3f},{band}")
    return "\n".join(lines) + "\n"


ADS = {"outdoors": ("tents", "boots", "maps"), "books": ("novels", "poems", "pens")}
USERS = [
    *("ann", "ben", "cleo", "dan", "eva", "finn", "gina", "hugo", "iris", "jon", "kim", "leo"),
    *("mia", "ned", "olga", "pia", "ravi", "sue", "tom", "uma", "vera", "will", "xena", "yan"),
]


def clicks() -> str:
    """configs/ads.csv: a user likes one of two topics, and clicks nine of ten of its advertisements."""
    draw = random.Random(7)
    lines = ["user,ad,clicked"]
    for _ in range(960):
        user, topic = draw.randrange(len(USERS)), draw.choice([*ADS])
        is_liked = [*ADS][user % 2] == topic
        lines.append(f"{USERS[user]},{draw.choice(ADS[topic])},{int(draw.random() < (0.9 if is_liked else 0.1))}")
    return "\n".join(lines) + "\n"


def test_the_invented_tables_are_those_of_their_formulas() -> None:
    assert (CONFIGS / "houses.csv").read_text() == houses()
    assert (CONFIGS / "ads.csv").read_text() == clicks()
    assert f"{len(clicks().splitlines()) - 1} invented rows" in (CONFIGS / "online.yaml").read_text()


@pytest.mark.parametrize(("file", "samples"), [("csv_regression", 240), ("templates/csv_classification", 240)])
def test_the_counts_in_its_comments_are_right(file: str, samples: int) -> None:
    text = (CONFIGS / f"{file}.yaml").read_text()
    job = yaml.safe_load(text)
    assert f"{samples} invented rows" in text and samples == len(houses().splitlines()) - 1
    held = round(samples * job["data"]["val"]["fraction"])
    updates = -(-(samples - held) // job["data"]["batch_size"]) * job["train"]["epochs"]
    assert f"{held} of the rows" in text and f"# {updates:,} updates" in text
