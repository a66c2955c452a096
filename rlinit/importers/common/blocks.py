"""Which ops of a graph belong together: the repeated blocks of a model, its modules, and what a user wants whole."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from rlinit.errors import InvalidGraph
from rlinit.graph import Graph

Blocks = Literal["op", "layer", "module"]
"""How much stays together: nothing, each repeated block (or else module), or each innermost module."""

_NUMBERED = re.compile(r"(?:(?P<base>.*_))?(?P<number>\d+[a-z]?)")
"""A part of a path that numbers one of several: ``3`` of a list of modules, ``encoder_layer_3``, ``block_2a``."""

_BLOCK_NAME = re.compile(r"(?P<base>(?:\w+?_)?(?:block|layer|unit|cell))_?(?P<number>\d+[a-z]?)_\w")
"""How the name of a layer in a model without modules says its block: ``conv2_block1_1_conv``, ``block_3_expand``."""


def module_path(graph: Graph, op: int) -> str:
    """Return the path of an op's innermost module; the scope in its node's name where it has no module.

    Parameters
    ----------
    graph
        As an importer gives it: torch's have ``module``, ONNX's ``scopes`` or nodes named by them, Keras's are called
        ``model/layer``, where a layer may say its block: ``conv2_block1_1_conv`` is in ``conv2_block_1``.
    op
        Index of the op.
    """
    row = graph.extras.get(op, {})
    given: Any = row.get("module")
    if given is not None:
        return str(given[-1] if isinstance(given, (list, tuple)) and given else given or "")
    scopes = row.get("scopes")
    if scopes:
        return str(scopes[-1][0])
    scope, _, name = str(row.get("node") or graph.names[op]).strip("/").replace("/", ".").rpartition(".")
    block = _BLOCK_NAME.match(name)
    return ".".join(part for part in (scope, f"{block['base']}_{block['number']}" if block else "") if part)


def blocks_of(graph: Graph, granularity: Blocks = "layer", keep: Sequence[str] = ()) -> list[str | None]:
    """Return the block that each op belongs to, None for ops that stand alone.

    ``"layer"``: the outermost part of a module's path that numbers it among others of its kind, such as
    ``model.layers.3``; ops beside those belong to their innermost module. ``"module"``: to their innermost module. What
    a module with submodules computes itself, between them, stands alone, and so do inputs.

    Parameters
    ----------
    graph
        A graph whose ops say where they come from; see `module_path`.
    granularity
        See above.
    keep
        Patterns (``fnmatch``) of module paths or, for graphs of torch models, classes: a module that fits is one block,
        the outermost one where several do.

    Raises
    ------
    InvalidGraph
        An unknown granularity, or a pattern that fits nothing.
    """
    if granularity not in ("op", "layer", "module"):
        raise InvalidGraph(f"granularity is {granularity!r}; expected 'op', 'layer' or 'module'")
    paths = ["" if graph.kinds[v] == "input" else module_path(graph, v) for v in range(graph.num_ops)]
    numbered = _numbered(set(paths)) if granularity == "layer" else frozenset()
    containers = {prefix for path in set(paths) for prefix in _prefixes(path)[:-1]}
    fitting: set[str] = set()
    blocks: list[str | None] = []
    for v, path in enumerate(paths):
        kept = _kept(path, graph.extras.get(v, {}).get("scopes", ()), keep, fitting) if path else None
        if kept is None and granularity != "op":
            own = "" if path in containers else path
            kept = next((prefix for prefix in _prefixes(path) if prefix in numbered), own)
        blocks.append(kept or None)
    unused = [pattern for pattern in keep if pattern not in fitting]
    if unused:
        raise InvalidGraph(f"keep has {unused[0]!r}, which fits no module's path or class")
    return blocks


def grouped(graph: Graph, granularity: Blocks = "layer", keep: Sequence[str] = ()) -> Graph:
    """Return the graph with the ops of each block colocated; see `blocks_of`. Groups there already are joined in.

    Where layers are found, what a module computes between them goes with the op before it in the program and with the
    modules it reads, so that stages are pieces of the program, and a device map names modules alone.

    Parameters
    ----------
    graph, granularity, keep
        As for `blocks_of`.

    Raises
    ------
    InvalidGraph
        As for `blocks_of`, or no op says where it comes from.
    """
    import networkx as nx

    blocks = blocks_of(graph, granularity, keep)
    if granularity != "op" and not any(blocks):
        raise InvalidGraph(
            f"granularity is {granularity!r}, and no op of {graph.name!r} says which module or block it belongs to, in "
            "an attribute 'module' or its name (model.layers.3/op, block_3_conv)"
        )
    first: dict[Hashable, int] = {}
    pairs = _loose_ends(graph, blocks) if granularity == "layer" else []
    for v in range(graph.num_ops):
        keys: list[Hashable] = [("group", int(graph.colocation[v]))] if graph.colocation[v] >= 0 else []
        keys += [("block", blocks[v])] if blocks[v] is not None else []
        pairs += [(first.setdefault(key, v), v) for key in keys]
    joined: nx.Graph[int] = nx.Graph(pairs)
    colocation = np.full(graph.num_ops, -1, np.int64)
    labels: list[Hashable] = []
    for ops in sorted(map(sorted, nx.connected_components(joined))):
        if len(ops) > 1:
            colocation[ops] = len(labels)
            labels.append(_label(graph, ops, blocks, labels))
    return dataclasses.replace(graph, colocation=colocation, groups=tuple(labels))


def _loose_ends(graph: Graph, blocks: Sequence[str | None]) -> list[tuple[int, int]]:
    """Return pairs of ops to join, so that ops between layers go with what is before them and what they read."""
    ops = [v for v in range(graph.num_ops) if graph.kinds[v] != "input"]
    numbered = {block for block in blocks if block and _NUMBERED.fullmatch(block.rpartition(".")[2])}
    if not numbered:
        return []
    pairs = []
    for before, v in zip([None, *ops], ops, strict=False):
        if blocks[v] is not None:
            continue
        later = next((u for u in ops if u > v), v)
        pairs.append((later if before is None else before, v))
        reads = graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]].tolist()
        pairs += [(u, v) for u in reads if graph.kinds[u] != "input" and blocks[u] not in numbered]
    return pairs


def _label(graph: Graph, ops: Sequence[int], blocks: Sequence[str | None], taken: Collection[Hashable]) -> str:
    """Return a name for a group: its first block's or its first op's."""
    wanted = next((block for v in ops if (block := blocks[v]) is not None), graph.names[ops[0]])
    return wanted if wanted not in taken else f"{wanted} ({graph.names[ops[0]]})"


def _prefixes(path: str) -> list[str]:
    """Return the paths of the modules around a module and its own, the outermost first."""
    parts = path.split(".") if path else []
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def _numbered(paths: Iterable[str]) -> frozenset[str]:
    """Return the modules that are numbered among others below the same parent."""
    siblings: dict[tuple[str, str], set[str]] = {}
    for path in paths:
        for prefix in _prefixes(path):
            parent, _, name = prefix.rpartition(".")
            found = _NUMBERED.fullmatch(name)
            if found:
                siblings.setdefault((parent, found["base"] or ""), set()).add(prefix)
    return frozenset(prefix for members in siblings.values() if len(members) > 1 for prefix in members)


def _kept(path: str, scopes: Iterable[Sequence[str]], keep: Sequence[str], fitting: set[str]) -> str | None:
    """Return the outermost module around an op that a pattern fits, and note which patterns did."""
    around = {prefix: "" for prefix in _prefixes(path)} | {str(where): str(name) for where, name in scopes if where}
    for where, name in sorted(around.items(), key=lambda item: len(item[0])):
        fits = [one for one in keep if fnmatch.fnmatchcase(where, one) or (name and fnmatch.fnmatchcase(name, one))]
        if fits:
            fitting.update(fits)
            return where
    return None
