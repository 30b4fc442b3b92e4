"""The campaign's table and picture: what was injected, what was survived, what was lost."""

from collections.abc import Mapping
from pathlib import Path

from tests.faults.figures import CAMPAIGNS, Seeds

HEAD = ("injected", "survived", "lost", "duplicated", "hangs", "in doubt")
LOST, KEPT, ASKED = "tab:red", "tab:green", "0.85"


def _counts(seeds: Seeds) -> tuple[int, ...]:
    done = seeds.all
    return (done.injected, done.survived, done.lost, done.duplicated, done.hangs, done.indeterminate)


def table(done: Mapping[str, Seeds]) -> str:
    """In Markdown. *In doubt* are exchanges that a death interrupted: counted in the ledger, and redone or skipped by
    policy."""
    lines = [
        "# The fault campaign",
        "",
        "Written by `make stress`; what each campaign does stands at the head of tests/faults/campaigns/NAME.py.",
        "*In doubt*: exchanges that a death interrupted; the ledger counts them, a policy redoes or skips them.",
        "",
        f"| campaign | asked | {' | '.join(HEAD)} | seeds | minutes |",
        f"|---|{'---:|' * (len(HEAD) + 3)}",
    ]
    for campaign in CAMPAIGNS:
        seeds = done[campaign.name]
        counts = " | ".join(f"{count:,}" for count in _counts(seeds))
        minutes = sum(one.seconds for one in seeds.done) / 60
        lines.append(f"| {campaign.name} | {campaign.needed:,} | {counts} | {len(seeds.done)} | {minutes:.1f} |")
    return "\n".join([*lines, *_failures(done)]) + "\n"


def _failures(done: Mapping[str, Seeds]) -> list[str]:
    """What is wrong now, and what was wrong once."""
    lines = []
    for campaign in CAMPAIGNS:
        for one in done[campaign.name].done:
            for words in one.tally.violations:
                lines.append(f"* **{campaign.name}, seed {one.seed}** (`{campaign.replay(one.seed)}`): {_line(words)}")
            for words in one.failed_before:
                lines.append(f"* {campaign.name}, seed {one.seed}, mended since: {_line(words)}")
    return ["", "## Violations", "", *lines] if lines else []


def _line(words: str) -> str:
    flat = " ".join(words.split())
    return flat if len(flat) <= 300 else f"{flat[:300]}…"


def draw(done: Mapping[str, Seeds], file: Path) -> None:
    """Replaces `file` (PNG): how much of what is asked for was injected, and survived; and faults over the time spent.
    matplotlib is of the extras: only who draws imports it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    bars, curves = figure.subplots(1, 2)
    for place, campaign in enumerate(reversed(CAMPAIGNS)):
        tally, whole = done[campaign.name].all, 100 / campaign.needed
        bars.barh(place, 100, color=ASKED)
        bars.barh(place, whole * tally.injected, color=LOST)
        bars.barh(place, whole * tally.survived, color=KEPT)
        words = f"{tally.survived:,} of {tally.injected:,} survived, {tally.lost + tally.duplicated:,} batches wrong"
        bars.text(2, place, words, va="center", fontsize=8)
    bars.set_yticks(range(len(CAMPAIGNS)), [f"{one.name}\n({one.needed:,})" for one in reversed(CAMPAIGNS)], fontsize=9)
    bars.set_xlabel("% of the faults asked for (gray: still to do; red: not survived)")
    for campaign in CAMPAIGNS:
        minutes, faults = [0.0], [0.0]
        for one in done[campaign.name].done:
            minutes.append(minutes[-1] + one.seconds / 60)
            faults.append(faults[-1] + one.tally.injected)
        if len(minutes) > 1:
            curves.plot(minutes, faults, marker="o", markersize=3, label=campaign.name)
    curves.set_yscale("symlog", linthresh=10)
    curves.set_ylim(bottom=0)
    curves.set_xlabel("minutes spent on the campaign")
    curves.set_ylabel("faults injected")
    curves.grid(alpha=0.3)
    if curves.lines:
        curves.legend(fontsize=8)
    for axes in (bars, curves):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)
