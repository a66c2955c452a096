"""Coarsen a graph by fusing ops, and map what was found on the coarse graph back.

=====================  ==========================================================================================
connection u -> w      fused?
=====================  ==========================================================================================
direct                 u feeds only w, w reads only u: yes
multi-input            u feeds only w, w reads others too: yes, with one of the producers that fuse with it
multi-output           u feeds others besides w: never, the group would have two output tensors
=====================  ==========================================================================================

Every op of a group but the last feeds ops of its group alone. So data leave a group at its last op, which all others
lead to, and a cycle of groups would be a cycle of ops: the coarse graph is acyclic whatever the rules say.

A coarse problem is the original one with its groups kept together. What is found on it is feasible on the original;
a lower bound proven on it holds for the coarse problem ONLY.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from rlinit.arrays import IntArray
from rlinit.coarsening.merging import contracted, group_sums
from rlinit.coarsening.paths import Limits, groups_of, join_chains, rule_paths
from rlinit.coarsening.rules import FusionRules
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.placements.problem import Placement, PlacementProblem


@dataclass(frozen=True, slots=True, eq=False)
class Coarsened:
    """A coarse graph and the way back to the ops it stands for.

    Parameters
    ----------
    graph
        The coarse graph; a group has the name of its last op.
    original
        The graph it was made from.
    group_of_op
        (n,) op of `graph` each op of `original` became.
    members
        For each op of `graph`, the ops it stands for in the order they run, a topological one; only the last feeds
        other groups.
    """

    graph: Graph
    original: Graph
    group_of_op: IntArray
    members: tuple[tuple[int, ...], ...]


def coarsen(
    graph: Graph, rules: FusionRules | None = None, *, chains: bool = False, max_bytes: float = np.inf
) -> Coarsened:
    """Fuse the ops that a backend fuses (GCOF), into as few groups as the rules allow.

    Ops of different colocation groups do not fuse, nor ops of which neither may run wherever the other may, nor ops
    whose times are given for different devices or batch sizes. So every group may run where some of its members had
    to (`max_bytes` sees to the memory), and its times are sums.

    Parameters
    ----------
    graph
        Any graph.
    rules
        What to fuse; None: the rules this package comes with.
    chains
        Also join every group with the next one where that reads nothing else and nothing else reads the first,
        whatever their kinds. This is for graphs of unknown kinds: it keeps every group on one device, though no kernel
        may be shared.
    max_bytes
        What the ops of a group may hold together (parameters, inputs and outputs), such as a part of the smallest
        memory: groups too large for any device would leave nothing feasible.

    Returns
    -------
    Coarsened
        Param bytes (those known), flops and times are the sums of the members' (NaN where one is missing), out bytes
        and name those of the last member, kinds are joined by ``+``, and exclusions are united. `flops` without times
        are priced as one op: by the roofline model that is less than the members' sum, as for a fused kernel;
        `contract_problem` keeps the sum.

    Raises
    ------
    InvalidGraph
        An op has several output tensors.

    Notes
    -----
    Time and memory are linear in ops and edges, times the length of the longest rule.

    References
    ----------
    Moirai, Section III-B, Algorithm 1 (GCOF).

    Examples
    --------
    >>> ops = [("a", {"op": "conv2d", "time_s": 2.0}), ("b", {"op": "relu", "time_s": 1.0})]
    >>> fused = coarsen(Graph.build(ops, [("a", "b")])).graph
    >>> fused.names, fused.kinds, fused.times["*", 1].tolist()
    (('b',), ('conv2d+relu',), [3.0])
    """
    graph.require_main_outputs("coarsening")
    limits = Limits(graph, max_bytes)
    paths = rule_paths(graph, FusionRules.default() if rules is None else rules, limits)
    if chains:
        paths = join_chains(graph, paths, limits)
    paths.sort(key=lambda path: path[-1])
    return Coarsened(contracted(graph, paths), graph, groups_of(graph.num_ops, paths), tuple(map(tuple, paths)))


# -- the way back --------------------------------------------------------------------------------------------------


def contract_problem(coarsened: Coarsened, problem: PlacementProblem) -> PlacementProblem:
    """Return the placement problem with every group kept on one device, shard by shard, and run back to back.

    Unlike lowering the coarse graph, this keeps what the original problem says: op times add exactly, and a device
    holds all that the members hold. So whatever is feasible here, `expand_placement` makes feasible there.

    Parameters
    ----------
    coarsened
        The groups.
    problem
        The problem of the original graph: its op v is op v of `coarsened.original`.

    Raises
    ------
    InvalidPlan
        The problem has another number of ops than the original graph.
    """
    _check_ops(coarsened, problem)
    group_of_op, count = coarsened.group_of_op, len(coarsened.members)
    last = np.array([path[-1] for path in coarsened.members], np.int64)
    time_s = np.zeros((count, *problem.time_s.shape[1:]))
    np.add.at(time_s, group_of_op, problem.time_s)
    return dataclasses.replace(
        problem,
        time_s=time_s,
        tensor_bytes=problem.tensor_bytes[last],
        weight_bytes=group_sums(problem.weight_bytes, group_of_op, count),
        shard_bytes=group_sums(problem.shard_bytes, group_of_op, count),
        edges=coarsened.graph.edges,
        order=coarsened.graph.order,
        group=_contracted_groups(problem.group, group_of_op, count),
    )


def _contracted_groups(group: IntArray, group_of_op: IntArray, count: int) -> IntArray:
    """Return (count,) the smallest coarse op that has to share the device of each."""
    links = coo_array((np.ones(len(group)), (group_of_op, group_of_op[group])), shape=(count, count))
    num_parts, part = connected_components(links, directed=False)
    smallest = np.full(num_parts, count, np.int64)
    np.minimum.at(smallest, part, np.arange(count))
    return smallest[part]


def _check_ops(coarsened: Coarsened, problem: PlacementProblem) -> None:
    if problem.num_ops != coarsened.original.num_ops:
        raise InvalidPlan(
            f"the problem has {problem.num_ops} ops; expected the {coarsened.original.num_ops} of the original graph"
        )


def expand_placement(coarsened: Coarsened, problem: PlacementProblem, placement: Placement) -> Placement:
    """Return the placement of the original ops: each on its group's devices, a group's batches one after the other.

    With ``parallel`` transfers its makespan is at most that of the coarse problem (`contract_problem`). With the
    others, a first-come-first-served link may serve in another order once a batch has become able to start earlier.

    Parameters
    ----------
    coarsened
        The groups.
    problem
        The problem of the original graph.
    placement
        A placement of the coarse problem.

    Raises
    ------
    InvalidPlan
        The problem has another number of ops than the original graph.
    """
    _check_ops(coarsened, problem)
    d = problem.num_devices
    group, device = np.divmod(placement.sequence, d)
    batches = [v * d + i for g, i in zip(group.tolist(), device.tolist(), strict=True) for v in coarsened.members[g]]
    return Placement(placement.device[coarsened.group_of_op], np.array(batches, np.int64))
