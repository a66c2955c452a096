"""What an episode looks like: as text, and as a picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray
from rlinit.env.state import Episodes, PlacementEpisodes, StageEpisodes
from rlinit.stages.problem import stage_cost
from rlinit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR = 40
"""Characters of the longest bar."""


def _stage_loads(episodes: StageEpisodes) -> tuple[FloatArray, FloatArray]:
    """Return what each stage costs, (k,), once the order is completed, and how much of its ops is decided, (k,)."""
    problem = episodes.problem(0)
    assignment = episodes.completed_assignment(0)
    if assignment is None:
        return np.full(problem.num_stages, np.nan), np.zeros(problem.num_stages)
    loads, decided = np.zeros(problem.num_stages), np.zeros(problem.num_stages)
    taken = np.zeros(problem.num_nodes, np.bool_)
    taken[episodes.order[0, : episodes.steps[0]]] = True
    for j in range(problem.num_stages):
        member = assignment.stage == j
        if problem.objective == "memory":
            loads[j] = problem.param_bytes[member].sum()
        else:
            loads[j] = stage_cost(problem, member, int(assignment.classes[j]))
        decided[j] = taken[member].mean() if member.any() else 1.0
    return loads, decided


def text_of(episodes: Episodes[Any]) -> str:
    """Return the first row's episode as lines of text.

    Raises
    ------
    TypeError
        Episodes of another kind than stages and placements.
    """
    if isinstance(episodes, StageEpisodes):
        return _stages_text(episodes)
    if isinstance(episodes, PlacementEpisodes):
        return _placement_text(episodes)
    raise TypeError(f"there is no text of {type(episodes).__name__}")


def _stages_text(episodes: StageEpisodes) -> str:
    problem = episodes.problem(0)
    show = format_bytes if problem.objective == "memory" else format_seconds
    loads, decided = _stage_loads(episodes)
    longest = max(float(np.nanmax(loads, initial=0.0)), 1e-300)
    lines = [f"{problem.objective}: {episodes.steps[0]} of {problem.num_nodes} ops taken"]
    for j, (load, share) in enumerate(zip(loads, decided, strict=True)):
        length = 0 if np.isnan(load) else round(_BAR * load / longest)
        solid = round(length * share)
        lines.append(f"stage {j:3d} {'#' * solid}{'.' * (length - solid)} {show(load)}")
    return "\n".join([*lines, _ending(episodes, show)])


def _placement_text(episodes: PlacementEpisodes) -> str:
    problem = episodes.problem(0)
    lines = [f"{problem.objective}: {episodes.steps[0]} of {problem.num_ops} ops placed"]
    for i, spans in enumerate(episodes.spans(0)):
        busy = sum(end - start for _, start, end in spans)
        until = max((end for _, _, end in spans), default=0.0)
        shown = " ".join(str(v) for v, _, _ in spans[-8:])
        lines.append(f"device {i:2d} {format_seconds(busy)} busy until {format_seconds(until)}: {shown}")
    return "\n".join([*lines, _ending(episodes, format_seconds)])


def _ending(episodes: Episodes[Any], show: Callable[[float], str]) -> str:
    reference, value = float(episodes.reference[0]), float(episodes.value[0])
    if np.isnan(value):
        return f"reference {show(reference)}"
    return f"value {show(value)}, reference {show(reference)}"


def picture_of(episodes: Episodes[Any]) -> NDArray[np.uint8]:
    """Return the first row's episode as an (h, w, 3) picture: costs of stages, or a Gantt chart.

    Raises
    ------
    TypeError
        Episodes of another kind than stages and placements.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    if isinstance(episodes, StageEpisodes):
        _draw_stages(episodes, figure.add_subplot())
    elif isinstance(episodes, PlacementEpisodes):
        _draw_gantt(episodes, figure.add_subplot())
    else:
        raise TypeError(f"there is no picture of {type(episodes).__name__}")
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()  # type: ignore[no-untyped-call]


def _draw_stages(episodes: StageEpisodes, axes: Axes) -> None:
    problem = episodes.problem(0)
    loads, decided = _stage_loads(episodes)
    at = np.arange(problem.num_stages)
    axes.bar(at, np.nan_to_num(loads), color="#c6dbef", label="completed by the natural order")
    axes.bar(at, np.nan_to_num(loads) * decided, color="#3182bd", label="ops taken")
    axes.axhline(float(episodes.reference[0]), color="black", linewidth=1.0, label="reference")
    axes.set_xlabel("stage")
    axes.set_ylabel("bytes" if problem.objective == "memory" else "seconds")
    axes.set_title(f"{episodes.steps[0]} of {problem.num_nodes} ops taken", fontsize=10)
    axes.legend(fontsize=7)


def _draw_gantt(episodes: PlacementEpisodes, axes: Axes) -> None:
    from matplotlib import colormaps

    problem = episodes.problem(0)
    colours = colormaps["viridis"]
    place = {int(v): at for at, v in enumerate(episodes.order[0, : episodes.steps[0]])}
    for i, spans in enumerate(episodes.spans(0)):
        axes.broken_barh(
            [(start, end - start) for _, start, end in spans],
            (i - 0.4, 0.8),
            facecolors=[colours(place[v] / problem.num_ops) for v, _, _ in spans],
            edgecolor="white",
            linewidth=0.3,
        )
    axes.axvline(float(episodes.reference[0]), color="black", linewidth=1.0, label="reference")
    axes.set_yticks(range(problem.num_devices), [f"device {i}" for i in range(problem.num_devices)])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title(f"{episodes.steps[0]} of {problem.num_ops} ops placed", fontsize=10)
    axes.legend(fontsize=7)
