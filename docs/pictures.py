"""The pictures of the site: ``python docs/pictures.py FOLDER`` makes them, and so does building the site."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import rlinit
from rlinit.datasets import imagenet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "ten_ops", "write_pictures"]

OPS: dict[str, tuple[float, float]] = {
    "read": (1, 4),
    "left1": (5, 1),
    "left2": (3, 2),
    "left3": (1, 2),
    "right1": (1, 1),
    "right2": (4, 4),
    "join": (5, 4),
    "wide": (3, 3),
    "norm": (4, 3),
    "out": (4, 2),
}
"""The ten ops that the concept pages use: seconds, and bytes of the output."""

EDGES = [
    ("read", "left1"),
    ("left1", "left2"),
    ("left2", "left3"),
    ("read", "right1"),
    ("right1", "right2"),
    ("read", "join"),
    ("left3", "join"),
    ("right2", "join"),
    ("join", "wide"),
    ("wide", "norm"),
    ("norm", "out"),
]

PLACES = {
    "read": (0.0, 0.0),
    "left1": (1.0, 0.6),
    "left2": (2.0, 0.6),
    "left3": (3.0, 0.6),
    "right1": (1.3, -0.6),
    "right2": (2.6, -0.6),
    "join": (4.0, 0.0),
    "wide": (5.0, 0.0),
    "norm": (6.0, 0.0),
    "out": (7.0, 0.0),
}

BOUNDS = ("simple", "bin-packing", "anchored-cut", "spectral", "parametric-cut", "ideals")

COLOURS = ("#4c9be8", "#f0a04b", "#7bc47f")


def ten_ops() -> rlinit.Graph:
    """Return the graph of ten ops."""
    ops = [(name, {"time_s": seconds, "out_bytes": size}) for name, (seconds, size) in OPS.items()]
    return rlinit.Graph.build(ops, EDGES, name="ten ops")


def draw_graph(axes: Axes) -> None:
    """Draw the ten ops, coloured by the stage that the optimal plan gives them."""
    plan = rlinit.schedule(ten_ops(), rlinit.Hardware.pipeline(3, bandwidth=2.0))
    stage = plan.assignment or {}
    for tail, head in EDGES:
        (x0, y0), (x1, y1) = PLACES[tail], PLACES[head]
        colour = "#888888" if stage[tail] == stage[head] else "#d62728"
        arrow = {"arrowstyle": "-|>", "color": colour, "shrinkA": 19, "shrinkB": 19, "linewidth": 1.4}
        axes.annotate("", (x1, y1), (x0, y0), arrowprops=arrow)
    for name, (x, y) in PLACES.items():
        axes.scatter([x], [y], s=1350, color=COLOURS[int(stage[name])], zorder=2)
        seconds, size = OPS[name]
        axes.text(x, y, f"{name}\n{seconds:.0f} s, {size:.0f} B", ha="center", va="center", fontsize=7, zorder=3)
    for j, use in enumerate(plan.stages):
        axes.scatter([], [], s=60, color=COLOURS[j], label=f"stage {j}: {use.time_s:g} s")
    axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, -0.12), frameon=False, fontsize=8)
    axes.set_xlim(-0.5, 7.5)
    axes.set_ylim(-1.1, 1.0)
    axes.axis("off")


def draw_bounds(axes: Axes) -> None:
    """Draw what each bound proves for the ten ops on three devices, under the optimum."""
    graph, hardware = ten_ops(), rlinit.Hardware.pipeline(3, bandwidth=2.0)
    proven = [rlinit.bound(graph, hardware, objective="pipeline", method=name).bounds[0] for name in BOUNDS]
    plan = rlinit.schedule(graph, hardware)
    axes.barh(BOUNDS, proven, color="#4c9be8", height=0.6)
    for at, value in enumerate(proven):
        axes.text(value - 0.15, at, f"{value:g} s", ha="right", va="center", color="white", fontsize=9)
    axes.axvline(plan.value, color="black", linewidth=1.2)
    axes.text(plan.value + 0.1, 0, f"optimum {plan.value:g} s", va="center", fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 17)
    axes.set_xlabel("seconds: no schedule is faster")
    axes.spines[["top", "right"]].set_visible(False)


def _figure(draw: Callable[[Axes], None], size: tuple[float, float], path: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure: Figure = Figure(figsize=size, layout="constrained")
    FigureCanvasSVG(figure)
    draw(figure.add_subplot())
    with rc_context({"svg.hashsalt": "rlinit"}):
        figure.savefig(path, metadata={"Date": None})


def _stages(path: Path) -> None:
    plan = rlinit.schedule(imagenet.load("mobilenetv2"), rlinit.Hardware.edge_tpus(4), objective="memory")
    plan.plot(path)


def _placement(path: Path) -> None:
    hardware = rlinit.Hardware.preset("cpu-t4-a100")
    graph = imagenet.load("inceptionresnetv2")
    rlinit.schedule(graph, hardware, objective="latency").plot(path, graph, hardware)


PICTURES: dict[str, Callable[[Path], None]] = {
    "ten_ops.svg": lambda path: _figure(draw_graph, (8.0, 2.9), path),
    "ten_ops_bounds.svg": lambda path: _figure(draw_bounds, (7.0, 2.8), path),
    "mobilenetv2.svg": _stages,
    "inceptionresnetv2.svg": _placement,
}
"""File names and what draws them."""


def write_pictures(folder: Path) -> None:
    """Draw every picture.

    Parameters
    ----------
    folder
        Where to; it is made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        draw(folder / name)


if __name__ == "__main__":
    write_pictures(Path(sys.argv[1]))
