"""`hogwild report RUN [RUN …]`: the page of one run, or of several beside each other."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hogwild.report.write import Written


def answer(runs: list[Path], *, out: Path | None, as_json: bool) -> tuple[int, list[str]]:
    """Writes the page and its pictures, and answers the exit status and the lines for stdout. One run: RUN/report;
    several: RUN/report/report-NAME1-NAME2 of the first; or `out`. Raises NotFoundError where a run is not there,
    UsageError without matplotlib or for a run named twice, RunDirError where nothing can be written."""
    from hogwild.report.write import write_comparison, write_report  # numpy, and matplotlib to draw

    written = write_report(runs[0], out) if len(runs) == 1 else write_comparison(runs, out)
    return 0, [_json(written)] if as_json else _lines(written)


def _lines(written: "Written") -> list[str]:
    names = ", ".join(path.stem for path in written.pictures)
    return [
        str(written.index),
        f"  pictures: {names or 'none: there is nothing to draw'}" + (" (PNG files beside it)" if names else ""),
        *(f"  {line}" for line in written.missing),
    ]


def _json(written: "Written") -> str:
    pictures = {path.stem: str(path) for path in written.pictures}
    return json.dumps({"report": str(written.index), "pictures": pictures, "missing": list(written.missing)})
