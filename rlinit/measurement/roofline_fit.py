"""A device's roofline figures and efficiencies from measured seconds, to estimate models that were not measured.

Rates fitted on float32 say nothing of bfloat16 or int8: fit a device on a model of each type in question. What is
fitted replaces the rate of that type and leaves the device's other rates. Efficiencies are shares of the fitted rates,
one curve for operations and one for bytes of each class of ops that was measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray
from rlinit.costs.interpolation import FEWEST
from rlinit.costs.roofline import moved_bytes
from rlinit.costs.table import CostTable, InvalidCostTable
from rlinit.devices.efficiency import OP_CLASSES, Efficiency, op_class
from rlinit.graph import Graph
from rlinit.hardware import Device
from rlinit.units import compute_type

__all__ = ["Samples", "fit_class", "fitted_device"]

LAUNCH_S = 3e-6
"""Launch to start a fit from, where a device says none: near that of a GPU's kernel."""

_DEPTH_S = 5e-10
"""Seconds of a number of the inner dimension to start from: a multiplication and addition at a GPU's clock."""

_ODD = 0.1
"""Logarithm of an error from which it counts by its size rather than its square."""

_SMOOTH, _PULL = 0.3, 0.03
"""Weights, beside a residual's of 1, of the logarithms of the ratio of neighbouring shares, and of a share itself."""


def fitted_device(graph: Graph, table: CostTable, device: Device, *, rates: bool = True) -> Device:
    """Return a device whose rates, ``launch_s`` and ``efficiency`` fit measured seconds of ops.

    The logarithms of `rlinit.costs.roofline.roofline` and of the seconds are brought together by a robust least-squares
    fit, so that an op counts by its relative error and a few odd ones hardly matter: first three figures for all ops,
    then for each class of ops with at least 4 measured ones its launch, and shares at sizes a factor of 10 apart, which
    are kept close to their neighbours. `Efficiency.error` is 1.48 times the median relative error of the class. Inputs
    and views (ops that only look at their input's memory in another way), which the roofline model takes for copies,
    are left out.

    Parameters
    ----------
    graph
        Gives FLOPs and bytes of the ops.
    table
        Gives their seconds, under the device's name; at any batch sizes.
    device
        The device; its other figures are kept.
    rates
        Whether to fit rates and launch. Where not, the device has them, and efficiencies are shares of those.

    Raises
    ------
    InvalidCostTable
        Rates to be kept that the device does not have. Fewer than 4 measured ops with known FLOPs, none of which
        computes (has FLOPs), or none of which moves bytes.
    """
    classes, flops, moved, seconds = _samples(graph, table, device)
    if len(seconds) < FEWEST or not (flops > 0).any() or not (moved > 0).any():
        raise InvalidCostTable(
            f"table {table.name!r} has {len(seconds)} measured ops with known FLOPs on {device.name!r}, "
            f"{int((flops > 0).sum())} of which compute; expected at least {FEWEST}, and some that do"
        )
    if rates:
        fits = [_fit(flops, moved, seconds, start) for start in _starts(flops, moved, seconds)]
        _, best = min(fits, key=lambda fit: fit[0])
        flops_per_s, bytes_per_s, launch_s = np.exp(best).tolist()
        device = dataclasses.replace(
            device, flops_per_s=_with_rate(graph, device, flops_per_s), bytes_per_s=bytes_per_s, launch_s=launch_s
        )
    rate, bandwidth = device.rate(_usual_type(graph)), device.bytes_per_s
    if rate is None or bandwidth is None:
        raise InvalidCostTable(f"device {device.name!r} has no flops_per_s or bytes_per_s to be kept")
    efficiency = {}
    for name in OP_CLASSES:
        here = classes == name
        if here.sum() >= FEWEST:
            ideal_s = flops[here] / rate, moved[here] / bandwidth
            launch_s = device.launch_s or LAUNCH_S
            found = Samples(flops[here], moved[here], *ideal_s, seconds[here], np.zeros(int(here.sum())))
            efficiency[name] = fit_class(found, launch_s)
    return dataclasses.replace(device, efficiency={**device.efficiency, **efficiency})


class Samples(NamedTuple):
    """Measured ops of one class; all (q,).

    Parameters
    ----------
    flops, moved
        Operations and bytes.
    flops_s, moved_s
        What they take at the peak rates of the device.
    seconds
        Measured.
    depth
        Numbers of the inner dimension of products; 0 for others.
    """

    flops: FloatArray
    moved: FloatArray
    flops_s: FloatArray
    moved_s: FloatArray
    seconds: FloatArray
    depth: FloatArray


def fit_class(samples: Samples, launch_s: float) -> Efficiency:
    """Return what ops of one class reach: a launch, seconds of an inner dimension, and shares at some sizes.

    Parameters
    ----------
    samples
        Of one device or several, whose rates their ideal seconds are of.
    launch_s
        Where the launch starts from.
    """
    from scipy.optimize import least_squares

    flops, moved, flops_s, moved_s, seconds, depth = samples
    knots = [_knots(flops), _knots(moved)]
    count, deep = len(knots[0]), bool((depth > 0).any())

    def parts(x: FloatArray) -> tuple[Efficiency, FloatArray]:
        shares = np.exp(-x[2:])
        one = Efficiency(
            _points(knots[0], shares[:count]), _points(knots[1], shares[count:]), float(np.exp(x[0])),
            float(np.exp(x[1])) if deep else 0.0,
        )  # fmt: skip
        f = flops_s * np.divide(one.counted_flops(flops), flops, out=np.zeros_like(flops), where=flops > 0)
        b = moved_s * np.divide(one.counted_bytes(moved), moved, out=np.zeros_like(moved), where=moved > 0)
        return one, np.log((np.maximum(np.maximum(f, b), one.depth_s * depth) + np.exp(x[0])) / seconds)

    def residuals(x: FloatArray) -> FloatArray:
        steps = [np.diff(part) for part in (x[2 : 2 + count], x[2 + count :])]
        return np.concatenate([parts(x)[1], _SMOOTH * np.concatenate(steps), _PULL * (x - start)])

    start = np.array([np.log(launch_s), np.log(_DEPTH_S), *[0.0] * (count + len(knots[1]))])
    found: Any = least_squares(residuals, start, bounds=(start - 7.0, start + 7.0), loss="soft_l1", f_scale=_ODD)
    one, error = parts(found.x)
    return dataclasses.replace(one, error=float(np.expm1(1.48 * np.median(np.abs(error)))))


def _knots(sizes: FloatArray) -> FloatArray:
    """Return sizes from the smallest to the largest of some sizes, a factor of 10 apart or a little less."""
    used = sizes[sizes > 0]
    if not len(used):
        return np.zeros(0)
    low, high = float(used.min()), float(used.max())
    return np.geomspace(low, high, int(np.ceil(np.log10(high / low))) + 1) if high > low else np.array([low])


def _points(sizes: FloatArray, shares: FloatArray) -> tuple[tuple[float, float], ...]:
    """Return points of which none makes a larger op faster."""
    counts = np.maximum.accumulate(sizes / shares)
    return tuple(zip(sizes.tolist(), (sizes / counts).tolist(), strict=True))


def _with_rate(graph: Graph, device: Device, rate: float) -> float | Mapping[str, float]:
    """Return the device's rates with that of the type that most of the graph's operations are in."""
    return {**device.flops_per_s, _usual_type(graph): rate} if isinstance(device.flops_per_s, Mapping) else rate


def _usual_type(graph: Graph) -> str:
    """Return the type of numbers that most of a graph's operations are in."""
    share: dict[str, float] = {}
    for v in range(graph.num_ops):
        dtype = compute_type(graph.extras.get(v, {})) or "fp32"
        share[dtype] = share.get(dtype, 0.0) + float(np.nan_to_num(graph.flops[v]))
    return max(share, key=lambda dtype: share[dtype])


def _samples(
    graph: Graph, table: CostTable, device: Device
) -> tuple[NDArray[np.str_], FloatArray, FloatArray, FloatArray]:
    """Return class, FLOPs, bytes and seconds of each measured op."""
    moved_at: dict[int, FloatArray] = {}
    classes, rows = [], []
    for row in table.rows:
        if row.device != device.name or row.seconds <= 0:
            continue
        v = graph.index(row.op)
        if graph.kinds[v] == "input" or graph.extras.get(v, {}).get("view") or np.isnan(graph.flops[v]):
            continue
        if row.batch not in moved_at:
            moved_at[row.batch] = moved_bytes(graph, row.batch)
        classes.append(op_class(graph.kinds[v]))
        rows.append((row.batch * graph.flops[v], moved_at[row.batch][v], row.seconds))
    flops, moved, seconds = np.array(rows, np.float64).reshape(-1, 3).T
    return np.array(classes), flops, moved, seconds


def _starts(flops: FloatArray, moved: FloatArray, seconds: FloatArray) -> list[FloatArray]:
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


def _fit(flops: FloatArray, moved: FloatArray, seconds: FloatArray, start: FloatArray) -> tuple[float, FloatArray]:
    """Return the error of the best fit near a start, and the logarithms of its figures."""
    from scipy.optimize import least_squares

    def residuals(figures: FloatArray) -> FloatArray:
        rate, width, launch = np.exp(figures)
        modelled: FloatArray = np.maximum(flops / rate, moved / width) + launch
        error: FloatArray = np.log(modelled / seconds)
        return error

    # Within a factor of e^20 of the start: a figure that no op depends on must not run away.
    found: Any = least_squares(residuals, start, bounds=(start - 20.0, start + 20.0), loss="soft_l1")
    return float(found.cost), found.x
