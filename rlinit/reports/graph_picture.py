"""Graphs as SVG text, for pages that must open without a network and without scripts."""

from __future__ import annotations

from collections.abc import Sequence

from rlinit.exporters.text import markup

_MARGIN, _WIDTH = 10.0, 1000.0
"""Units above and below the picture, and its width."""


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
    height = pitch * len(rows) + 2 * _MARGIN

    def x_of(op: int) -> float:
        return 20.0 + place[op] * (_WIDTH - 40.0)

    def y_of(op: int) -> float:
        return _MARGIN + pitch * (levels[op] + 0.5)

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
    return f'<svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img">{"".join(parts)}</svg>'


def _short(text: str, length: int) -> str:
    return text if len(text) <= max(3, length) else "…" + text[-max(2, length - 1) :]
