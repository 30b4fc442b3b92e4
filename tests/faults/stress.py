"""`make stress`: campaigns by seed, until every row of the table has its count.

    python -m tests.faults.stress [--minutes M] [--only NAME ...]    goes on where the last call stopped
    python -m tests.faults.stress NAME SEED                          one seed again, written nowhere

What was injected is added up over calls in benchmarks/results/faults.json; no seed is ever used twice. The next seed is
of the campaign that has the smallest part of what it needs, as far as the time left allows. A violation ends the call
with status 1, is kept in the file with its seed, and its seed counts for nothing."""

import argparse
import importlib
import importlib.util
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results
from tests.faults.figures import CAMPAIGNS, Campaign, Seeds, rows
from tests.faults.pictures import draw, table
from tests.faults.tally import Tally

SUITE = "faults"
MINUTES = 38.0
KEPT_TREES = "hogwild-stress-"


# ---- what was done so far -------------------------------------------------------------------------------------------


def read(folder: Path) -> dict[str, Seeds]:
    """Campaign -> its seeds so far, in the order they were done; from `folder`/faults.json."""
    file = folder / f"{SUITE}.json"
    kept: Mapping[str, Any] = json.loads(file.read_text()).get("campaigns", {}) if file.exists() else {}
    return {campaign.name: Seeds.from_json(kept.get(campaign.name, [])) for campaign in CAMPAIGNS}


def write(done: Mapping[str, Seeds], described: dict[str, Any], folder: Path) -> None:
    """The rows of other suites that share the file stay as they are."""
    as_json = {name: seeds.as_json() for name, seeds in done.items()}
    results.update(SUITE, rows(done), described, folder, {"campaigns": as_json}, is_quiet=True)
    (folder / f"{SUITE}-campaigns.md").write_text(table(done))
    draw(done, folder / f"{SUITE}-campaigns.png")


# ---- one call -------------------------------------------------------------------------------------------------------


def stress(minutes: float, campaigns: Sequence[Campaign], folder: Path = results.FOLDER) -> int:
    """Runs seeds for about so long. Returns the exit status: 1 after a violation."""
    described = results.machine()
    deadline = time.monotonic() + 60 * minutes
    done = read(folder)
    while (campaign := _next(campaigns, done, deadline - time.monotonic())) is not None:
        seeds = done[campaign.name]
        seed = seeds.next_seed
        tally, seconds = run_seed(campaign, seed)
        seeds.add(seed, tally, seconds)
        write(done, described, folder)
        print(f"{campaign.name} {seed}: {_words(tally)}, {seconds:.0f} s", flush=True)
        if not tally.is_clean:
            print(_complaint(campaign, seed, tally), file=sys.stderr)
            return 1
    for campaign in campaigns:
        print(f"{campaign.name}: {done[campaign.name].clean.injected:,} of {campaign.needed:,}")
    return 0


def _next(campaigns: Sequence[Campaign], done: Mapping[str, Seeds], left_s: float) -> Campaign | None:
    """The one that lacks most, of those whose next seed is likely to fit."""
    if left_s <= 0:
        return None
    lacking = [
        (done[campaign.name].clean.injected / campaign.needed, campaign.name, campaign)
        for campaign in campaigns
        if done[campaign.name].clean.injected < campaign.needed
        and _is_there(campaign)
        and (done[campaign.name].longest_s or campaign.first_guess_s) <= left_s
    ]
    return min(lacking)[2] if lacking else None


def _is_there(campaign: Campaign) -> bool:
    return importlib.util.find_spec(campaign.module) is not None


def run_seed(campaign: Campaign, seed: int) -> tuple[Tally, float]:
    """In a folder of its own, which stays where it can be looked at when something is wrong."""
    folder = Path(tempfile.mkdtemp(prefix=f"{KEPT_TREES}{campaign.name}-{seed}-"))
    began = time.monotonic()
    tally: Tally = importlib.import_module(campaign.module).run(seed, campaign.a_seed, folder)
    seconds = time.monotonic() - began
    if tally.is_clean:
        shutil.rmtree(folder)
    else:
        print(f"what it left is in {folder}", file=sys.stderr)
        tally.violations = [words.replace(str(folder), "…") for words in tally.violations]  # they are kept
    return tally, seconds


def _words(tally: Tally) -> str:
    return (
        f"{tally.injected} injected, {tally.survived} survived, {tally.lost} lost, {tally.duplicated} duplicated, "
        f"{tally.hangs} hangs, {tally.indeterminate} in doubt"
    )


def _complaint(campaign: Campaign, seed: int, tally: Tally) -> str:
    lines = "\n".join(f"  {words}" for words in tally.violations)
    return f"{campaign.name}, seed {seed}: {_words(tally)}\n{lines}\nagain: {campaign.replay(seed)}"


def replay(name: str, seed: int) -> int:
    campaign = {campaign.name: campaign for campaign in CAMPAIGNS}[name]
    tally, seconds = run_seed(campaign, seed)
    print(json.dumps(tally.as_json(), indent=2))
    print(f"{_words(tally)}, {seconds:.0f} s" if tally.is_clean else _complaint(campaign, seed, tally))
    return 0 if tally.is_clean else 1


def main(argv: Sequence[str]) -> int:
    names = [campaign.name for campaign in CAMPAIGNS]
    parser = argparse.ArgumentParser(prog="python -m tests.faults.stress", description="the fault campaign, by seed")
    parser.add_argument("name", nargs="?", choices=names, help="run this campaign's SEED again")
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for how long, about (default: %(default)g)")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    given = parser.parse_args(argv)
    if (given.name is None) != (given.seed is None):
        parser.error("a campaign to run again needs its seed")
    if given.name is not None:
        return replay(given.name, given.seed)
    return stress(given.minutes, [campaign for campaign in CAMPAIGNS if campaign.name in given.only])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
