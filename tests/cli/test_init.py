"""`hogwild init`: every task's job file is right as it is written, for us and for an editor; nothing of the user's is
replaced. And `hogwild list`, which says what there is to choose from."""

import inspect
import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from hogwild.cli import main
from hogwild.cli.catalog import LISTED, MODELINE, SCHEMA, job_text, tasks
from hogwild.user_code import resolve
from tools.reference import described

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("task", tasks())
def test_a_job_file_passes_check_as_it_was_written_and_all_that_was_written_is_said(
    task: str, here: Path, capsys: Captured
) -> None:
    assert main.run(["init", task]) == 0
    first, *files, following, change = capsys.readouterr().out.splitlines()
    assert (
        first == f"wrote {task}.yaml"
        and following == f"next: hogwild {'search' if task == 'search' else 'train'} {task}.yaml"
    )
    assert change == f"then, for your own data, change {tasks()[task].change}"
    said = {line.removeprefix("wrote ").partition(":")[0] for line in files}
    written = {file.relative_to(here) for file in here.rglob("*") if file.is_file()} - {Path(f"{task}.yaml")}
    assert all({str(file), str(file.parent)} & said for file in written)
    assert main.run(["check", f"{task}.yaml"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("task", tasks())
def test_an_editor_finds_the_schema_beside_the_job_file_and_the_job_right(task: str, here: Path) -> None:
    assert main.run(["init", task]) == 0
    text = (here / f"{task}.yaml").read_text()
    first = text.splitlines()[0]
    assert first.startswith(MODELINE)
    schema = json.loads((here / first.removeprefix(MODELINE)).read_text())
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(text))


def test_what_is_there_already_stays_unless_it_is_forced(here: Path, capsys: Captured) -> None:
    for name in ("own-model.yaml", "mymodel.py", SCHEMA):
        (here / name).write_text("mine")
    assert main.run(["init", "own-model"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "own-model.yaml already exists" in said.err and "--force" in said.err
    assert (here / "own-model.yaml").read_text() == "mine"
    assert main.run(["init", "own-model", "--force"]) == 0
    assert (here / "own-model.yaml").read_text() == job_text("own-model")
    assert {(here / name).read_text() for name in ("mymodel.py", SCHEMA)} == {"mine"}, "--force is about the job file"
    said = capsys.readouterr()
    assert "kept mymodel.py" in said.out and f"update it with: hogwild schema > {SCHEMA}" in said.out


def test_a_second_job_in_the_same_folder_shares_what_lies_beside_it(here: Path, capsys: Captured) -> None:
    assert main.run(["init", "csv-regression"]) == 0
    capsys.readouterr()
    assert main.run(["init", "csv-classification", "--out", "second.yaml"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3, "neither written again nor complained about"
    assert {file.name for file in here.iterdir()} == {"csv-regression.yaml", "second.yaml", "houses.csv", SCHEMA}


def test_a_sample_of_ones_own_stays_and_what_several_tasks_share_is_written_once(here: Path, capsys: Captured) -> None:
    (here / "samples").mkdir()
    (here / "samples" / "sentences.txt").write_text("mine")
    assert main.run(["init", "words"]) == 0
    assert "kept samples/sentences.txt, which differs" in capsys.readouterr().out
    assert (here / "samples" / "sentences.txt").read_text() == "mine"
    assert main.run(["init", "words-text8"]) == 0
    said = capsys.readouterr().out
    assert "wrote samples/words.zip" in said and "word_pairs" not in said


def test_a_file_in_place_of_the_folder_of_samples_is_an_error_with_its_name(here: Path, capsys: Captured) -> None:
    (here / "samples").write_text("mine")
    assert main.run(["init", "names"]) == 1
    assert "samples/names: cannot be made: Not a directory" in capsys.readouterr().err
    assert (here / "samples").read_text() == "mine"


def test_a_dash_prints_the_job_and_writes_nothing(here: Path, capsys: Captured) -> None:
    assert main.run(["init", "own-model", "--out", "-"]) == 0
    said = capsys.readouterr()
    assert said.out == job_text("own-model") and "use --out FILE to also write mymodel.py" in said.err
    assert not list(here.iterdir())


def test_the_tasks_are_listed_with_a_line_each(capsys: Captured) -> None:
    listed = []
    for arguments in (["init", "--list"], ["init"], ["list", "tasks"]):
        assert main.run(arguments) == 0
        listed.append(capsys.readouterr().out)
    assert listed[0] == listed[1] == listed[2]
    assert [line.split()[0] for line in listed[0].splitlines()] == [*tasks()]


def test_everything_is_listed_under_headings_with_a_line_about_each(capsys: Captured) -> None:
    assert main.run(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    headings = [line for line in lines if not line.startswith(" ")]
    assert [heading.partition(":")[0] for heading in headings] == [*LISTED]
    for line in lines:
        assert len(line.split(maxsplit=1)) == 2, f"no word about {line}"
    for name in ("models.LeNet", "data.Digits", "digits.yaml", "losses.BprLoss", "macro_f1", "own-model"):
        assert any(name in line for line in lines)


@pytest.mark.parametrize("kind", ["models", "data", "losses"])
def test_the_arguments_of_a_class_are_those_of_its_constructor_each_with_its_meaning(kind: str) -> None:
    for one in described(kind):
        assert one.sentence.endswith(".") and len(one.sentence) > 20, one.path
        found = inspect.signature(resolve(one.path)).parameters
        is_our_own = any("__init__" in vars(base) for base in resolve(one.path).__mro__ if "hogwild" in base.__module__)
        assert [each.name for each in one.arguments] == ([*found] if is_our_own else [])
        for each in one.arguments:
            assert len(each.meaning) > 6 and each.meaning.endswith((".", '"')), (one.path, each)
            is_required = found[each.name].default is inspect.Parameter.empty
            assert (each.default in ("required", "from the data")) == is_required, (one.path, each)
