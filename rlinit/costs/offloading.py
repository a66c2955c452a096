"""Offloading as accelerate does it: one device stores weights, and another computes with them."""

from __future__ import annotations

import dataclasses

import numpy as np

from rlinit.costs.roofline import known_bytes, may_run, op_times
from rlinit.errors import InvalidHardware
from rlinit.graph import Graph
from rlinit.hardware import Hardware


def offloaded(
    graph: Graph, hardware: Hardware, *, store: str = "cpu", main: str | None = None, inputs: int = 1
) -> tuple[Graph, Hardware]:
    """Return graph and hardware on which an op "on" the store computes on the main device with weights brought there.

    A device map of accelerate that says "cpu" means this: the weights stay in the host's memory, and each pass brings
    them to the main device, computes there, and drops them. So such an op takes bytes / bandwidth + latency of the link
    and its time on the main device; its results are there. The main device keeps room for the largest op's weights.

    Parameters
    ----------
    graph
        With a time or flops for each op on the main device.
    hardware
        Devices and links.
    store
        The device that only stores.
    main
        The device that computes for it; None: the first other one, as in ``dispatch_model``.
    inputs
        The largest batch that ops get times for, where the main device names no batch sizes.

    Returns
    -------
    tuple of Graph, Hardware
        What to plan, export and compare with. A plan of them runs by ``accelerate.dispatch_model`` and
        ``plan.to_device_map``.

    Raises
    ------
    InvalidHardware
        A device that is not there, no link from the store to the main device, or no room for the largest op.
    InvalidGraph
        An op has no time on the main device.

    Notes
    -----
    Store and main device are two devices to the plan, which are one at work: where ops of both do not depend on each
    other, the plan's time counts them at once. In models whose layers follow each other, planned by layer, none do.

    References
    ----------
    accelerate, guide "Big model inference" (``cpu_offload``, ``AlignDevicesHook``): weights are brought before a
    module's forward and dropped after it, without prefetching.
    """
    names = [device.name for device in hardware.devices]
    main = next((name for name in names if name != store), store) if main is None else main
    if store not in names or main not in names or main == store:
        raise InvalidHardware(f"store is {store!r} and main {main!r}; expected two of the devices {names}")
    s, m = names.index(store), names.index(main)
    host, device = hardware.devices[s], hardware.devices[m]
    weights = known_bytes(graph.param_bytes)
    rate, wait = float(hardware.bandwidth[s, m]), float(hardware.latency_s[s, m])
    room = device.memory_bytes - float(weights.max(initial=0.0))
    if rate <= 0.0 or room <= 0.0:
        raise InvalidHardware(f"no link from {store!r} to {main!r}, or no room there for the weights of the largest op")
    brought = np.where(weights > 0.0, weights / rate + wait, 0.0)
    ruled_out = ~may_run(graph, device) | graph.forbidden.get(store, np.zeros(graph.num_ops, np.bool_))
    times = {key: column for key, column in graph.times.items() if key[0] != store}
    for batch in device.batch_sizes or range(1, inputs + 1):
        times[store, batch] = np.where(ruled_out, 0.0, op_times(graph, device, batch)) + brought
    bandwidth, latency_s = hardware.bandwidth.copy(), hardware.latency_s.copy()
    for matrix, own in ((bandwidth, np.inf), (latency_s, 0.0)):
        matrix[s], matrix[:, s] = matrix[m].copy(), matrix[:, m].copy()
        matrix[s, m] = matrix[m, s] = matrix[s, s] = own
    devices = list(hardware.devices)
    devices[m] = dataclasses.replace(device, memory_bytes=room)
    devices[s] = dataclasses.replace(
        device, name=store, memory_bytes=host.memory_bytes, reserve_bytes=host.reserve_bytes, slowdown=1.0
    )
    return (
        dataclasses.replace(graph, times=times, forbidden={**graph.forbidden, store: ruled_out}),
        dataclasses.replace(hardware, devices=tuple(devices), bandwidth=bandwidth, latency_s=latency_s),
    )
