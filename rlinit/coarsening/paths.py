"""Cut a graph into paths of ops that fuse: by rules, and by chains. The search behind `coarsen`."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import IntArray, inverse_of
from rlinit.coarsening.rules import FusionRules, RuleTrie
from rlinit.costs.roofline import moved_bytes
from rlinit.graph import Graph


class Traits(NamedTuple):
    """What decides whether ops may share a group; of an op, or of a group. Devices and times are bit masks."""

    colocation: int
    forbidden: int
    given: int
    held_bytes: float


class Limits:
    """Joins traits so that a coarse graph keeps what is possible on the original one.

    United exclusions could leave a group no device. So the exclusions of one side have to contain those of the other,
    where an op of a colocation group is excluded from wherever any op of that group is. Times add only where they are
    given for the same devices and batch sizes: what is missing would come from elsewhere, which no sum can say. And a
    group may hold so many bytes of parameters, inputs and outputs, which are counted op by op.
    """

    def __init__(self, graph: Graph, max_bytes: float = np.inf) -> None:
        self._max_bytes = max_bytes
        self._keys = sorted(graph.times)
        devices = sorted(graph.forbidden)
        given = _row_masks([~np.isnan(graph.times[key]) for key in self._keys], graph.num_ops)
        forbidden = _row_masks([graph.forbidden[device] for device in devices], graph.num_ops)
        colocation = graph.colocation.tolist()
        of_group: dict[int, int] = {}
        for label, mask in zip(colocation, forbidden, strict=True):
            of_group[label] = of_group.get(label, 0) | mask
        self.traits = [
            Traits(label, of_group[label] if label >= 0 else mask, times, held)
            for label, mask, times, held in zip(colocation, forbidden, given, moved_bytes(graph).tolist(), strict=True)
        ]
        self._times_of_device = [
            sum(1 << i for i, (key, _) in enumerate(self._keys) if key == device) for device in devices
        ]
        self._idle: dict[int, int] = {0: 0}

    def _idle_times(self, forbidden: int) -> int:
        """Return the times that belong to forbidden devices: nobody reads them."""
        if forbidden not in self._idle:
            masks = [mask for i, mask in enumerate(self._times_of_device) if forbidden >> i & 1]
            self._idle[forbidden] = sum(masks)  # Each time belongs to one device key: the masks are disjoint.
        return self._idle[forbidden]

    def join(self, a: Traits, b: Traits) -> Traits | None:
        """Return the traits of a group of both, or None where they may not share one.

        Parameters
        ----------
        a, b
            What each of two groups of ops holds and may not do.
        """
        held_bytes = a.held_bytes + b.held_bytes
        if held_bytes > self._max_bytes:
            return None
        if a.colocation >= 0 and b.colocation >= 0 and a.colocation != b.colocation:
            return None
        forbidden = a.forbidden | b.forbidden
        if a.colocation != b.colocation:
            limit = a.forbidden if a.colocation >= 0 else b.forbidden
            if forbidden != limit:
                return None
        elif forbidden not in (a.forbidden, b.forbidden):
            return None
        if (a.given ^ b.given) & ~self._idle_times(forbidden):
            return None
        return Traits(max(a.colocation, b.colocation), forbidden, a.given & b.given, held_bytes)


def _row_masks(columns: list[NDArray[np.bool_]], num_rows: int) -> list[int]:
    """Return each row of boolean columns as the bits of an integer, column 0 lowest."""
    if not columns:
        return [0] * num_rows
    packed = np.packbits(np.stack(columns, axis=1), axis=1, bitorder="little")
    known: dict[bytes, int] = {}
    return [known.setdefault(row, int.from_bytes(row, "little")) for row in map(bytes, packed)]


class _Match(NamedTuple):
    """A part of a rule that ends at an op: the state of `bind` in the paper's algorithm."""

    fused: int
    kept_bytes: float
    node: int
    traits: Traits
    producer: int
    via: int


def _only_consumers(num_nodes: int, edges: IntArray) -> list[int]:
    """Return (n,) the consumer of each node that has exactly one, -1 for the others."""
    only = np.full(num_nodes, -1, np.int64)
    only[edges[:, 0]] = edges[:, 1]
    only[np.bincount(edges[:, 0], minlength=num_nodes) != 1] = -1
    listed: list[int] = only.tolist()
    return listed


def rule_paths(graph: Graph, rules: FusionRules, limits: Limits) -> list[list[int]]:
    """Cut the graph into paths that spell rules, and single ops: as few parts as possible.

    The paper's search binds ops that match a part of a rule, fuses them when they match all of it, and releases what
    stays bound; which of several producers an op goes with depends on where the search came from. Here every
    partial match is kept until the choice is made, from the outputs back: ops that feed one consumer only form a
    forest, and on a forest the fewest parts come from dynamic programming. Ties go to the larger tensors that no
    longer leave a group, then to the op that comes first.

    Matches at an op start at most one rule's length upstream, so there are at most n times that many, and the time is
    linear in the ops and edges.

    Parameters
    ----------
    graph
        The graph, whose `kinds` the rules name.
    rules
        Sequences of kinds that make one fused op.
    limits
        What ops may share a group: bytes held, colocation, forbidden devices, given times.
    """
    n = graph.num_ops
    trie = RuleTrie(rules)
    code = trie.codes(graph.kinds)
    only = _only_consumers(n, graph.edges)
    out_bytes = np.nan_to_num(graph.out_bytes).tolist()
    feeders: list[list[int]] = [[] for _ in range(n)]
    for u in range(n):
        if only[u] >= 0 and code[u] >= 0 and code[only[u]] >= 0:
            feeders[only[u]].append(u)
    # What a match has fused is counted beyond the best of every feeder by itself; `best` is the best complete match.
    matches: list[list[_Match]] = [[] for _ in range(n)]
    best: list[int] = [-1] * n
    for w in graph.order.tolist():
        if code[w] < 0:
            continue
        here = matches[w]
        if code[w] in trie.step[0]:
            here.append(_Match(0, 0.0, trie.step[0][code[w]], limits.traits[w], -1, -1))
        for u in feeders[w]:
            chosen = matches[u][best[u]] if best[u] >= 0 else None
            lost, lost_bytes = (chosen.fused, chosen.kept_bytes) if chosen else (0, 0.0)
            for index, match in enumerate(matches[u]):
                node = trie.step[match.node].get(code[w])
                traits = None if node is None else limits.join(match.traits, limits.traits[w])
                if node is not None and traits is not None:
                    kept = match.kept_bytes - lost_bytes + out_bytes[u]
                    here.append(_Match(match.fused - lost + 1, kept, node, traits, u, index))
        gains = [(match.fused, match.kept_bytes, -i) for i, match in enumerate(here) if trie.ends[match.node]]
        if gains and max(gains)[:2] > (0, 0.0):
            best[w] = -max(gains)[2]
    return _walk_back(graph, matches, best)


def _walk_back(graph: Graph, matches: list[list[_Match]], best: list[int]) -> list[list[int]]:
    """Return the paths of the best matches, from the outputs to the inputs; each path in the order of the data."""
    taken = [False] * graph.num_ops
    paths = []
    for w in reversed(graph.order.tolist()):
        if taken[w]:
            continue
        path, v, index = [w], w, best[w]
        while index >= 0:
            taken[v] = True
            match = matches[v][index]
            v, index = match.producer, match.via
            if v >= 0:
                path.append(v)
        paths.append(path[::-1])
    return paths[::-1]


def join_chains(graph: Graph, paths: list[list[int]], limits: Limits) -> list[list[int]]:
    """Join groups u, w where w reads only u and u feeds only w, in one pass from the inputs down.

    Parameters
    ----------
    graph
        The graph.
    paths
        Groups of op indices that cover every op once.
    limits
        What ops may share a group; groups that may not stay apart.
    """
    group_of_op = groups_of(graph.num_ops, paths)
    edges = contracted_edges(graph.edges, group_of_op)
    only = _only_consumers(len(paths), edges)
    num_read = np.bincount(edges[:, 1], minlength=len(paths)).tolist()
    traits = []
    for path in paths:
        whole = limits.traits[path[0]]
        for v in path[1:]:
            joined = limits.join(whole, limits.traits[v])
            whole = joined if joined is not None else whole  # Fused ops join by construction.
        traits.append(whole)
    continued = [False] * len(paths)
    following = [-1] * len(paths)
    for group in _by_last_op(graph, paths):
        after = only[group]
        joined = limits.join(traits[group], traits[after]) if after >= 0 and num_read[after] == 1 else None
        if joined is not None:
            following[group], continued[after], traits[after] = after, True, joined
    chains = []
    for group, path in enumerate(paths):
        if not continued[group]:
            chain, after = list(path), following[group]
            while after >= 0:
                chain.extend(paths[after])
                after = following[after]
            chains.append(chain)
    return chains


def _by_last_op(graph: Graph, paths: list[list[int]]) -> list[int]:
    """Return the groups in topological order: by the position of their last ops."""
    position = inverse_of(graph.order)
    listed: list[int] = np.argsort(position[[path[-1] for path in paths]]).tolist()
    return listed


def groups_of(num_ops: int, paths: list[list[int]]) -> IntArray:
    """Return (n,) the path each op is on; the paths cover every op once.

    Parameters
    ----------
    num_ops
        n, the ops of the graph.
    paths
        Op indices of each group; each op in 0 .. n - 1 stands in exactly one.
    """
    group_of_op = np.empty(num_ops, np.int64)
    ops = np.fromiter(itertools.chain.from_iterable(paths), np.int64, num_ops)
    group_of_op[ops] = np.repeat(np.arange(len(paths)), [len(path) for path in paths])
    return group_of_op


def contracted_edges(edges: IntArray, group_of_op: IntArray) -> IntArray:
    """Return the distinct edges between groups, sorted.

    Parameters
    ----------
    edges
        (m, 2) producer and consumer of each edge, op indices.
    group_of_op
        (n,) the group of each op.
    """
    between = group_of_op[edges]
    between = between[between[:, 0] != between[:, 1]]
    return np.unique(between, axis=0) if len(between) else between
