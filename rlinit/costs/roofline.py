"""Seconds of each op on a device: given times first, then the roofline model where the device gives rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.costs.products import products
from rlinit.devices.efficiency import Efficiency, class_on, op_class
from rlinit.errors import InvalidGraph
from rlinit.graph import ANY_DEVICE, Graph
from rlinit.hardware import Device, Hardware
from rlinit.units import DTYPES, compute_type


def known_bytes(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sizes with the ones that were not given counted as 0 bytes."""
    return np.where(np.isnan(values), 0.0, values)


def may_run(graph: Graph, device: Device) -> NDArray[np.bool_]:
    """Return (n,) bool: which ops the device may run (its name and its kind may both be forbidden).

    Parameters
    ----------
    graph
        The graph, whose `forbidden` names devices and kinds of device.
    device
        The device.
    """
    allowed = np.ones(graph.num_ops, np.bool_)
    for key in (device.name, device.kind):
        if key in graph.forbidden:
            allowed &= ~graph.forbidden[key]
    return allowed


def moved_bytes(graph: Graph, batch: int = 1) -> NDArray[np.float64]:
    """Return (n,) bytes an op reads and writes: its input tensors, its parameters (once) and all its outputs.

    A lookup (``rlinit.devices.efficiency.op_class``) reads of its parameters, such as an embedding's table, as much as
    it gives.

    Parameters
    ----------
    graph
        The graph; byte counts it does not know count as 0.
    batch
        Inputs that run through the op at once, at least 1; tensors grow with them, parameters do not.
    """
    read = known_bytes(graph.param_bytes) + graph.unheld_bytes
    lookups = [v for v in np.flatnonzero(read).tolist() if op_class(graph.kinds[v]) == "lookup"]
    if lookups:
        read = read.copy()
        read[lookups] = np.minimum(read[lookups], batch * known_bytes(graph.made_bytes)[lookups])
    return batch * held_tensors(graph) + read


def held_tensors(graph: Graph) -> NDArray[np.float64]:
    """Return (n,) bytes of the tensors each op reads and of all that it makes, for one input."""
    read = np.bincount(graph.edges[:, 1], weights=known_bytes(graph.edge_bytes), minlength=graph.num_ops)
    return np.asarray(read + known_bytes(graph.made_bytes))


def roofline(graph: Graph, device: Device, batch: int = 1) -> NDArray[np.float64]:
    """Return (n,) seconds by the roofline model; NaN for ops whose `flops` were not given.

    The time of an op is the larger of its operations over the device's rate for the type of numbers it computes in
    (`Device.rate`, `rlinit.units.compute_type`) and its bytes over ``bytes_per_s`` (where the device gives that),
    plus ``launch_s``; but at least ``host_s``. Where the device has efficiencies, those of the op's class say what
    its operations and bytes count as (`rlinit.devices.efficiency`). Operations and tensors grow with the batch,
    parameters are read once. A view of a tensor (``view`` in the op's extras, as importers note it) takes no time:
    it only says how to read what is there.

    Parameters
    ----------
    graph
        Its ops, of which views are timed even without `flops`.
    device
        NaN for ops whose type of numbers it has no ``flops_per_s`` for.
    batch
        Inputs at once, >= 1.

    References
    ----------
    Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009.
    """
    if device.flops_per_s is None:
        return np.full(graph.num_ops, np.nan)
    flops, moved = batch * graph.flops, moved_bytes(graph, batch)
    launch_s: FloatArray | float = device.launch_s
    if device.efficiency:
        launch_s = np.full(graph.num_ops, device.launch_s)
        for one, ops in ops_by_efficiency(graph, device):
            flops[ops], moved[ops] = one.counted_flops(flops[ops]), one.counted_bytes(moved[ops])
            if one.launch_s is not None:
                launch_s[ops] = one.launch_s
    seconds = flops / _rates(graph, device)
    depth_s = device.efficiency.get("matmul", Efficiency()).depth_s
    if depth_s:
        found = products(graph)
        seconds[found.op] = np.maximum(seconds[found.op], found.k * depth_s)
    if device.bytes_per_s is not None:
        moved_s = moved / device.bytes_per_s
        seconds = np.maximum(seconds, np.where(np.isnan(seconds), np.nan, moved_s))
    seconds = np.maximum(seconds + launch_s, device.host_s)
    seconds[[v for v, row in graph.extras.items() if row.get("view")]] = 0.0
    return seconds


def ops_by_efficiency(graph: Graph, device: Device) -> list[tuple[Efficiency, IntArray]]:
    """Return each efficiency of a device with the ops of the graph that it is for.

    Parameters
    ----------
    graph
        Its ops' kinds say their classes.
    device
        Its efficiencies.
    """
    classes = np.array([class_on(op_class(kind), device.efficiency) for kind in graph.kinds])
    return [(one, np.flatnonzero(classes == name)) for name, one in device.efficiency.items()]


def _rates(graph: Graph, device: Device) -> NDArray[np.float64] | float:
    """Return the device's operations a second for each op's type of numbers; NaN where it has none."""
    if not isinstance(device.flops_per_s, Mapping):
        return np.nan if device.flops_per_s is None else device.flops_per_s
    rates = {dtype: device.rate(dtype) for dtype in ("", *DTYPES)}
    row = [rates[compute_type(graph.extras.get(v, {}))] for v in range(graph.num_ops)]
    return np.array([np.nan if rate is None else rate for rate in row])


def op_times(graph: Graph, device: Device, batch: int = 1) -> NDArray[np.float64]:
    """Return (n,) seconds of each op on a device at a batch size.

    A time given for the device's name wins over one for its kind, that over one for every device, and that over
    the roofline model, which is not asked for ops that have times at other batch sizes there: measured and modelled
    times of one op would not compare. All are multiplied by the device's `slowdown`. Ops the device may not run get
    ``inf``.

    Parameters
    ----------
    graph
        The graph, with given times in `times` or the figures that the roofline model needs.
    device
        The device, with `flops_per_s` and `bytes_per_s` where the model is to be asked.
    batch
        Inputs that run through the op at once, at least 1.

    Raises
    ------
    InvalidGraph
        An op that may run on the device has none of these; the message names both.
    """
    seconds = np.full(graph.num_ops, np.nan)
    for key in (device.name, device.kind, ANY_DEVICE):
        given = graph.times.get((key, batch))
        if given is not None:
            seconds = np.where(np.isnan(seconds), given, seconds)
    if np.isnan(seconds).any():
        timed = np.zeros(graph.num_ops, np.bool_)
        for (key, _), given in graph.times.items():
            if key in (device.name, device.kind, ANY_DEVICE):
                timed |= ~np.isnan(given)
        seconds = np.where(np.isnan(seconds) & ~timed, roofline(graph, device, batch), seconds)
    seconds = np.where(may_run(graph, device), seconds * device.slowdown, np.inf)
    missing = np.flatnonzero(np.isnan(seconds))
    if len(missing):
        op = graph.names[missing[0]]
        dtype = compute_type(graph.extras.get(int(missing[0]), {}))
        why = (
            "gives no flops"
            if device.rate(dtype) is not None
            else f"and the device gives no flops_per_s{_of(device, dtype)}"
        )
        if any(not np.isnan(given[missing[0]]) for given in graph.times.values()):
            why = "but has times elsewhere"
        raise InvalidGraph(
            f"op {op!r} has no time on device {device.name!r} at batch size {batch} {why} "
            f"({len(missing)} ops in all); give time_s, or flops with a device that has flops_per_s"
        )
    return seconds


def times_on(graph: Graph, devices: Sequence[Device], batch: int = 1) -> list[FloatArray]:
    """Return (n,) seconds of each op on each device, as `op_times` gives them, once for devices that are alike.

    Parameters
    ----------
    graph
        The graph.
    devices
        The devices; rows of those that differ in nothing but a name which the graph does not use are one array.
    batch
        Inputs that run through an op at once, at least 1.
    """
    named = {key for key, _ in graph.times} | set(graph.forbidden)
    others = [one.name for one in fields(Device) if one.name != "name"]
    known: dict[tuple[str, ...], FloatArray] = {}
    rows = []
    for device in devices:
        key = (device.name if device.name in named else "", *(repr(getattr(device, one)) for one in others))
        if key not in known:
            known[key] = op_times(graph, device, batch)
        rows.append(known[key])
    return rows


def with_times(graph: Graph, hardware: Hardware) -> Graph:
    """Return a graph whose ops have times of their own on every device that may run them, as `op_times` gives them.

    Parameters
    ----------
    graph, hardware
        The ops and the devices.

    Raises
    ------
    InvalidGraph
        As for `op_times`.
    """
    times = dict(graph.times)
    for device in hardware.devices:
        seconds = op_times(graph, replace(device, slowdown=1.0))
        times[device.name, 1] = np.where(np.isinf(seconds), np.nan, seconds)
    return replace(graph, times=times)


def _of(device: Device, dtype: str) -> str:
    return f" for {dtype} or a wider type" if dtype and device.flops_per_s is not None else ""
