"""Traces of torch.profiler as cost tables: the seconds of each op of a graph, from ``export_chrome_trace``."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlinit.costs.table import CostRow, CostTable, InvalidCostTable
from rlinit.files import parse_json
from rlinit.graph import Graph

__all__ = ["load_trace"]

_MAX_BYTES = 1 << 30
"""Of a trace once unpacked, against archives that unpack without end."""
_US = 1e-6
"""Seconds in the unit of traces, microseconds."""


def load_trace(path: str | Path, graph: Graph, *, device: str = "*") -> CostTable:
    """Read what the ops of a torch model took from a trace of its eager runs.

    Calls of ATen operators that no other one made (``aten::linear``, not the ``aten::addmm`` inside) are matched with
    the graph's ops in order: an op is the next call of its kind. The trace may hold several runs after each other, of
    which each op's median and interquartile range are taken. Where kernels of a GPU belong to a call, their time
    counts, and otherwise that of the call on the processor.

    Parameters
    ----------
    path
        ``.json`` or ``.json.gz``, as `torch.profiler.profile.export_chrome_trace` writes it.
    graph
        From `Graph.from_torch` of the same model at op granularity; its inputs and views take no time.
    device
        The device whose times they are, by its name in the hardware; "*": every device.

    Raises
    ------
    InvalidCostTable
        A file that is no such trace, or an op (named) that the trace has no call for.
    """
    calls = _calls(_events(Path(path)))
    wanted = [
        v
        for v in range(graph.num_ops)
        if graph.kinds[v] != "input" and not graph.extras.get(v, {}).get("view") and graph.kinds[v]
    ]
    samples = _matched(calls, [graph.kinds[v] for v in wanted])
    if not samples or not wanted:
        kinds = ", ".join(dict.fromkeys(name for name, _ in calls[:20])) or "none"
        missing = graph.names[wanted[0]] if wanted else graph.name
        raise InvalidCostTable(f"{path}: no run of the graph's ops from {missing!r} on; the calls begin with {kinds}")
    rows = []
    for at, v in enumerate(wanted):
        low, middle, high = np.percentile([run[at] for run in samples], [25.0, 50.0, 75.0]).tolist()
        rows.append(CostRow(graph.names[v], device, 1, middle, high - low, len(samples)))
    idle = sorted(set(range(graph.num_ops)) - set(wanted))
    rows += [CostRow(graph.names[v], device, 1, 0.0) for v in idle]
    return CostTable(tuple(rows), Path(path).stem, {"from": f"torch.profiler, {len(samples)} runs"})


def _events(path: Path) -> list[Mapping[str, Any]]:
    """Return the complete events of a trace."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise InvalidCostTable(f"{path} holds more than {_MAX_BYTES:,} bytes; record fewer runs")
        data = parse_json(content)
        rows = data["traceEvents"]
        found = [row for row in rows if row.get("ph") == "X" and float(row["dur"]) >= 0 and float(row["ts"]) >= 0]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise InvalidCostTable(f"cannot read {path} as a trace of torch.profiler: {problem!r}") from problem
    return found


def _calls(events: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Return kind and seconds of the outermost calls of operators, in the order in which they began."""
    kernels: dict[Any, float] = {}
    for row in events:
        if row.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            key = row.get("args", {}).get("External id")
            kernels[key] = kernels.get(key, 0.0) + float(row["dur"]) * _US
    operators = [row for row in events if row.get("cat") == "cpu_op" and str(row.get("name", "")).startswith("aten::")]
    operators.sort(key=lambda row: (float(row["ts"]), -float(row["dur"])))
    found: list[tuple[str, float, float, float]] = []  # kind, seconds on the processor, on GPUs, end
    ends: dict[Any, float] = {}
    last: dict[Any, int] = {}
    for row in operators:
        began, took = float(row["ts"]), float(row["dur"])
        thread = (row.get("pid"), row.get("tid"))
        on_gpu = kernels.get(row.get("args", {}).get("External id"), 0.0)
        if began < ends.get(thread, -1.0):  # inside the call before, whose kernels these are
            kind, seconds, other, end = found[last[thread]]
            found[last[thread]] = (kind, seconds, other + on_gpu, end)
            continue
        ends[thread] = began + took
        last[thread] = len(found)
        found.append((str(row["name"]).removeprefix("aten::").rstrip("_"), took * _US, on_gpu, began + took))
    return [(kind, on_gpu or seconds) for kind, seconds, on_gpu, _ in found]


def _matched(calls: Sequence[tuple[str, float]], kinds: Sequence[str]) -> list[list[float]]:
    """Return the seconds of each kind in turn, for every whole run among the calls; other calls are passed over."""
    runs: list[list[float]] = []
    current: list[float] = []
    for kind, seconds in calls:
        if kinds and kind == kinds[len(current)].rstrip("_"):
            current.append(seconds)
            if len(current) == len(kinds):
                runs.append(current)
                current = []
    return runs
