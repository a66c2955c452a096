"""Tarnawski et al.'s latency problem: accelerators are called, and a call blocks from first input to last output.

An accelerator runs its ops in one *call*, or in up to q of them, one after another. A call starts when all tensors it
needs from outside are in the CPU's memory and the call before it has ended. It moves each of them in, runs its ops,
and moves out each tensor that an op outside the call uses; all of that takes its turn. Its outputs are there for
others when it ends, all at once. CPU cores are as many as ops need: an op there starts when its inputs are in memory,
and pays no transfer.

References
----------
Tarnawski, Phanishayee, Devanur, Mahajan, Nina Paravecino: Efficient algorithms for device placement of DNN graph
operators, NeurIPS 2020, section on latency minimization and appendix A (q calls). Data and format:
github.com/msr-fiddle/dnn-partitioning (MIT license), ``latency-inputs``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlinit.costs.roofline import known_bytes, op_times
from rlinit.datasets.published import dnn_partitioning
from rlinit.datasets.published.dnn_partitioning import ACCELERATOR, CPU, core
from rlinit.errors import InvalidGraph, InvalidHardware
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.limits import check_device_count

__all__ = ["blocking_latency", "contiguous", "load"]


def load(path: str | Path, *, cores: int | None = None) -> tuple[Graph, Hardware]:
    """Read a workload of the format as a graph and linked devices.

    The graph is that of `rlinit.datasets.published.dnn_partitioning.load`. Between CPU cores transfers cost nothing,
    between a core and an accelerator an edge's ``cost``, and between two accelerators twice that, through the CPU's
    memory.

    Parameters
    ----------
    path
        A file of ``latency-inputs``; files of ``throughput-inputs`` have the same format.
    cores
        Number of CPU cores; None: ``maxCPUs`` of the file. `blocking_latency` has as many as are needed.

    Raises
    ------
    InvalidGraph, InvalidHardware
        As for `rlinit.datasets.published.dnn_partitioning.load`; `cores` < 0.

    Notes
    -----
    The `latency` objective on what is returned, with ``parallel`` transfers, bounds `blocking_latency` from below if
    there are as many cores as ops could use at once, no ops are colocated, and memory does not bind: splitting calls
    up and letting transfers overlap makes nothing later. Otherwise it does not: there, colocated ops share one core,
    where here they only share "the CPU", and tensors take memory beside the parameters.
    """
    graph, hardware = dnn_partitioning.load(path)
    accelerators = [device for device in hardware.devices if device.kind == ACCELERATOR]
    cpus = [device for device in hardware.devices if device.kind == CPU]
    if cores is not None:
        if cores < 0:
            raise InvalidHardware(f"cores is {cores}; expected an integer >= 0")
        check_device_count(cores, InvalidHardware)
        cpus = [core(i) for i in range(cores)]
    devices = (*accelerators, *cpus)
    if not devices:
        raise InvalidHardware(f"{path}: no accelerator and no CPU core; expected at least one device")
    away = np.array([device.kind == ACCELERATOR for device in devices])
    rate = accelerators[0].io_bandwidth if accelerators else None
    hops = away[:, None].astype(np.int64) + away[None, :]
    np.fill_diagonal(hops, 0)
    rates = np.array([math.inf, rate or math.inf, (rate or math.inf) / 2])[hops]
    return graph, Hardware(devices, rates, np.zeros(rates.shape), hardware.name)


def contiguous(graph: Graph, member: NDArray[np.bool_]) -> bool:
    """Return whether no path leaves a set of ops and comes back to it.

    Parameters
    ----------
    member
        (n,) bool, the set.
    """
    outside = np.zeros(graph.num_ops, np.bool_)  # behind the set, and not in it
    for v in graph.order.tolist():
        into = graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]]
        if member[v]:
            if outside[into].any():
                return False
        else:
            outside[v] = bool((member[into] | outside[into]).any())
    return True


def blocking_latency(
    graph: Graph, hardware: Hardware, device_of_op: Sequence[int], call_of_op: Sequence[int] | None = None
) -> float:
    """Return the latency in seconds of a split into calls, ``inf`` where it is not allowed.

    It is not allowed if an op may not run where it is put, an accelerator holds more than its memory, colocated ops
    are neither all on CPU cores nor all on one accelerator, a call is not contiguous, or calls wait for one another.

    Parameters
    ----------
    graph, hardware
        As returned by `load`; only times, memory and `io_bandwidth` of the devices matter, not their links.
    device_of_op
        (n,) index of the device of each op; all CPU cores are the same.
    call_of_op
        (n,) number of the call on its accelerator for each op, at least 0; calls run in the order of their numbers.
        Not used for ops on cores. None: one call for each accelerator.

    Raises
    ------
    InvalidGraph
        A device or a number of calls that does not exist, or an op without a time.
    """
    device, call = _split(graph, hardware, device_of_op, call_of_op)
    away = np.array([entry.kind == ACCELERATOR for entry in hardware.devices])[device]
    times = np.stack([op_times(graph, entry) for entry in hardware.devices], axis=1)
    seconds = times[np.arange(graph.num_ops), device]
    if not np.isfinite(seconds).all() or not _allowed(graph, hardware, device, away):
        return math.inf
    rates = np.array([hardware.io_bandwidth(i) for i in range(hardware.num_devices)])  # in, out
    # One block for each call and each op on a core, in the order in which they may run.
    keys = np.stack([np.where(away, device, -1), np.where(away, call, np.arange(graph.num_ops))], axis=1)
    blocks, block = np.unique(keys, axis=0, return_inverse=True)
    block = block.reshape(-1)
    load_s = np.bincount(block, weights=seconds, minlength=len(blocks)).astype(np.float64)
    graph.require_main_outputs("the cost of blocking calls")
    tensor = known_bytes(graph.out_bytes)
    crossing = graph.edges[block[graph.edges[:, 0]] != block[graph.edges[:, 1]]]
    pairs = {(int(u), int(block[v])) for u, v in crossing}
    for u, into in sorted(pairs):
        if blocks[into, 0] >= 0:
            load_s[into] += tensor[u] / rates[blocks[into, 0], 0]
    for u in sorted({u for u, _ in pairs}):
        if away[u]:
            load_s[block[u]] += tensor[u] / rates[device[u], 1]
    follows = {(int(block[u]), into) for u, into in pairs}
    # np.unique sorts by device and call, so that calls of one accelerator are neighbours.
    for later in range(1, len(blocks)):
        if blocks[later, 0] >= 0 and blocks[later - 1, 0] == blocks[later, 0]:
            follows.add((later - 1, later))
    return _longest_path(load_s, follows)


def _split(
    graph: Graph, hardware: Hardware, device_of_op: Sequence[int], call_of_op: Sequence[int] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Check the shapes and ranges of a split."""
    device = np.asarray(device_of_op, np.int64)
    call = np.zeros(graph.num_ops, np.int64) if call_of_op is None else np.asarray(call_of_op, np.int64)
    for what, column, most in (("device_of_op", device, hardware.num_devices), ("call_of_op", call, math.inf)):
        if column.shape != (graph.num_ops,):
            raise InvalidGraph(f"{what} has shape {column.shape}; expected one entry for each of {graph.num_ops} ops")
        wrong = np.flatnonzero((column < 0) | (column >= most))
        if len(wrong):
            raise InvalidGraph(f"{what} of op {graph.names[wrong[0]]!r} is {column[wrong[0]]}; out of range")
    for entry in hardware.devices:
        if entry.kind not in (ACCELERATOR, CPU):
            raise InvalidGraph(f"device {entry.name!r} has kind {entry.kind!r}; expected {ACCELERATOR!r} or {CPU!r}")
    return device, call


def _allowed(graph: Graph, hardware: Hardware, device: NDArray[np.int64], away: NDArray[np.bool_]) -> bool:
    """Return whether the memory of accelerators and colocation are respected."""
    held = np.bincount(device, weights=known_bytes(graph.param_bytes), minlength=hardware.num_devices)
    for i, entry in enumerate(hardware.devices):
        if entry.kind == ACCELERATOR and held[i] > entry.memory_bytes:
            return False
    home = np.where(away, device, -1)
    shared: dict[int, int] = {}
    grouped = np.flatnonzero(graph.colocation >= 0).tolist()
    return all(shared.setdefault(int(graph.colocation[v]), int(home[v])) == home[v] for v in grouped)


def _longest_path(load_s: NDArray[np.float64], follows: set[tuple[int, int]]) -> float:
    """Return when the last block ends; ``inf`` if blocks wait for one another."""
    after: list[list[int]] = [[] for _ in load_s]
    waiting = [0] * len(load_s)
    for earlier, later in follows:
        after[earlier].append(later)
        waiting[later] += 1
    start = [0.0] * len(load_s)
    ready = [b for b, count in enumerate(waiting) if count == 0]
    done, latest = 0, 0.0
    while ready:
        b = ready.pop()
        done += 1
        end = start[b] + float(load_s[b])
        latest = max(latest, end)
        for later in after[b]:
            start[later] = max(start[later], end)
            waiting[later] -= 1
            if waiting[later] == 0:
                ready.append(later)
    return latest if done == len(load_s) else math.inf
