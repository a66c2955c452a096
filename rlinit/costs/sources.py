"""Where the seconds of ops come from on a device, and how sure they are."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.costs.roofline import may_run, ops_by_efficiency, roofline
from rlinit.costs.table import CostTable
from rlinit.devices.efficiency import OP_CLASSES, class_on, op_class
from rlinit.graph import ANY_DEVICE, Graph
from rlinit.hardware import Device, Hardware
from rlinit.units import DTYPES, compute_type, format_seconds

COST_SOURCES = "cost_sources"
"""Extra of an op: kind of device -> where in measured tables its seconds come from."""

__all__ = ["COST_SOURCES", "PEAK_ERROR", "CostSource", "cost_errors", "cost_sources", "paper_machine"]

_PAPERS = {
    "cpu-t4-a100": ("DIVIML", "t4+a100+cpu"),
    "gpt3-nodes": ("DIVIML", "2xt4+2xa100+cpu/2xt4+2xa100+cpu/100gbe"),
    "moirai-inter": ("Moirai", "rtx3090+t4+l4+rtx4090"),
    "moirai-intra": ("Moirai", "2xv100+2xp100"),
    "edge-tpu": ("Inc-ILP", ""),
}
"""Preset (of those of any size, what is before it) -> the paper whose machine it is, and one alike from parts."""


def paper_machine(hardware: Hardware) -> str:
    """Return what a paper's machine takes for granted where machines of parts do not; "" for all other hardware.

    What stands before the colon says whose machine it is.

    Parameters
    ----------
    hardware
        A preset, or hardware of a preset's name that still has nothing of its own: no efficiency, no link's latency.
    """
    name, _, count = hardware.name.rpartition("-")
    paper, instead = _PAPERS.get(name if count.isdecimal() else hardware.name, ("", ""))
    if not paper or hardware.latency_s.any() or any(device.efficiency for device in hardware.devices):
        return ""
    launches = sorted({device.launch_s for device in hardware.devices})
    launch = " to ".join(dict.fromkeys(format_seconds(seconds) for seconds in (launches[0], launches[-1])))
    said = f"every op reaches the peak rates, its launch takes {launch}, and links have no latency"
    return f"the machine of the paper {paper}: {said}" + (f"; for plans to run, {instead} is alike" if instead else "")


@dataclass(frozen=True, slots=True)
class CostSource:
    """Ops of a graph whose seconds on a device come from one source.

    Parameters
    ----------
    device, source
        The device's name, and what the seconds are from.
    num_ops, seconds
        How many ops, and the sum of their seconds.
    sure
        How sure they are, in words; the relative spread where they were measured.
    """

    device: str
    source: str
    num_ops: int
    seconds: float
    sure: str


_SURE = {
    "measured": "as measured, within 3%",
    "interpolated": "within 10% for most, as tables say",
    "extrapolated": "beyond what was measured",
}
"""Where measured tables have an op -> how sure they are."""


def cost_sources(graph: Graph, device: Device, table: CostTable | None = None) -> tuple[CostSource, ...]:
    """Return the sources of a graph's seconds on a device, for one input, in the order in which they win.

    Parameters
    ----------
    graph
        Given times and figures of ops.
    device
        Whose seconds.
    table
        The cost table that was applied to the graph, if any: its spreads say how sure measured times are.
    """
    left = may_run(graph, device)
    rows = []
    labels = {device.name: "times for this device", device.kind: "times for its kind", ANY_DEVICE: "times for all"}
    words = np.array([graph.extras.get(v, {}).get(COST_SOURCES, {}).get(device.kind, "") for v in range(graph.num_ops)])
    for word in sorted(set(words) - {""}):
        here = left & (words == word)
        seconds = float(np.nansum(graph.times[device.kind, 1][here]))
        rows.append(CostSource(device.name, f"measured tables, {word}", int(here.sum()), seconds, _SURE[word]))
        left &= ~here
    for key, label in labels.items():
        given = graph.times.get((key, 1))
        if given is not None and (here := left & ~np.isnan(given)).any():
            sure = _spread(table, key) or "as given"
            rows.append(CostSource(device.name, label, int(here.sum()), float(given[here].sum()), sure))
            left &= ~here
    modelled = roofline(graph, device)
    views = np.array([bool(graph.extras.get(v, {}).get("view")) for v in range(graph.num_ops)])
    known = left & ~np.isnan(modelled)
    if (here := known & views).any():
        rows.append(CostSource(device.name, "views, which take no time", int(here.sum()), 0.0, "exact"))
    types = np.array([compute_type(graph.extras.get(v, {})) for v in range(graph.num_ops)])
    classes = np.array(
        [class_on(op_class(kind), device.efficiency) if device.efficiency else "" for kind in graph.kinds]
    )
    peak = dataclasses.replace(device, efficiency={})
    ideal = roofline(graph, peak)
    for dtype in ("", *DTYPES):
        for name in ("", *OP_CLASSES):
            here = known & ~views & (types == dtype) & (classes == name)
            if here.any():
                seconds = float(modelled[here].sum())
                label = f"roofline at {_rate(device, dtype)}"
                label += f", {name} {float(ideal[here].sum()) / seconds:.0%} of it" if name and seconds else ""
                rows.append(CostSource(device.name, label, int(here.sum()), seconds, _sureness(device, name)))
    missing = int((left & np.isnan(modelled)).sum())
    if missing:
        rows.append(CostSource(device.name, "nothing", missing, float("nan"), "cannot be planned here"))
    forbidden = int((~may_run(graph, device)).sum())
    if forbidden:
        rows.append(CostSource(device.name, "forbidden here", forbidden, float("nan"), "exact"))
    return tuple(rows)


_GIVEN_ERROR = 0.05
"""Relative error of given times: measured costs spread by as much on a machine in use."""

PEAK_ERROR = 1.0
"""Relative error of times at peak rates: ops reach half of them, some far less."""


def cost_errors(graph: Graph, device: Device) -> FloatArray:
    """Return (n,) the relative error to be expected of each op's seconds on a device, for one input.

    Parameters
    ----------
    graph
        Given times err by 5%, views not at all, others as the device's efficiencies say of their class, or by 100%
        where they say nothing.
    device
        Whose seconds.
    """
    errors = np.full(graph.num_ops, PEAK_ERROR)
    for one, ops in ops_by_efficiency(graph, device):
        if one.error is not None:
            errors[ops] = one.error
    errors[[v for v, row in graph.extras.items() if row.get("view")]] = 0.0
    for key in (device.name, device.kind, ANY_DEVICE):
        if (given := graph.times.get((key, 1))) is not None:
            errors[~np.isnan(given)] = _GIVEN_ERROR
    return errors


def _sureness(device: Device, name: str) -> str:
    """Return how sure modelled seconds of a class of ops are."""
    one = device.efficiency.get(name)
    if one is None or one.error is None:
        return "peak rates, not measured: exact to a factor at best"
    return f"modelled, within {one.error:.0%} for a typical op"


def _rate(device: Device, dtype: str) -> str:
    rate = device.rate(dtype)
    return f"{(rate or 0.0) / 1e12:.4g} TFLOPS" + (f" ({dtype})" if dtype else "")


def _spread(table: CostTable | None, key: str) -> str:
    """Return how far the rows of a device in the table spread; "" without a measured one."""
    for noise in table.noise() if table is not None else ():
        if noise.device == key and noise.batch == 1 and noise.num_measured:
            return f"measured, spread {noise.total_spread:.0%}"
    return ""
