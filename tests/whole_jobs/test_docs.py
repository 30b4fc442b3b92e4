"""The documentation: every command and program in it runs, every job file in it is right, every link leads somewhere.
A page's blocks are run in their order, in a folder of its own (tests/helpers/pages.py)."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hogwild.cli import main
from hogwild.cli.catalog import KINDS
from hogwild.config.load import load_job
from tests.helpers.jobs import HOME, start
from tests.helpers.pages import Step, as_json, blocks, is_like, steps
from tests.helpers.processes import PATIENCE_S
from tools.reference import generated

PAGES = {
    name: (HOME / name).read_text()
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "docs/README.md",
        "docs/quick-start.md",
        "docs/job-file.md",
        "docs/bring-your-own.md",
        "docs/fine-tuning.md",
        "docs/from-mnist-hogwild.md",
        "docs/when-it-helps.md",
        "docs/sparse.md",
        "docs/words-and-graphs.md",
        "docs/recurrent.md",
        "docs/streaming.md",
        "docs/online.md",
        "docs/precision-and-compilation.md",
        "docs/devices.md",
        "docs/reading-a-report.md",
        "docs/running-jobs.md",
        "docs/predicting.md",
        "docs/recommending.md",
        "docs/searching.md",
        "docs/service.md",
    )
}
pytestmark = pytest.mark.timeout(900)  # the first test waits for the commands of all pages: a minute or two, if idle
LANGUAGES = {"console", "python", "yaml", "text", ""}
DATA = os.environ.get("HOGWILD_DATA")


def is_target(words: list[str]) -> bool:
    """make: what it does is known to work where CI does just that; here, that there is such a target."""
    return re.search(rf"^{words[1]}:", (HOME / "Makefile").read_text(), re.MULTILINE) is not None


def is_installable(words: list[str]) -> bool:
    """pip: that the extras are ours."""
    extras = re.search(r"\[(.+)\]", words[-1])
    known = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return words[1] == "install" and (extras is None or set(extras[1].split(",")) <= set(known))


ONLINE = "docs/online.md"  # its jobs run without an end, and are killed: test_online_page.py
# What is not run here, and what is looked at instead.
NOT_RUN: dict[str, Callable[[list[str]], bool]] = {"make": is_target, "pip": is_installable}


def all_steps() -> list[Step]:
    return [step for name, page in PAGES.items() if name != ONLINE for step in steps(name.removesuffix(".md"), page)]


def is_run(step: Step) -> bool:
    return not step.command or shlex.split(step.command)[0] not in NOT_RUN


@pytest.fixture(scope="module")
def results(jobs_folder: Path) -> list[tuple[Step, dict[str, Any]]]:
    """Every step that runs here with its exit status and output, all of one process."""
    given = [step for step in all_steps() if is_run(step) and (DATA or not step.needs_data)]
    (jobs_folder / "STEPS.json").write_text(as_json(given))
    runner = start(jobs_folder, str(jobs_folder / "STEPS.json"), python=("-m", "tests.helpers.pages"))
    try:
        ended = runner.wait(850)
        assert ended.status == 0, ended.stderr + ended.stdout
        assert not ended.left_behind
        found = json.loads((jobs_folder / "RESULTS.json").read_text())
    finally:
        runner.destroy()
    return list(zip(given, found, strict=True))


def wrong(results: list[tuple[Step, dict[str, Any]]], page: str, *, needs_data: bool) -> Iterator[str]:
    for step, found in results:
        if step.page != page.removesuffix(".md") or step.needs_data != needs_data:
            continue
        printed = [line.strip() for line in found["output"].splitlines()]
        missing = [line for line in step.expected if not any(map(is_like(line).fullmatch, printed))]
        if found["status"] != step.status or missing:
            place = f"{page}:{step.line}: $ {step.command}: exit status {found['status']}"
            yield "\n".join([place, *(f"printed nothing like: {line}" for line in missing), found["output"]])


@pytest.mark.processes
@pytest.mark.parametrize("page", [name for name in PAGES if name != ONLINE])
def test_every_command_of_a_page_does_what_the_page_says(page: str, results: list[tuple[Step, dict[str, Any]]]) -> None:
    assert not [*wrong(results, page, needs_data=False)]


@pytest.mark.processes
@pytest.mark.skipif(not DATA, reason="HOGWILD_DATA is not set: the commands that need MNIST's files are not run")
def test_the_commands_that_need_mnist_do_what_the_pages_say(results: list[tuple[Step, dict[str, Any]]]) -> None:
    assert not [line for page in PAGES for line in wrong(results, page, needs_data=True)]


def test_another_exit_status_or_output_than_a_page_says_is_noticed() -> None:
    page = "```console\n$ hogwild check job.yaml  # exit status 2\njob.yaml: ok\n…\n  12 errors, in 3 places\n```\n"
    (step,) = steps("page", page)
    assert step.command == "hogwild check job.yaml"
    right = {"status": 2, "output": "first\njob.yaml: ok\n  7 errors, in 3 places\n"}
    assert not [*wrong([(step, right)], "page.md", needs_data=False)]
    for found in (
        right | {"status": 0},
        right | {"output": "job.yaml: ok\n"},
        right | {"output": "first\njob.yaml: ok\n  7 errors\n"},
    ):
        assert [*wrong([(step, found)], "page.md", needs_data=False)]


@pytest.mark.parametrize(
    ("shown", "printed", "is_alike"),
    [
        ("code run/ended: hogwild explain run/ended", "code run/ended: cause and fix in docs/errors.md", False),
        ("  1,024 samples, loss 0.5, 2 s ago", "96 samples, loss 1.5e-03, 12.5 s ago", True),
        ("epoch 1/2  auc 0.81", "epoch 2/2  accuracy 0.81", False),
        ("run directory …/runs/first", "run directory elsewhere/runs/first", True),
        ("run directory …/runs/first", "run directory elsewhere/runs/last", False),
        ("job 1 (3f6a0c2b91de) is queued", "job 12 (000000000000) is queued", True),
        ("began 2026-01-01 12:00:00+00:00", "began 2027-12-31 01:02:03+01:00", True),
        ("usable cores: 2 in the affinity mask, no quota", "usable cores: 4 by the quota of a control group", True),
        ("1   short   succeeded", "1        short  succeeded", True),
        ("loss 0.5", "loss 0.5 (not finite)", False),
    ],
)
def test_a_line_is_compared_whole_but_for_figures(shown: str, printed: str, is_alike: bool) -> None:
    assert bool(is_like(shown).fullmatch(printed)) is is_alike


def test_what_is_not_run_here_is_there() -> None:
    left_out = [step for step in all_steps() if not is_run(step)]
    assert left_out
    for step in left_out:
        words = shlex.split(step.command)
        assert NOT_RUN[words[0]](words), f"{step.page}:{step.line}: {step.command}"


def test_no_command_stands_in_a_block_that_is_not_run() -> None:
    for name, page in PAGES.items():
        for block in blocks(page):
            assert block.language in LANGUAGES, f"{name}:{block.line}: {block.language}"
            is_command = re.search(r"^(\$ |hogwild |python |pip )", block.text, re.MULTILINE)
            assert block.language in ("console", "python") or not is_command, f"{name}:{block.line}"
            if block.language != "console":  # a list of targets
                made = re.findall(r"^make .*", block.text, re.MULTILINE)
                assert all(is_target(line.split()) for line in made), f"{name}:{block.line}"


def test_every_job_file_in_a_page_is_right() -> None:
    """A part of one stands beside what a job needs at least, and validation data."""
    example = next(block for block in blocks(PAGES["docs/job-file.md"]) if block.language == "yaml")
    base = example.text.replace("{split: train}}}", "{split: train}}, val: {fraction: 0.1}}")
    assert "val:" in base
    for name, page in PAGES.items():
        for block in blocks(page):
            if block.language == "yaml":
                given = {line.split(":")[0] for line in block.text.splitlines()}
                least = [line for line in base.splitlines() if line.split(":")[0] not in given]
                load_job(Path(f"{name}:{block.line}"), source_text="\n".join([*least, block.text]))


def test_every_generated_file_is_up_to_date() -> None:
    assert [name for name, content in generated().items() if (HOME / name).read_text() != content] == [], (
        "make reference"
    )


PRINTED = {"schema": "configs/job.schema.json"} | {
    f"list {kind} --arguments": f"docs/reference/{kind}.md" for kind in KINDS
}


@pytest.mark.parametrize("command", PRINTED)
def test_a_generated_file_is_the_one_printed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(command.split()) == 0
    assert capsys.readouterr().out == (HOME / PRINTED[command]).read_text()


def test_every_link_and_picture_leads_somewhere() -> None:
    for name, page in PAGES.items():
        for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]+))?\)", page):
            file = (HOME / name).parent / target if target else HOME / name
            assert file.exists(), f"{name}: {target}"
            if anchor:
                heads = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
                assert anchor in {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}, (
                    name,
                    anchor,
                )


def test_the_index_has_a_line_for_every_page() -> None:
    index = PAGES["docs/README.md"]
    assert {path.name for path in (HOME / "docs").glob("*.md")} - {"README.md"} == set(
        re.findall(r"\]\(([\w-]+\.md)\)", index)
    )
    assert {path.name for path in (HOME / "docs" / "reference").iterdir()} == set(
        re.findall(r"\]\(reference/([\w-]+\.md)\)", index)
    )
    assert "(docs/README.md)" in PAGES["README.md"]


@pytest.mark.processes
def test_the_sites_navigation_has_every_page() -> None:
    def named(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values() if isinstance(entry, dict) else entry:
                yield from named(inner)

    pages = [str(path.relative_to(HOME / "docs")) for path in (HOME / "docs").rglob("*.md")]
    navigation = yaml.safe_load((HOME / "mkdocs.yml").read_text())["nav"]
    assert sorted(named(navigation)) == sorted(pages)


@pytest.mark.processes
def test_the_site_builds_and_no_link_in_it_leads_nowhere(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="of the extra 'docs'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert built.returncode == 0, built.stderr
    assert "left as is" not in built.stderr
    assert (tmp_path / "project" / "benchmarks" / "results" / "dense" / "index.html").is_file()  # linked, beside docs/


def test_the_pictures_are_small() -> None:
    assert not [file for file in (HOME / "docs").rglob("*.png") if file.stat().st_size > 80_000]
