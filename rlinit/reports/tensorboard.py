"""Plans in TensorBoard: how they were found, what they cost, and the graph coloured by device."""

from __future__ import annotations

import importlib
import math
import re
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlinit.errors import BackendUnavailable
from rlinit.exporters.device_map import module_paths
from rlinit.exporters.op_devices import check_graph
from rlinit.graph import Graph
from rlinit.importers.common.graph_builder import distinct_labels
from rlinit.plan import Plan, relative_gap
from rlinit.units import format_bytes, format_seconds

_LEVELS = {
    "pipeline": ("bottleneck_s",),
    "memory": ("peak_param_bytes", "off_cache_bytes", "leaving_bytes"),
    "latency": ("makespan_s",),
    "throughput": ("makespan_s",),
}
_STAGE_COLUMNS = ("work_s", "in_s", "out_s", "overflow_s", "time_s", "param_bytes", "off_cache_bytes", "out_bytes")
_DEVICE_COLUMNS = ("busy_s", "held_bytes")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-/]")


def to_tensorboard(
    plan: Plan, folder: str | Path, *, graph: Graph | None = None, started_s: float | None = None
) -> None:
    """Add a plan to a log folder of TensorBoard, as one run.

    ==================  ==========================================================================================
    tab                 shows
    ==================  ==========================================================================================
    Scalars             ``history/value``, ``history/bound`` of each level and ``history/gap`` after every improvement
                        (the horizontal axis "relative" is the time of the search); ``stages/*`` by stage and
                        ``devices/*`` by device, the step being its number
    Text                what the plan is for, what it promises, and its stages or devices as a table
    Images              the plan's picture
    Graphs              the graph, modules folded, coloured by stage or device; times of placements by op
    ==================  ==========================================================================================

    Parameters
    ----------
    plan
        The plan; one without a schedule has its text and history alone.
    folder
        Where to write; it is made if it is not there. Events of an earlier run there are left alone, and TensorBoard
        shows both in one.
    graph
        What the plan was made for; None: no graph is shown.
    started_s
        When the search began, in seconds since 1970; None: such that it ended now.

    Raises
    ------
    InvalidPlan
        The plan is not for the graph.
    BackendUnavailable
        tensorboard is not installed.
    """
    protos = _protos()
    if graph is not None and plan.assignment is not None:
        check_graph(plan, graph)
    spent_s = max((entry.time_s for entry in plan.history), default=0.0)
    began_s = time.time() - spent_s if started_s is None else started_s
    Path(folder).mkdir(parents=True, exist_ok=True)
    writer = importlib.import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter(str(folder))
    try:
        for step, after_s, tag, number in [*_history(plan), *_uses(plan, spent_s)]:
            value = protos["summary"].Summary.Value(tag=tag, simple_value=number)
            writer.add_event(_event(protos, began_s + after_s, step, value))
        writer.add_event(_event(protos, began_s + spent_s, 0, _text_value(protos, _text(plan))))
        if plan.assignment is not None:
            writer.add_event(_event(protos, began_s + spent_s, 0, _image_value(protos, plan)))
            if graph is not None:
                for content in _graph_contents(protos, plan, graph):
                    writer.add_event(protos["event"].Event(wall_time=began_s + spent_s, **content))
    finally:
        writer.close()


def _protos() -> dict[str, Any]:
    """Return TensorBoard's messages by the name of their module."""
    names = ("event", "summary", "tensor", "graph", "node_def", "attr_value", "step_stats", "config", "versions")
    try:
        return {name: importlib.import_module(f"tensorboard.compat.proto.{name}_pb2") for name in names}
    except ImportError as problem:
        raise BackendUnavailable(f"writing logs needs tensorboard ({problem}); pip install tensorboard") from problem


def _event(protos: Mapping[str, Any], time_s: float, step: int, value: Any) -> Any:
    return protos["event"].Event(wall_time=time_s, step=step, summary=protos["summary"].Summary(value=[value]))


# -- numbers -------------------------------------------------------------------------------------------------------


def _history(plan: Plan) -> Iterator[tuple[int, float, str, float]]:
    """Yield (step, seconds, tag, number) of every improvement."""
    for step, entry in enumerate(plan.history):
        for what, numbers in (("value", entry.values), ("bound", entry.bounds)):
            for level, number in zip(_LEVELS[plan.objective], numbers or (), strict=False):
                if math.isfinite(number):
                    yield step, entry.time_s, f"history/{what}/{level}", number
        gap = relative_gap(entry.values, entry.bounds)
        if math.isfinite(gap):
            yield step, entry.time_s, "history/gap", gap


def _uses(plan: Plan, spent_s: float) -> Iterator[tuple[int, float, str, float]]:
    """Yield (number of the stage or device, seconds, tag, number)."""
    for what, uses, columns in (("stages", plan.stages, _STAGE_COLUMNS), ("devices", plan.devices, _DEVICE_COLUMNS)):
        for at, use in enumerate(uses):
            for column in columns:
                yield at, spent_s, f"{what}/{column}", float(getattr(use, column))


# -- text and picture ----------------------------------------------------------------------------------------------


def _text(plan: Plan) -> str:
    """Return what there is to say about a plan, as Markdown."""
    facts = [
        ("graph", plan.graph),
        ("hardware", plan.hardware),
        ("objective", plan.objective),
        ("status", plan.status),
        *((level, repr(number)) for level, number in zip(_LEVELS[plan.objective], plan.values or (), strict=False)),
        ("bound", f"{plan.bound!r} ({plan.bound_source or 'none'})"),
        ("gap", repr(plan.gap)),
        ("method", plan.method),
        *((f"seconds of {phase}", f"{seconds:.3g}") for phase, seconds in plan.phase_s.items()),
        *((key, str(value)) for key, value in plan.provenance.items()),
        ("message", plan.message),
        *(("passed over", note) for note in plan.notes),
    ]
    text = _table(("", ""), [fact for fact in facts if fact[1]])
    if plan.stages:
        rows = [
            (str(at), use.device, str(use.num_ops), format_seconds(use.time_s), format_bytes(use.param_bytes))
            for at, use in enumerate(plan.stages)
        ]
        text += "\n" + _table(("stage", "device", "ops", "time", "parameters"), rows)
    if plan.devices:
        used = [
            (use.device, str(use.num_batches), format_seconds(use.busy_s), format_bytes(use.held_bytes))
            for use in plan.devices
        ]
        text += "\n" + _table(("device", "batches", "busy", "held"), used)
    return text


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _text_value(protos: Mapping[str, Any], text: str) -> Any:
    summary = protos["summary"]
    # Version 0 of the text plugin's data is an empty message.
    metadata = summary.SummaryMetadata(plugin_data=summary.SummaryMetadata.PluginData(plugin_name="text"))
    tensor = protos["tensor"].TensorProto(dtype="DT_STRING", string_val=[text.encode()])
    tensor.tensor_shape.dim.add(size=1)
    return summary.Summary.Value(tag="plan/text_summary", metadata=metadata, tensor=tensor)


def _image_value(protos: Mapping[str, Any], plan: Plan) -> Any:
    summary = protos["summary"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.png"
        plan.plot(path)
        content = path.read_bytes()
    width, height = struct.unpack(">II", content[16:24])  # the header of a PNG
    image = summary.Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=content)
    return summary.Summary.Value(tag="plan", image=image)


# -- the graph -----------------------------------------------------------------------------------------------------


def _graph_contents(protos: Mapping[str, Any], plan: Plan, graph: Graph) -> Iterator[dict[str, bytes | Any]]:
    """Yield what the graph tab reads: the ops with their places, and the times of a placement's batches."""
    labels = _labels(graph)
    places = _places(plan)
    definition = protos["graph"].GraphDef(versions=protos["versions"].VersionDef(producer=22))
    for at, op in enumerate(graph.names):
        node = definition.node.add(name=labels[op], op=graph.kinds[at] or "op", device=places[op])
        reads = graph.pred[graph.pred_indptr[at] : graph.pred_indptr[at + 1]].tolist()
        node.input.extend(labels[graph.names[u]] for u in reads)
        for key, column in (("param_bytes", graph.param_bytes), ("out_bytes", graph.out_bytes), ("flops", graph.flops)):
            if not math.isnan(column[at]):
                node.attr[key].f = float(column[at])
    yield {"graph_def": definition.SerializeToString()}
    if plan.batches:
        stats = protos["step_stats"].StepStats()
        devices = {device: stats.dev_stats.add(device=device) for device in sorted({b.device for b in plan.batches})}
        for batch in plan.batches:
            devices[batch.device].node_stats.add(
                node_name=labels[batch.op],
                all_start_micros=round(batch.start_s * 1e6),
                all_end_rel_micros=round((batch.end_s - batch.start_s) * 1e6),
                op_end_rel_micros=round((batch.end_s - batch.start_s) * 1e6),
            )
        run = protos["config"].RunMetadata(step_stats=stats)
        tagged = protos["event"].TaggedRunMetadata(tag="times", run_metadata=run.SerializeToString())
        yield {"tagged_run_metadata": tagged}


def _labels(graph: Graph) -> dict[str, str]:
    """Return op -> its name for TensorBoard, which folds at slashes: below its module, special characters replaced."""
    paths = module_paths(graph)
    wanted = [f"{paths[op].replace('.', '/')}/{op.replace('/', '.')}".lstrip("/") for op in graph.names]
    return dict(zip(graph.names, distinct_labels((_UNSAFE.sub("_", name) for name in wanted), ()), strict=True))


def _places(plan: Plan) -> dict[str, str]:
    """Return op -> stage and device, or the devices that run it."""
    assignment = plan.assignment or {}
    if plan.objective in ("pipeline", "memory"):
        return {op: f"stage {stage} ({plan.stages[int(stage)].device})" for op, stage in assignment.items()}
    return {op: on if isinstance(on, str) else ", ".join(on) for op, on in assignment.items()}
