"""From stages of several devices to the plan that users get."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import GroupRules, ShareUse, StageUse
from rlinit.stages.groups.lowering import LoweredGroups, blocks_of, kinds_of
from rlinit.stages.groups.problem import GroupedStages, group_uses
from rlinit.stages.problem import crossings


def group_parts(
    plan: GroupedStages | None, lowered: LoweredGroups, rules: GroupRules, graph: Graph, hardware: Hardware
) -> dict[str, Any]:
    """Return the fields of a plan that describe stages of several devices.

    Parameters
    ----------
    plan
        Stages, or None: no fields but the rules.
    lowered
        The problem, and the names of variants.
    rules
        What stages may be.
    graph, hardware
        Where ops and devices have their names from.
    """
    if plan is None:
        return {"groups": rules}
    problem, stages = lowered.problem, range(len(plan.replicas))
    named: list[dict[int, tuple[str, ...]]] = [{} for _ in stages]
    counts = plan.degree[:, None] * plan.replicas
    for k, of_kind in enumerate(kinds_of(hardware)):
        blocks = blocks_of(problem.degrees[problem.kind == k].tolist(), of_kind)
        for j, names in _devices({j: int(counts[j, k]) for j in stages if counts[j, k]}, blocks, of_kind).items():
            named[j][k] = names
    structure = problem.structure
    made, _, leaves = crossings(structure, plan.stage, len(stages))
    uses = []
    for j, own in enumerate(group_uses(problem, plan)):
        inside = np.flatnonzero(plan.stage == j)
        variants = {k: {graph.names[v]: lowered.variants[plan.row[k, v]] for v in inside.tolist()} for k in own}
        order = sorted(own, key=lambda k: -own[k].time_s)
        use, devices = own[order[0]], tuple(name for k in order for name in named[j][k])
        shares = tuple(
            ShareUse(
                problem.kinds[k], int(plan.replicas[j, k]), int(plan.taken[j, k]), own[k].time_s, own[k].in_flight,
                own[k].memory_bytes, variants[k],
            )
            for k in order
        )  # fmt: skip
        uses.append(
            StageUse(
                device=devices[0],
                num_ops=len(inside),
                work_s=use.work_s,
                in_s=use.in_s,
                out_s=use.out_s,
                overflow_s=0.0,
                param_bytes=float(lowered.param_bytes[plan.row[order[0], inside]].sum()),
                off_cache_bytes=0.0,
                out_bytes=float(structure.tensor_bytes[leaves & (made == j)].sum()),
                replicas=int(plan.replicas[j].sum()),
                tensor_parallel=int(plan.degree[j]),
                devices=devices,
                variants=variants[order[0]],
                sync_s=use.sync_s,
                gradient_s=use.gradient_s,
                in_flight=use.in_flight,
                held_bytes=use.memory_bytes,
                shares=shares if len(shares) > 1 else (),
            )
        )
    stage_of = dict(zip(graph.names, plan.stage.tolist(), strict=True))
    return {"assignment": stage_of, "stages": tuple(uses), "groups": rules}


def _devices(counts: dict[int, int], blocks: list[int], hardware: Hardware) -> dict[int, tuple[str, ...]]:
    """Return the devices of each stage: those of larger blocks first, node by node, so that blocks lie in one node."""
    names = [name for inside in hardware.nodes.values() for name in inside]
    found: dict[int, tuple[str, ...]] = {}
    begin = 0
    for j in sorted(counts, key=lambda j: (-max(b for b in blocks if counts[j] % b == 0), j)):
        found[j] = tuple(names[begin : begin + counts[j]])
        begin += counts[j]
    return found
