"""Where the seconds of ops come from on a device, and how sure they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.costs.roofline import may_run, roofline
from rlinit.costs.table import CostTable
from rlinit.graph import ANY_DEVICE, Graph
from rlinit.hardware import Device
from rlinit.units import DTYPES, compute_type

__all__ = ["CostSource", "cost_sources"]


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
    for key, label in labels.items():
        given = graph.times.get((key, 1))
        if given is not None and (here := left & ~np.isnan(given)).any():
            sure = _spread(table, key) or "as given"
            rows.append(CostSource(device.name, label, int(here.sum()), float(given[here].sum()), sure))
            left &= ~here
    modelled = roofline(graph, device)
    views = np.array([bool(graph.extras.get(v, {}).get("view")) for v in range(graph.num_ops)])
    types = np.array([compute_type(graph.extras.get(v, {})) for v in range(graph.num_ops)])
    for here, label, sure in (
        (left & views & ~np.isnan(modelled), "views, which take no time", "exact"),
        *(
            (left & ~views & ~np.isnan(modelled) & (types == dtype), f"roofline at {_rate(device, dtype)}", _UNFITTED)
            for dtype in ("", *DTYPES)
        ),
    ):
        if here.any():
            rows.append(CostSource(device.name, label, int(here.sum()), float(modelled[here].sum()), sure))
    missing = int((left & np.isnan(modelled)).sum())
    if missing:
        rows.append(CostSource(device.name, "nothing", missing, float("nan"), "cannot be planned here"))
    forbidden = int((~may_run(graph, device)).sum())
    if forbidden:
        rows.append(CostSource(device.name, "forbidden here", forbidden, float("nan"), "exact"))
    return tuple(rows)


_UNFITTED = "not measured: a model, exact to a factor at best"


def _rate(device: Device, dtype: str) -> str:
    rate = device.rate(dtype)
    return f"{(rate or 0.0) / 1e12:.4g} TFLOPS" + (f" ({dtype})" if dtype else "")


def _spread(table: CostTable | None, key: str) -> str:
    """Return how far the rows of a device in the table spread; "" without a measured one."""
    for noise in table.noise() if table is not None else ():
        if noise.device == key and noise.batch == 1 and noise.num_measured:
            return f"measured, spread {noise.total_spread:.0%}"
    return ""
