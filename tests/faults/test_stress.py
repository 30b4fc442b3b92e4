"""The books of `make stress`: seeds are used once, failed ones come again, other programs' rows stay."""

import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import results
from benchmarks.row import Row
from tests.faults import stress
from tests.faults.stress import CAMPAIGNS, Campaign, Seeds, rows, table
from tests.faults.tally import Tally

NOTHING = {campaign.name: Seeds() for campaign in CAMPAIGNS}


def clean(injected: int) -> Tally:
    return Tally(injected=injected, survived=injected)


def wrong(injected: int, words: str) -> Tally:
    return Tally(injected=injected, survived=injected - 1, lost=1, violations=[words])


@pytest.fixture
def campaign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Campaign:
    """One of the campaigns' names with a body that injects faults into nothing and notes its seeds."""
    campaign = Campaign("parent", 30, 10, 1.0)
    body = ModuleType(campaign.module)
    body.seeds, body.outcomes = [], {}  # type: ignore[attr-defined]

    def run(seed: int, count: int, folder: Path) -> Tally:
        assert folder.is_dir()
        body.seeds.append(seed)
        tally: Tally = body.outcomes.pop(seed, clean(count))
        return tally

    body.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, campaign.module, body)
    monkeypatch.setattr(stress, "_is_there", lambda campaign: True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # what a seed that failed leaves
    return campaign


def body_of(campaign: Campaign) -> ModuleType:
    return sys.modules[campaign.module]


@pytest.mark.processes
def test_a_call_goes_on_where_the_last_one_stopped_and_no_seed_is_used_twice(
    campaign: Campaign, tmp_path: Path
) -> None:
    before = Seeds()
    before.add(0, clean(10), 2.0)
    stress.write({**NOTHING, "parent": before}, {}, tmp_path)
    assert stress.stress(1.0, [campaign], tmp_path) == 0
    assert body_of(campaign).seeds == [1, 2]
    done = stress.read(tmp_path)["parent"]
    assert [one.seed for one in done.done] == [0, 1, 2]
    assert done.clean.injected == 30
    assert stress.stress(1.0, [campaign], tmp_path) == 0
    assert body_of(campaign).seeds == [1, 2]


@pytest.mark.processes
def test_a_violation_ends_the_call_is_kept_and_comes_again_until_it_is_mended(
    campaign: Campaign, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body_of(campaign).outcomes[1] = wrong(10, "a process lives")
    assert stress.stress(1.0, [campaign], tmp_path) == 1
    assert "python -m tests.faults.stress parent 1" in capsys.readouterr().err
    assert "a process lives" in (tmp_path / "faults-campaigns.md").read_text()
    assert stress.read(tmp_path)["parent"].clean.injected == 10
    assert any(
        row.met is False for row in rows(stress.read(tmp_path)) if row.figure.startswith("parent SIGKILL: batches")
    )
    assert stress.stress(1.0, [campaign], tmp_path) == 0
    assert body_of(campaign).seeds == [0, 1, 1, 2]
    (mended,) = [one for one in stress.read(tmp_path)["parent"].done if one.failed_before]
    assert mended.failed_before[0] == "a process lives"


@pytest.mark.processes
def test_a_call_ends_when_the_next_seed_would_not_fit(campaign: Campaign, tmp_path: Path) -> None:
    before = Seeds()
    before.add(0, clean(10), 120.0)
    stress.write({**NOTHING, "parent": before}, {}, tmp_path)
    assert stress.stress(1.0, [campaign], tmp_path) == 0
    assert body_of(campaign).seeds == []


@pytest.mark.processes
def test_rows_of_other_programs_stay_in_the_file(tmp_path: Path) -> None:
    other = Row("detection: death, p99", "ms", 10.0, [0.0, 2.0], smaller_is_better=True)
    results.write("faults", [other.void("noisy")], {}, tmp_path, {"elsewhere": [1]})
    stress.write(NOTHING, {}, tmp_path)
    stress.write(NOTHING, {}, tmp_path)
    kept = json.loads((tmp_path / "faults.json").read_text())
    assert Row.read(kept["rows"][0]) == other
    assert len({row["figure"] for row in kept["rows"]}) == len(kept["rows"]) == 1 + len(rows(NOTHING))
    assert kept["elsewhere"] == [1]
    results.update("faults", [Row("detection: death, p99", "ms", 10.0, [3.0], smaller_is_better=True)], {}, tmp_path)
    kept = json.loads((tmp_path / "faults.json").read_text())
    assert kept["rows"][0]["value"] == 3.0
    assert kept["campaigns"].keys() == NOTHING.keys()


def test_every_campaign_is_in_the_table_and_has_figures() -> None:
    assert all(campaign.name in table(NOTHING) for campaign in CAMPAIGNS)
    assert {row.met for row in rows(NOTHING)} == {False}


def test_doubts_are_a_part_of_the_kills_and_only_lenets_are_asked_for() -> None:
    seeds = Seeds()
    for seed, (kind, doubts) in enumerate([("LeNet direct", 1), ("LeNet auto", 0), ("counting direct redo", 9)]):
        tally = clean(100)
        tally.note(f"{kind}: kills", 100)
        tally.note(f"{kind}: in doubt", doubts)
        tally.note(f"{kind}: % of an update in apply", 2.5)
        seeds.add(seed, tally, 60.0)
    found = {row.figure: row for row in rows({**NOTHING, "training": seeds}) if "in doubt" in row.figure}
    asked = found.pop("real training, random SIGKILL, LeNet: kills that leave an exchange in doubt")
    assert (asked.value, asked.met, asked.note) == (0.5, True, "of 200 kills; the apply is 2.5 to 2.5 % of an update")
    assert sorted((row.value, row.met) for row in found.values()) == [(0.0, None), (1.0, None), (9.0, None)]
