"""The batches of a placement as columns, after checking that they run every shard of every op once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.costs.roofline import op_times
from rlinit.errors import InvalidGraph, InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.limits import FEW_SHARDS, MANY_TIMES, MOST_SHARDS
from rlinit.plan import Batch, Plan

_ULPS = 16.0
"""Steps between floats by which two times may differ through the rounding of a few sums and products."""


class BatchTable(NamedTuple):
    """The b batches of a plan, in its order.

    `op`, `device` (b,) are indices of the graph and the hardware, `start_s`, `end_s` (b,) seconds, `num_shards` (b,);
    `at` (n, S) is the batch that runs each shard of each op.
    """

    op: IntArray
    device: IntArray
    start_s: FloatArray
    end_s: FloatArray
    num_shards: IntArray
    at: IntArray


def batch_table(plan: Plan, graph: Graph, hardware: Hardware) -> BatchTable:
    """Return the batches of a plan as columns.

    Parameters
    ----------
    plan
        A 'latency' or 'throughput' plan, whose form was checked.
    graph, hardware
        What it is for.

    Raises
    ------
    InvalidPlan
        Shards of another size than the definition's; an op or device that is unknown, two batches of an op on a
        device, a shard that is not in one batch.
    """
    batches, shard = plan.batches, shard_size(graph, hardware, plan.inputs)
    if plan.shard_inputs != shard:
        raise InvalidPlan(
            f"the plan's shard_inputs is {plan.shard_inputs}; {plan.inputs} inputs make shards of {shard} here"
        )
    devices = {device.name: i for i, device in enumerate(hardware.devices)}
    ops = {name: v for v, name in enumerate(graph.names)}
    op = np.array([ops.get(batch.op, -1) for batch in batches], np.int64)
    device = np.array([devices.get(batch.device, -1) for batch in batches], np.int64)
    if (device < 0).any():
        name = batches[int(np.argmin(device))].device
        raise InvalidPlan(f"the plan uses device {name!r}, which {hardware.name!r} does not have")
    if (op < 0).any():
        raise InvalidPlan(f"the plan runs op {batches[int(np.argmin(op))].op!r}, which the graph does not have")
    _, first = np.unique(op * len(devices) + device, return_index=True)
    if len(first) < len(batches):
        twice = batches[int(np.setdiff1d(np.arange(len(batches)), first)[0])]
        raise InvalidPlan(f"op {twice.op!r} has two batches on device {twice.device!r}")
    num_shards = np.array([len(batch.shards) for batch in batches], np.int64)
    return BatchTable(
        op,
        device,
        np.array([batch.start_s for batch in batches], np.float64),
        np.array([batch.end_s for batch in batches], np.float64),
        num_shards,
        _shards(plan, graph.names, op, num_shards),
    )


def shard_size(graph: Graph, hardware: Hardware, inputs: int) -> int:
    """Return the inputs of a shard: the common divisor of all inputs and the batch sizes that devices name.

    Where a device names none, it is the smallest part of that which makes few enough shards (16, or 4 on a large
    graph), of which every number has a time there.

    Parameters
    ----------
    graph, hardware
        The problem.
    inputs
        How many there are in all.
    """
    named = [size for device in hardware.devices for size in device.batch_sizes or () if size <= inputs]
    common = math.gcd(inputs, *named)
    free = [device for device in hardware.devices if device.batch_sizes is None]
    few_times = graph.num_ops * len(hardware.devices) * MOST_SHARDS <= MANY_TIMES
    most = MOST_SHARDS if few_times else FEW_SHARDS
    sizes = [inputs // count for count in range(most if free else 0, inputs // common, -1) if inputs % count == 0]
    for shard in (size for size in sizes if common % size == 0):
        try:
            for device in free:
                for size in range(shard, inputs + 1, shard) if graph.times else ():
                    op_times(graph, device, size)
        except InvalidGraph:
            continue
        return shard
    return common


def _shards(plan: Plan, names: Sequence[str], op: IntArray, held: IntArray) -> IntArray:
    """Return (n, S) the batch of each shard, after checking that there is one; batches have `held` (b,) shards."""
    num_shards = plan.inputs // plan.shard_inputs
    shard = np.fromiter(chain.from_iterable(batch.shards for batch in plan.batches), np.int64)
    if len(shard) == len(names) * num_shards and shard.max() < num_shards and held.all():
        batch = np.repeat(np.arange(len(op)), held)
        at = np.full((len(names), num_shards), -1, np.int64)
        at[op[batch], shard] = batch
        if (at >= 0).all():
            return at
    raise InvalidPlan(_odd_shard(plan.batches, names, num_shards))


def _odd_shard(batches: Sequence[Batch], names: Sequence[str], num_shards: int) -> str:
    """Return which shard is not in one batch of its op, or which batch has none."""
    held: dict[str, set[int]] = {name: set() for name in names}
    for batch in batches:
        if not batch.shards:
            return f"op {batch.op!r} has a batch of no shards on device {batch.device!r}"
        for shard in batch.shards:
            if shard in held[batch.op]:
                return f"shard {shard} of op {batch.op!r} is in two batches"
            held[batch.op].add(shard)
    odd = next(name for name, found in held.items() if len(found) != num_shards or max(found) != num_shards - 1)
    return f"op {odd!r} has shards {sorted(held[odd])[:8]}; expected 0..{num_shards - 1}"


def rounding_of(seconds: FloatArray) -> FloatArray:
    """Return the seconds by which times of these magnitudes may differ through rounding."""
    return np.asarray(_ULPS * np.spacing(np.abs(seconds)))
