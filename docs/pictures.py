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

BOUNDS = ("simple", "anchored-cut", "spectral", "ideals")

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


def _gain(path: Path) -> None:
    """Draw what a pipeline of four Edge TPUs takes, split as people do and as rlinit does, and what each TPU holds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    hardware = rlinit.Hardware.edge_tpus(4)
    plan = rlinit.schedule(imagenet.load("xception"), hardware, objective="pipeline")
    figure: Figure = Figure(figsize=(11.0, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    names = {"best single device": "one TPU", "equal layers": "equal layers", "equal bytes": "equal weights"}
    taken = {label: 1e3 * (plan.baselines[name] or 0.0) for name, label in names.items()} | {"rlinit": 1e3 * plan.value}
    left.barh(list(taken), list(taken.values()), color=["#c3c9d4"] * 3 + ["#2f7fd1"], height=0.7)
    for at, (label, value) in enumerate(taken.items()):
        said = f"{value:.1f} ms" + (", proven: no split is faster" if label == "rlinit" else "")
        left.text(value + 0.5, at, said, va="center", fontsize=11, weight="bold" if label == "rlinit" else "normal")
    left.set(title="Xception on four Edge TPUs: an image every ...", xlim=(0, 1.2 * max(taken.values())), xticks=[])
    left.invert_yaxis()
    left.tick_params(left=False, labelsize=11)
    limit = hardware.devices[0].cache_bytes / 2**20
    held = [use.param_bytes / 2**20 for use in plan.stages]
    tpus = [f"TPU {at + 1}" for at in range(len(held))]
    right.bar(tpus, held, color="#e0872f", width=0.7)
    right.bar(tpus, [min(size, limit) for size in held], color="#2f7fd1", width=0.7)
    for at, size in enumerate(held):
        height, colour = (size / 2, "white") if size > 1 else (size + 0.4, "black")
        right.text(at, height, f"{size:.1f}", ha="center", va="center", color=colour, fontsize=11)
    right.axhline(limit, color="#c1121f", linestyle="--", linewidth=1.5)
    right.text(-0.4, limit + 0.15, f"{limit:.0f} MiB fit on the chip", color="#c1121f", fontsize=11, va="bottom")
    right.set(title="rlinit's plan: weights on each TPU, MiB", ylim=(0, 1.25 * limit), yticks=[])
    right.tick_params(bottom=False, labelsize=11)
    left.spines[:].set_visible(False)
    right.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)


PICTURES: dict[str, Callable[[Path], None]] = {
    "ten_ops.svg": lambda path: _figure(draw_graph, (8.0, 2.9), path),
    "ten_ops_bounds.svg": lambda path: _figure(draw_bounds, (7.0, 2.8), path),
    "mobilenetv2.svg": _stages,
    "xception.png": _gain,
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
