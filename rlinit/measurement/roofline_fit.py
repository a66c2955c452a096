"""A device's roofline figures from measured seconds, to estimate models that were not measured.

Rates fitted on float32 say nothing of bfloat16 or int8: fit a device on a model of each type in question. What is
fitted replaces the rate of that type and leaves the device's other rates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinit.costs.roofline import moved_bytes
from rlinit.costs.table import CostTable, InvalidCostTable
from rlinit.graph import Graph
from rlinit.hardware import Device
from rlinit.units import compute_type

__all__ = ["fitted_device"]

_FEWEST = 4
"""Measured ops for three figures."""


def fitted_device(graph: Graph, table: CostTable, device: Device) -> Device:
    """Return a device whose ``flops_per_s``, ``bytes_per_s`` and ``launch_s`` fit measured seconds of ops.

    The logarithms of `rlinit.costs.roofline.roofline` and of the seconds are brought together by a robust least-squares
    fit, so that an op counts by its relative error and a few odd ones hardly matter. Inputs and views (ops that only
    look at their input's memory in another way), which the roofline model takes for copies, are left out.

    Parameters
    ----------
    graph
        Gives FLOPs and bytes of the ops.
    table
        Gives their seconds, under the device's name; at any batch sizes.
    device
        The device; its other figures are kept.

    Raises
    ------
    InvalidCostTable
        Fewer than 4 measured ops with known FLOPs, none of which computes (has FLOPs), or none of which moves bytes.
    """
    flops, moved, seconds = _samples(graph, table, device)
    if len(seconds) < _FEWEST or not (flops > 0).any() or not (moved > 0).any():
        raise InvalidCostTable(
            f"table {table.name!r} has {len(seconds)} measured ops with known FLOPs on {device.name!r}, "
            f"{int((flops > 0).sum())} of which compute; expected at least {_FEWEST}, and some that do"
        )
    fits = [_fit(flops, moved, seconds, start) for start in _starts(flops, moved, seconds)]
    _, best = min(fits, key=lambda fit: fit[0])
    flops_per_s, bytes_per_s, launch_s = np.exp(best).tolist()
    rates = _with_rate(graph, device, flops_per_s)
    return dataclasses.replace(device, flops_per_s=rates, bytes_per_s=bytes_per_s, launch_s=launch_s)


def _with_rate(graph: Graph, device: Device, rate: float) -> float | Mapping[str, float]:
    """Return the device's rates with that of the type that most of the graph's operations are in."""
    if not isinstance(device.flops_per_s, Mapping):
        return rate
    share: dict[str, float] = {}
    for v in range(graph.num_ops):
        dtype = compute_type(graph.extras.get(v, {})) or "fp32"
        share[dtype] = share.get(dtype, 0.0) + float(np.nan_to_num(graph.flops[v]))
    return {**device.flops_per_s, max(share, key=lambda dtype: share[dtype]): rate}


def _samples(
    graph: Graph, table: CostTable, device: Device
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return FLOPs, bytes and seconds of each measured op."""
    moved_at: dict[int, NDArray[np.float64]] = {}
    rows = []
    for row in table.rows:
        if row.device != device.name or row.seconds <= 0:
            continue
        v = graph.index(row.op)
        if graph.kinds[v] == "input" or graph.extras.get(v, {}).get("view") or np.isnan(graph.flops[v]):
            continue
        if row.batch not in moved_at:
            moved_at[row.batch] = moved_bytes(graph, row.batch)
        rows.append((row.batch * graph.flops[v], moved_at[row.batch][v], row.seconds))
    flops, moved, seconds = np.array(rows, np.float64).reshape(-1, 3).T
    return flops, moved, seconds


def _starts(
    flops: NDArray[np.float64], moved: NDArray[np.float64], seconds: NDArray[np.float64]
) -> list[NDArray[np.float64]]:
    """Return logarithms of the figures to start from: the best that were seen, and middling ones."""
    return [
        np.log(
            [
                np.quantile(flops[flops > 0] / seconds[flops > 0], share),
                np.quantile(moved[moved > 0] / seconds[moved > 0], share),
                seconds.min(),
            ]
        )
        for share in (1.0, 0.75, 0.5)
    ]


def _fit(
    flops: NDArray[np.float64], moved: NDArray[np.float64], seconds: NDArray[np.float64], start: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """Return the error of the best fit near a start, and the logarithms of its figures."""
    from scipy.optimize import least_squares

    def residuals(figures: NDArray[np.float64]) -> NDArray[np.float64]:
        rate, width, launch = np.exp(figures)
        modelled: NDArray[np.float64] = np.maximum(flops / rate, moved / width) + launch
        error: NDArray[np.float64] = np.log(modelled / seconds)
        return error

    # Within a factor of e^20 of the start: a figure that no op depends on must not run away.
    found: Any = least_squares(residuals, start, bounds=(start - 20.0, start + 20.0), loss="soft_l1")
    return float(found.cost), found.x
