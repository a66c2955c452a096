"""Charts as SVG text, for pages that must open without a network and without scripts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlinit.exporters.text import markup
from rlinit.reports.ticks import round_ticks

_LEFT, _RIGHT, _TOP, _BOTTOM = 130.0, 20.0, 10.0, 28.0
_WIDTH = 1000.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a lane: from `start` to `end`, with a colour, a label (shown where it fits) and a tooltip."""

    lane: int
    start: float
    end: float
    colour: str
    label: str
    tip: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Steps: the value from each x until the next; `dashed` for limits."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    dashed: bool = False


def bar_chart(
    bars: Sequence[Bar],
    lanes: Sequence[str],
    end: float,
    show: Callable[[float], str],
    *,
    lines: Sequence[tuple[float, str, str]] = (),
    binary: bool = False,
) -> str:
    """Return horizontal bars in lanes over an axis from 0 to `end`.

    Parameters
    ----------
    bars, lanes
        What to draw, and the names of the lanes from above.
    end
        Right end of the axis.
    show
        Formats a number of the axis.
    lines
        (x, colour, label) of vertical lines.
    binary
        Whether the axis counts bytes.
    """
    height = _TOP + 26.0 * len(lanes) + _BOTTOM
    scale = (_WIDTH - _LEFT - _RIGHT) / max(end, 1e-300)
    parts = [_axis(end, show, height, binary)]
    for at, lane in enumerate(lanes):
        y = _TOP + 26.0 * at
        parts.append(f'<text x="{_LEFT - 6:.0f}" y="{y + 16:.1f}" class="lane">{markup(_short(lane, 20))}</text>')
    for bar in bars:
        x, width = _LEFT + bar.start * scale, max(0.3, (bar.end - bar.start) * scale)
        y = _TOP + 26.0 * bar.lane + 3
        parts.append(
            f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="20" fill="{bar.colour}" stroke="var(--back)" '
            f'stroke-width="0.3"><title>{markup(bar.tip)}</title></rect>'
        )
        if bar.strong:
            span = f'x="{x:.2f}" y="{y + 20.5:.1f}" width="{max(1.0, width):.2f}"'
            parts.append(f'<rect {span} height="3" fill="var(--critical)"/>')
        if width > 6.5 * len(bar.label) and bar.label:
            parts.append(f'<text x="{x + width / 2:.1f}" y="{y + 14:.1f}" class="name">{markup(bar.label)}</text>')
    for at_x, colour, label in lines:
        x = _LEFT + at_x * scale
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - _BOTTOM:.1f}" stroke="{colour}" '
            f'stroke-dasharray="5 3"><title>{markup(label)}</title></line>'
        )
    return _svg(height, parts)


def step_chart(
    series: Sequence[Series],
    end: float,
    show_x: Callable[[float], str],
    show_y: Callable[[float], str],
    *,
    binary: bool = False,
) -> str:
    """Return step lines over an axis from 0 to `end`, with a legend; y begins at 0 unless all lines lie far above it.

    Parameters
    ----------
    series
        The lines, each with its name, colour, and points.
    end
        Largest x, above 0.
    show_x
        The text of a value of x at the axis, unit included.
    show_y
        The same for y.
    binary
        Whether y counts bytes.
    """
    height = 260.0
    finite = [value for one in series for value in one.y if math.isfinite(value)]
    top, low = max(finite, default=1.0) * 1.05 or 1.0, min(finite, default=0.0)
    floor = low - 0.25 * (top - low) if low > 0.6 * top else 0.0
    x_scale = (_WIDTH - _LEFT - _RIGHT) / max(end, 1e-300)
    y_scale = (height - _TOP - _BOTTOM - 18.0) / (top - floor)  # the names stand above the lines
    parts = [_axis(end, show_x, height, False)]
    ticks = round_ticks(top, 6 if floor == 0.0 else round(6 * top / (top - floor)), binary=binary)
    for value in (tick for tick in ticks if tick >= floor):
        y = height - _BOTTOM - (value - floor) * y_scale
        parts.append(f'<text x="{_LEFT - 6:.0f}" y="{y + 4:.1f}" class="lane">{markup(show_y(value))}</text>')
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>')
    for at, one in enumerate(series):
        points = []
        for x, y, until in zip(one.x, one.y, [*one.x[1:], end], strict=True):
            if math.isfinite(y):
                level = height - _BOTTOM - (y - floor) * y_scale
                points.append(f"{_LEFT + x * x_scale:.2f},{level:.2f} {_LEFT + until * x_scale:.2f},{level:.2f}")
        dash = ' stroke-dasharray="5 3"' if one.dashed else ""
        name = markup(one.name)
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{one.colour}" stroke-width="1.6"{dash}>'
            f"<title>{name}</title></polyline>"
        )
        parts.append(
            f'<text x="{_LEFT + 8 + 150 * at:.0f}" y="{_TOP + 10}" class="key" style="fill: {one.colour}">{name}</text>'
        )
    return _svg(height, parts)


def graph_picture(
    levels: Sequence[int],
    edges: Sequence[tuple[int, int]],
    colours: Sequence[str],
    names: Sequence[str],
    tips: Sequence[str],
) -> str:
    """Return a layered picture of a graph: one row a level, ops ordered by the mean place of what they read.

    Parameters
    ----------
    levels
        Level of each op, from 0; edges go to higher levels.
    edges
        Pairs of op indices.
    colours, names, tips
        Of each op; names are shown where they fit.
    """
    rows: list[list[int]] = [[] for _ in range(max(levels, default=0) + 1)]
    for op, level in enumerate(levels):
        rows[level].append(op)
    reads: list[list[int]] = [[] for _ in levels]
    for u, v in edges:
        reads[v].append(u)
    place = [0.5] * len(levels)
    for row in rows:
        row.sort(key=lambda op: (sum(place[u] for u in reads[op]) / max(1, len(reads[op])), op))
        for at, op in enumerate(row):
            place[op] = (at + 0.5) / len(row)
    pitch = max(5.0, min(34.0, 1600.0 / len(rows)))
    size = min(20.0, 0.62 * pitch)
    height = _TOP + pitch * len(rows) + _TOP

    def x_of(op: int) -> float:
        return 20.0 + place[op] * (_WIDTH - 40.0)

    def y_of(op: int) -> float:
        return _TOP + pitch * (levels[op] + 0.5)

    parts = [
        f'<line x1="{x_of(u):.1f}" y1="{y_of(u) + size / 2:.1f}" x2="{x_of(v):.1f}" y2="{y_of(v) - size / 2:.1f}" '
        f'stroke="var({"--moved" if colours[u] == colours[v] else "--ink"})" stroke-width="0.8"/>'
        for u, v in edges
    ]
    for op, name in enumerate(names):
        room = (_WIDTH - 40.0) / len(rows[levels[op]]) * 0.92
        width = max(2.0, min(room, 150.0))
        parts.append(
            f'<rect x="{x_of(op) - width / 2:.1f}" y="{y_of(op) - size / 2:.1f}" width="{width:.1f}" '
            f'height="{size:.1f}" rx="2" fill="{colours[op]}" stroke="var(--dim)" stroke-width="0.4">'
            f"<title>{markup(tips[op])}</title></rect>"
        )
        if size >= 12 and width > 30:
            label = markup(_short(name, int(width / 6.2)))
            parts.append(f'<text x="{x_of(op):.1f}" y="{y_of(op) + 4:.1f}" class="name">{label}</text>')
    return _svg(height, parts)


def _axis(end: float, show: Callable[[float], str], height: float, binary: bool) -> str:
    ticks = []
    scale = (_WIDTH - _LEFT - _RIGHT) / max(end, 1e-300)
    for value in round_ticks(end, binary=binary):
        x = _LEFT + value * scale
        inside = ' style="text-anchor: end"' if x > _WIDTH - 40 else ""  # the last one must not leave the picture
        ticks.append(f'<text x="{x:.0f}" y="{height - 8:.0f}" class="tick"{inside}>{markup(show(value))}</text>')
        ticks.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - _BOTTOM:.1f}" stroke="var(--line)"/>')
    return "".join(ticks)


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img">{"".join(parts)}</svg>'


def _short(text: str, length: int) -> str:
    return text if len(text) <= max(3, length) else "…" + text[-max(2, length - 1) :]
