"""Stage plans as Megatron's ``--pipeline-model-parallel-layout``: which layers each stage of a transformer holds.

In the string, ``E`` is the embedding, ``t`` a transformer layer and ``L`` the loss with what comes before it; ``|``
begins the next stage, ``x*n`` and ``(...)*n`` repeat. Megatron runs stage j on rank j mod k of its k ranks, as
interleaved chunks of a plan do, and has the embedding first and the loss last.

References
----------
Megatron Core's user guide, "Custom Pipeline Model Parallel Layout".
"""

from __future__ import annotations

import re
from itertools import groupby

from rlinit.errors import InvalidPlan
from rlinit.exporters.op_devices import op_stages
from rlinit.graph import Graph
from rlinit.importers.common.blocks import blocks_of
from rlinit.plan import Plan


def to_megatron_layout(plan: Plan, graph: Graph) -> str:
    """Return the layout that makes Megatron cut a transformer between its layers as a plan does.

    The layers are the model's one list of repeated blocks. What has parameters and reads none of them is the embedding,
    what reads them and is none of them goes with the loss; positions and masks, which Megatron makes itself, may be
    anywhere. The number of pipeline ranks is that of the plan's devices.

    Parameters
    ----------
    plan
        A 'pipeline' or 'memory' plan, also of training.
    graph
        What it was made for; its ops say their modules. Plans of ``graph.group("layer")`` keep layers whole.

    Raises
    ------
    InvalidPlan
        The plan is for another graph, has no stages in the order of the data, or chunks in free order; the model has
        not one list of layers; a layer is cut or out of order; the embedding is not on the first stage, or what follows
        the layers not on the last.
    """
    stages = op_stages(plan, graph)
    if not plan.contiguous or plan.chunk_order != "interleaved":
        kind = "any ops on any device" if not plan.contiguous else "chunks in free order"
        raise InvalidPlan(f"the plan has {kind}; Megatron runs stage j on rank j mod k, in the order of the data")
    layer_of = _layers(graph)
    depth = len({layer for layer in layer_of if layer is not None})
    held: list[int | None] = [None] * depth
    after = [False] * graph.num_ops  # ops that layers lead to
    last = plan.num_stages - 1
    for v in graph.order.tolist():
        reads = graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]].tolist()
        after[v] = any(after[u] or layer_of[u] is not None for u in reads)
        op, stage, layer = graph.names[v], stages[graph.names[v]], layer_of[v]
        if layer is not None:
            if held[layer] not in (None, stage):
                raise InvalidPlan(
                    f"the plan cuts inside layer {layer}, of which op {op!r} is on stage {stage} and others on "
                    f"{held[layer]}; a Megatron layout has whole layers (plan graph.group('layer'))"
                )
            held[layer] = stage
        elif not after[v] and graph.param_bytes[v] > 0 and stage != 0:
            raise InvalidPlan(f"op {op!r} of the embedding is on stage {stage}; Megatron has the embedding on stage 0")
    follows = _followed(graph, layer_of)
    for v in range(graph.num_ops):
        op, stage = graph.names[v], stages[graph.names[v]]
        if after[v] and layer_of[v] is None and (graph.param_bytes[v] > 0 or not follows[v]):
            if follows[v]:
                raise InvalidPlan(f"op {op!r} has parameters between layers; a Megatron layout has layers alone")
            if stage != last:
                raise InvalidPlan(
                    f"op {op!r} comes after the layers and is on stage {stage}; Megatron has what does on the last "
                    f"stage, {last}"
                )
    if held != sorted(held, key=lambda stage: stage or 0):
        at = next(i for i in range(1, depth) if (held[i] or 0) < (held[i - 1] or 0))
        raise InvalidPlan(f"layer {at} is on stage {held[at]}, before layer {at - 1} on stage {held[at - 1]}")
    rows = ["t" * held.count(j) for j in range(plan.num_stages)]
    return written_layout(["E" * (j == 0) + row + "L" * (j == last) for j, row in enumerate(rows)])


def _layers(graph: Graph) -> list[int | None]:
    """Return the layer that each op belongs to, in the order of their numbers; None for the others."""
    blocks = blocks_of(graph, "layer")
    lists: dict[str, dict[int, str]] = {}
    for name in dict.fromkeys(filter(None, blocks)):
        numbered = re.fullmatch(r"(.*[._]|)(\d+)", name)
        if numbered:
            lists.setdefault(numbered[1], {})[int(numbered[2])] = name
    lists = {path: members for path, members in lists.items() if len(members) > 1}
    if len(lists) != 1:
        names = ", ".join(repr(path.rstrip("._")) for path in sorted(lists)) or "none"
        raise InvalidPlan(f"a Megatron layout has one list of layers; {graph.name!r} has {names}")
    (members,) = lists.values()
    number = {members[at]: i for i, at in enumerate(sorted(members))}
    return [None if name is None else number.get(name) for name in blocks]


def _followed(graph: Graph, layer_of: list[int | None]) -> list[bool]:
    """Return whether each op leads to a layer."""
    follows = [False] * graph.num_ops
    for v in reversed(graph.order.tolist()):
        reads = graph.succ[graph.succ_indptr[v] : graph.succ_indptr[v + 1]].tolist()
        follows[v] = any(follows[w] or layer_of[w] is not None for w in reads)
    return follows


def written_layout(rows: list[str]) -> str:
    """Return stages as a layout, equal neighbours and layers as repeats where that is shorter.

    Parameters
    ----------
    rows
        What each stage holds, a letter each.
    """
    short = [re.sub("t{4,}", lambda run: f"t*{len(run[0])}", row) for row in rows]
    parts = []
    for row, run in groupby(short[:-1]):
        count = len(list(run))
        parts.append(f"({row}|)*{count}" if row and count > 2 else f"{row}|" * count)
    return "".join(parts) + short[-1]
