"""Memory over time of placements, against a count at every moment."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan
from rlinit.simulation.memory_profile import memory_profile
from tests.draws import draws
from tests.executors.plans import random_case, random_graph, stage_plan

SEEDS = st.integers(0, 100_000)


def held_at(plan: Plan, graph: Graph, hardware: Hardware, device: str, now_s: float) -> float:
    """Return the bytes a device holds at a moment at which nothing starts or ends, from the definitions."""
    at = {(batch.op, shard): batch for batch in plan.batches for shard in batch.shards}
    names = [d.name for d in hardware.devices]
    listed = {(t.op, t.source, t.target): t for t in plan.transfers}
    total = 0.0
    for batch in plan.batches:
        v = graph.index(batch.op)
        consumers = [graph.names[w] for w in graph.succ[graph.succ_indptr[v] : graph.succ_indptr[v + 1]]]
        if batch.device == device:
            total += graph.param_bytes[v]
        size = float(graph.out_bytes[v]) * plan.shard_inputs
        readers = {id(at[w, s]): at[w, s] for w in consumers for s in batch.shards}.values()
        until = max((r.end_s for r in readers if r.device == batch.device), default=0.0)
        for target in {r.device for r in readers} - {batch.device}:
            there = [r for r in readers if r.device == target]
            shards = {s for s in batch.shards for w in consumers if at[w, s].device == target}
            i, j = names.index(batch.device), names.index(target)
            seconds = hardware.latency_s[i, j] + len(shards) * size / hardware.bandwidth[i, j]
            one = listed.get((batch.op, batch.device, target))
            leaves, arrives = (one.start_s, one.end_s) if one else (batch.end_s, batch.end_s + seconds)
            until = max(until, arrives)
            if target == device and leaves < now_s < max(r.end_s for r in there):
                total += len(shards) * size
        if batch.device == device and batch.start_s < now_s < (until if readers else np.inf):
            total += len(batch.shards) * size
    return total


@given(seed=SEEDS, inputs=st.sampled_from([1, 3]), rule=st.sampled_from(["parallel", "exclusive", "blocking"]))
@settings(max_examples=draws(60), deadline=None)
def test_every_moment(seed: int, inputs: int, rule: str) -> None:
    """Between any two events a device holds what the definitions say, and its peak is at most what the plan counts."""
    plan, graph, hardware = random_case(seed, inputs=inputs, transfers=rule)  # type: ignore[arg-type]
    profiles = memory_profile(plan, graph, hardware)
    moments = np.unique(np.concatenate([profile.time_s for profile in profiles.values()]))
    middles = ((moments[1:] + moments[:-1]) / 2)[np.diff(moments) > 1e-9]
    for use in plan.devices:
        profile = profiles[use.device]
        for now_s in middles:
            shown = profile.held_bytes[np.searchsorted(profile.time_s, now_s) - 1]
            assert shown == pytest.approx(held_at(plan, graph, hardware, use.device, float(now_s)), abs=1e-9)
        assert profile.held_bytes.max() <= profile.peak_bytes + 1e-9
        assert profile.peak_bytes <= use.held_bytes + 1e-9


def test_refusals() -> None:
    """A plan without a timeline, or for another graph, is refused."""
    plan, graph, hardware = random_case(1)
    with pytest.raises(InvalidPlan, match="no timeline"):
        memory_profile(stage_plan(graph, hardware, [0] * 8), graph, hardware)
    with pytest.raises(InvalidPlan, match="another graph"):
        memory_profile(plan, random_graph(2), hardware)
    with pytest.raises(InvalidPlan, match="other hardware"):
        memory_profile(plan, graph, dataclasses.replace(hardware, name="elsewhere"))
