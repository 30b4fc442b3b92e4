"""The page of a search: trials over time, curves, importance, parallel coordinates, slices, the table of trials. One
HTML file without a script, drawn here as SVG in the colours of the report's style."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from hogwild.config.schema import Range
from hogwild.formatting import counted, duration, percent
from hogwild.report.report import INDEX, Bar, Headline, TableRows, header, page, table
from hogwild.searching import study as studies
from hogwild.searching.results import STATES, SearchRun, cell, ranked, rows_of, short_names
from hogwild.storage import files
from hogwild.storage.files import explained

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 260, 64, 12, 10, 34
COLOURS = {"complete": "--c0", "pruned": "--c4", "failed": "--c1", "running": "--c2", "paused": "--c6"}
MOST_CURVES = 200
FOLDED = 30  # rows of the table that are shown at first


def write_page(search: SearchRun, out: Path | None = None) -> Path:
    """Write the page to SEARCH/report, or to `out`; return it. Raises RunDirError if it cannot be written."""
    folder = search.folder / "report" if out is None else out
    text = page_of(search, search.study())
    with explained(f"cannot write the report to {folder} (another folder: --out DIR)"):
        folder.mkdir(parents=True, exist_ok=True)
        files.replace(folder / INDEX, text.encode(errors="replace"), sync=False)
    return folder / INDEX


def page_of(search: SearchRun, study: optuna.Study) -> str:
    """Return the page of a search as it is now."""
    assert search.job.search is not None
    space, metrics = search.job.search.space, [*studies.metrics_of(search.job)]
    metric, front = metrics[0], studies.front(study)
    is_max, trials = studies.is_maximised(search.job), study.get_trials(deepcopy=False)
    states = {one.number: search.state_of(one) for one in trials}
    shares = studies.importance(study)
    names = short_names(space)
    figures = [
        *(
            (
                "Pareto front" if len(metrics) == 2 else f"Pareto front: {other}",
                f"{other} against {metric}; large dots: on the front, no trial is as good in all and better in one",
                _fronts(trials, states, front, place, is_max),
            )
            for place, other in enumerate(metrics[1:], 1)
        ),
        (
            "Trials over time",
            f"{metric} of each trial; the line is the best so far",
            _over_time(trials, states, is_max),
        ),
        ("Curves", f"{metric} at each evaluation; a curve that ends early was pruned", _curves(trials, states)),
        *(
            (names[field], f"{metric} by {field}", _slice(field, space[field], trials, states, is_max))
            for field in space
        ),
    ]
    wide = "Each line is a complete trial: its values, and what came of them; the better, the stronger"
    parts = [header(search.job.name, [str(search.folder)], _headline(search, study, trials, states)), _legend(states)]
    drawn = [_figure(*one) for one in figures if one[2]]
    coordinates = _parallel(space, names, metrics, trials, is_max=is_max)
    drawn += [_figure("Values together", wide, coordinates, is_wide=True)] if coordinates else []
    parts.append(f'<div class="charts">{"".join(drawn)}</div>')
    if shares:
        bars = [(names.get(field, field), Bar((("", share, "--c0"),))) for field, share in shares.items()]
        note = "Share of each field in the differences between complete trials (PED-ANOVA)."
        parts.append(table(TableRows("Importance", ("field", "importance"), bars, note=note)))
    title, *rows = rows_of(search, ranked(trials, front, is_max=is_max), front)
    marks = ["strong" if row[1] == "failed" else "quiet" if row[1] == "pruned" else "" for row in rows]
    parts.append(table(TableRows("Trials", title, rows, marks, "", FOLDED, "more trials")))
    return page(f"{search.name}: a search of hogwild", parts, None)


def _headline(
    search: SearchRun, study: optuna.Study, trials: Sequence[FrozenTrial], states: Mapping[int, str]
) -> Headline:
    tiles, best = list[tuple[str, str, str]](), studies.best_trial(study)
    if best is not None:
        fields = studies.fields_of(search.job.search.space if search.job.search else {}, best.params)
        words = ", ".join(f"{short_names(fields)[field]} {cell(value)}" for field, value in fields.items())
        for metric, value in zip(studies.metrics_of(search.job), best.values, strict=True):
            label = f"{'' if tiles else 'best '}{metric}"
            tiles.append((label, f"{value:.4g}", "" if tiles else f"trial {best.number}: {words}"))
    kinds = [f"{many} {word}" for word in STATES if (many := [*states.values()].count(word))]
    tiles.append(("trials", str(len(trials)), ", ".join(kinds)))
    tiles.append(("duration", duration(float(study.user_attrs.get(studies.SPENT_S, 0.0))), ""))
    mood = {"succeeded": "good", "failed": "bad", "lost": "bad"}.get(search.state, "neither")
    return Headline(search.state, mood, counted(len(trials), "trial"), tiles, "", "")


# ---- figures --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from values to pixels. `low` and `high` are its ends, `is_log`: by the logarithm, then both above 0."""

    low: float
    high: float
    first_px: float
    last_px: float
    is_log: bool = False

    @classmethod
    def of(cls, values: Iterable[float], first_px: float, last_px: float, *, is_log: bool = False) -> "Axis":
        """Return the axis of these finite values, with a margin at both ends."""
        found = [math.log10(value) if is_log else value for value in values]
        low, high = min(found), max(found)
        margin = 0.05 * (high - low) or 0.05 * abs(low) or 0.5
        margin = max(margin, 0.02) if is_log else margin  # values with three digits lie between its ends
        return cls(low - margin, high + margin, first_px, last_px, is_log)

    def at(self, value: float) -> float:
        found = math.log10(value) if self.is_log else value
        return self.first_px + (self.last_px - self.first_px) * (found - self.low) / (self.high - self.low)

    def ticks(self, most: int = 5) -> list[float]:
        """Return round values inside the axis: powers of ten, if it has two and is logarithmic; else steps."""
        if self.is_log:
            powers = [10.0**power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]
            if len(powers) > 1:
                return powers[:: math.ceil(len(powers) / most)]
            ends = (10**self.low, 10**self.high)
            return [float(f"{ends[0] + part * (ends[1] - ends[0]):.3g}") for part in (0.1, 0.5, 0.9)]
        rough = (self.high - self.low) / most
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * (1 - 1e-9))
        first = math.ceil(self.low / step)
        return [float(f"{place * step:.12g}") for place in range(first, math.floor(self.high / step) + 1)]


def _svg(inner: Iterable[str], words: str, height: int = HEIGHT, width: int = WIDTH) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(words)}" '
        f'style="width:100%;height:auto;font-size:12px">{"".join(inner)}</svg>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, shade: str = "--grid") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" style="stroke:var({shade})"/>'


def _text(x: float, y: float, words: str, anchor: str = "middle", shade: str = "--quiet") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="fill:var({shade})">{escape(words)}</text>'


def _curve(points: Sequence[tuple[float, float]], shade: str, opacity: float = 1.0, width: float = 1.5) -> str:
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    style = f"fill:none;stroke:var({shade});stroke-width:{width};opacity:{opacity:.2f}"
    return f'<polyline points="{joined}" style="{style}"/>'


def _dot(x: float, y: float, shade: str, words: str, radius: int = 4) -> str:
    title = f"<title>{escape(words)}</title>"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" style="fill:var({shade});opacity:.85">{title}</circle>'


def _frame(across: Axis, up: Axis, labels: Mapping[float, str] | None = None) -> Iterator[str]:
    for value in up.ticks():
        yield _line(LEFT, up.at(value), WIDTH - RIGHT, up.at(value))
        yield _text(LEFT - 6, up.at(value) + 4, f"{value:.4g}", "end")
    marks = {across.at(value): f"{value:.4g}" for value in across.ticks()} if labels is None else labels
    for x, words in marks.items():
        yield _text(x, HEIGHT - BOTTOM + 20, words)


def _values(trials: Iterable[FrozenTrial], *, is_max: bool) -> dict[int, float]:
    """Return trial -> its first metric, if it has one."""
    found = {one.number: studies.best_values(one, is_max=is_max) for one in trials}
    return {number: values[0] for number, values in found.items() if values}


def _up(values: Iterable[float]) -> Axis:
    return Axis.of(values, HEIGHT - BOTTOM, TOP)


def _fronts(
    trials: Sequence[FrozenTrial], states: Mapping[int, str], front: Sequence[FrozenTrial], place: int, is_max: bool
) -> str:
    """Draw metric number `place` against the first one."""
    found = {one.number: studies.best_values(one, is_max=is_max) for one in trials}
    points = {
        number: (values[0], values[place])
        for number, values in found.items()
        if values and math.isfinite(values[place])
    }
    if not points:
        return ""
    across = Axis.of((x for x, _ in points.values()), LEFT, WIDTH - RIGHT)
    up, best = _up(y for _, y in points.values()), {one.number for one in front}
    joined = [(across.at(x), up.at(y)) for number in best for x, y in [points[number]]]
    is_line = bool(front) and len(front[0].values) == 2  # of more metrics, the front is no line
    drawn = [_curve(sorted(joined), "--c0", 0.6)] if is_line else []
    for number, (x, y) in points.items():
        words = f"trial {number}: {x:.5g}, {y:.5g}, {'on the front' if number in best else states[number]}"
        drawn.append(_dot(across.at(x), up.at(y), COLOURS[states[number]], words, 7 if number in best else 4))
    return _svg([*_frame(across, up), *drawn], "the front of the metrics")


def _over_time(trials: Sequence[FrozenTrial], states: Mapping[int, str], is_max: bool) -> str:
    values = _values(trials, is_max=is_max)
    if not values:
        return ""
    across, up = Axis.of(values, LEFT, WIDTH - RIGHT), _up(values.values())
    best, steps = None, list[tuple[float, float]]()
    for number, value in sorted(values.items()):
        if states[number] == "complete" and (best is None or (value > best if is_max else value < best)):
            steps += [] if best is None else [(across.at(number), up.at(best))]
            best = value
            steps.append((across.at(number), up.at(best)))
    steps += [] if best is None else [(across.at(max(values)), up.at(best))]
    whole = {across.at(value): f"{value:g}" for value in across.ticks() if value == int(value) and value >= 0}
    dots = (
        _dot(across.at(number), up.at(value), COLOURS[states[number]], f"trial {number}: {value:.5g}, {states[number]}")
        for number, value in values.items()
    )
    return _svg([*_frame(across, up, whole), _curve(steps, "--c0"), *dots], "trials over time")


def _curves(trials: Sequence[FrozenTrial], states: Mapping[int, str]) -> str:
    curves = {
        one.number: [(step, value) for step, (value, *_) in studies.evaluations_of(one).items() if math.isfinite(value)]
        for one in trials
    }
    curves = {number: points for number, points in curves.items() if points}
    if max((len(points) for points in curves.values()), default=0) < 2:
        return ""
    every = [point for points in curves.values() for point in points]
    across, up = Axis.of([step for step, _ in every], LEFT, WIDTH - RIGHT), _up([value for _, value in every])
    whole = {across.at(value): f"{value:g}" for value in across.ticks() if value == int(value) and value >= 1}
    drawn = list[str]()
    for number, points in list(curves.items())[-MOST_CURVES:]:
        at = [(across.at(step), up.at(value)) for step, value in points]
        shade, words = COLOURS[states[number]], f"trial {number}, {states[number]}"
        drawn += [_curve(at, shade, 0.6), *([_dot(*at[-1], shade, words)] if states[number] != "complete" else [])]
    return _svg([*_frame(across, up, whole), *drawn], "curves of the trials")


def _place_of(values: Range, given: Any) -> float:
    """Return the number that stands for a value on an axis: itself, or its place among the choices."""
    return float(given) if values.choice is None else float(values.choice.index(given))


def _slice(field: str, values: Range, trials: Sequence[FrozenTrial], states: Mapping[int, str], is_max: bool) -> str:
    found = _values(trials, is_max=is_max)
    places = {
        one.number: _place_of(values, studies.fields_of({field: values}, one.params)[field])
        for one in trials
        if field in one.params and one.number in found
    }
    if not places:
        return ""
    ends = list(values.log or values.uniform or values.int or range(len(values.choice or ())))
    across = Axis.of(map(float, ends), LEFT, WIDTH - RIGHT, is_log=values.log is not None)
    up, labels = _up(found[number] for number in places), None
    if values.choice is not None:
        labels = {across.at(place): cell(value) for place, value in enumerate(values.choice)}
    dots = (
        _dot(across.at(place), up.at(found[number]), COLOURS[states[number]], f"trial {number}: {found[number]:.5g}")
        for number, place in places.items()
    )
    return _svg([*_frame(across, up, labels), *dots], f"values of {field}")


def _parallel(
    space: Mapping[str, Range],
    names: Mapping[str, str],
    metrics: Sequence[str],
    trials: Sequence[FrozenTrial],
    *,
    is_max: bool,
) -> str:
    done = [one for one in trials if one.state == optuna.trial.TrialState.COMPLETE]
    if len(done) < 2:
        return ""
    done.sort(key=lambda one: one.values[0], reverse=not is_max)  # the best is drawn last
    width = 2 * WIDTH
    gap = (width - 2 * LEFT) / (len(space) + len(metrics) - 1)
    columns = list[tuple[float, Axis, list[float], Mapping[float, str]]]()
    for place, (field, values) in enumerate(space.items()):
        ends = [float(one) for one in values.log or values.uniform or values.int or range(len(values.choice or ()))]
        axis = Axis.of(ends, HEIGHT - BOTTOM, TOP + 16, is_log=values.log is not None)
        given = [_place_of(values, studies.fields_of({field: values}, one.params)[field]) for one in done]
        marks: Mapping[float, str] = {float(at): cell(one) for at, one in enumerate(values.choice or ())}
        columns.append((LEFT + place * gap, axis, given, marks or {tick: f"{tick:.4g}" for tick in axis.ticks()}))
    for place in range(len(metrics)):
        results = [one.values[place] for one in done]
        axis = Axis.of(results, HEIGHT - BOTTOM, TOP + 16)
        x = LEFT + (len(space) + place) * gap
        columns.append((x, axis, results, {tick: f"{tick:.4g}" for tick in axis.ticks()}))
    drawn = list[str]()
    for row in range(len(done)):
        at = [(x, axis.at(given[row])) for x, axis, given, _ in columns]
        strength = row / (len(done) - 1)
        drawn.append(_curve(at, "--c0", 0.15 + 0.85 * strength**3, 1 + 2 * (row == len(done) - 1)))
    for (x, axis, _, shown), name in zip(columns, [*names.values(), *metrics], strict=True):
        drawn += [_line(x, TOP + 16, x, HEIGHT - BOTTOM, "--line"), _text(x, TOP + 4, name, shade="--ink")]
        drawn += [_text(x - 6, axis.at(value) + 4, words, "end") for value, words in shown.items()]
    return _svg(drawn, "values of complete trials", width=width)


def _figure(title: str, words: str, svg: str, *, is_wide: bool = False) -> str:
    look = ' class="wide"' if is_wide else ""
    svg = f'<div class="scroll"><div style="min-width:46rem">{svg}</div></div>' if is_wide else svg
    return f"<figure{look}><h3>{escape(title)}</h3>{svg}<figcaption>{escape(words)}</figcaption></figure>"


def _legend(states: Mapping[int, str]) -> str:
    there = [word for word in STATES if word in states.values()]
    chips = "".join(
        f'<span style="margin-right:1rem;white-space:nowrap"><i style="display:inline-block;width:.8rem;height:.8rem;'
        f'border-radius:.4rem;background:var({COLOURS[word]})"></i> {word} {percent(_share(states, word))}</span>'
        for word in there
    )
    return f'<p class="quiet">{chips}</p>'


def _share(states: Mapping[int, str], word: str) -> float:
    return [*states.values()].count(word) / len(states)
