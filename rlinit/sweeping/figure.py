"""The picture of a sweep: value and proven bound of each hardware, and the best single device beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlinit.errors import RlinitError
from rlinit.exporters.text import printable
from rlinit.files import write_atomically
from rlinit.reports.figures import KINDS, drawn
from rlinit.sweeping.rows import SweepRow
from rlinit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_sweep(rows: Sequence[SweepRow], path: str | Path) -> None:
    """Draw the rows of a sweep into a file.

    Parameters
    ----------
    rows
        What `rlinit.sweep` returned.
    path
        Where to write; the suffix (.svg, .png, .pdf) chooses the format. Written atomically.

    Raises
    ------
    RlinitError
        No rows, or the suffix is none of these.
    """
    kind = Path(path).suffix.lstrip(".")
    if kind not in KINDS or not rows:
        raise RlinitError(f"cannot draw {len(rows)} rows to {path}; expected rows and a name in .svg, .png or .pdf")
    from matplotlib.ticker import FuncFormatter

    show = format_bytes if rows[0].objective == "memory" else format_seconds
    nothing = float("nan")
    at = range(len(rows))

    def paint(axes: Axes) -> None:
        axes.bar(at, [nothing if row.value is None else row.value for row in rows], color="#3182bd", label="plan")
        for label, style, values in (
            ("proven bound", "_", [row.bound for row in rows]),
            ("best single device", "o", [row.single for row in rows]),
        ):
            heights = [nothing if value is None else value for value in values]
            axes.plot(at, heights, style, markersize=9, markeredgewidth=2, label=label)
        several = len({row.graph for row in rows}) > 1
        labels = [f"{row.graph}\n" * several + f"{row.hardware}\n{row.devices} devices" for row in rows]
        axes.set_xticks(at, [printable(label) for label in labels], fontsize=8)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: show(float(y))))
        axes.set_ylim(bottom=0.0)
        axes.set_title(printable(f"{rows[0].graph}: " * (not several) + rows[0].objective), fontsize=10)
        axes.legend(fontsize=8, frameon=False)

    size = (max(6.0, min(1.1 * len(rows) + 3.0, 24.0)), 4.2)
    write_atomically(path, drawn(size, kind, paint))
