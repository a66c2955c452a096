"""What a device of a tensor group does of an op depends on its pieces alone: on all else, noise changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from rlinit.graph import Graph
from rlinit.stages.groups.layouts import Layout, Pieces, layouts_of
from tests.late import late_imports

with late_imports():
    import torch

    from tests.stages.groups import models

CASES = ("llama", "gpt2", "bert", "mixtral", "encoder", "convolutions", "mixers", "einsums")


def piece(value: Any, pieces: Pieces, rank: int, degree: int) -> Any:
    """Return which places of a tensor's dimension a device has, as an index."""
    size, at, places = value.shape[pieces.dim], 0, list[int]()
    for run in pieces.runs.of(size):
        assert run % degree == 0
        places += range(at + rank * run // degree, at + (rank + 1) * run // degree)
        at += run
    assert at == size
    return torch.tensor(places, dtype=torch.long)


def changed(value: Any, pieces: Pieces | None, rank: int, degree: int, *, zero: bool) -> Any:
    """Return a tensor with zeros, or noise of its kind, in all places but a device's."""
    if pieces is None:
        return value
    kept = piece(value, pieces, rank, degree)
    noise = torch.zeros_like(value) if zero else value.flatten()[torch.randperm(value.numel())].reshape(value.shape)
    if not zero and value.is_floating_point():
        noise = noise + torch.randn(value.shape)
    return noise.index_copy(pieces.dim, kept, value.index_select(pieces.dim, kept))


def check_op(node: Any, reads: list[Pieces | None], layout: Layout, v: int, values: dict[Any, Any]) -> None:
    """Compare what each device makes of its pieces with its piece of what the op makes."""
    whole, lies = values[node], layout.pieces[v]
    parts = []
    for rank in [*range(layout.degree), *([-1] if layout.partial[v] else [])]:
        rest = iter(reads)

        def given(source: Any, rank: int = rank, rest: Any = rest) -> Any:
            value = values[source]
            if not isinstance(value, torch.Tensor):
                return value
            pieces = next(rest)
            if rank < 0 and pieces is not None:
                return torch.zeros_like(value)
            return changed(value, pieces, rank, layout.degree, zero=layout.partial[v])

        made = node.target(*torch.fx.map_arg(node.args, given), **torch.fx.map_arg(node.kwargs, given))
        if layout.partial[v]:
            parts.append(made)
            continue
        assert lies is not None
        for one, other in zip(*(x if isinstance(x, (tuple, list)) else [x] for x in (made, whole)), strict=True):
            kept = piece(one, lies, rank, layout.degree)
            torch.testing.assert_close(one.index_select(lies.dim, kept), other.index_select(lies.dim, kept))
    if layout.partial[v]:
        *ranks, nothing = parts
        torch.testing.assert_close(nothing + sum(one - nothing for one in ranks), whole, rtol=1e-4, atol=1e-4)


def traced(name: str) -> tuple[Any, Graph, dict[Any, Any]]:
    """Return a model's program, its graph, and what each call of it makes."""
    from rlinit.importers.torch.export import export_program, from_program
    from rlinit.importers.torch.functionalise import without_writes

    torch.manual_seed(0)
    module, args = models.case(name)
    program = without_writes(export_program(module, args))
    given, values = iter(args), dict[Any, Any]()
    kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            target = kinds[node.name].target
            held = {**program.constants, **program.state_dict}
            values[node] = next(given) if target is None else held[target]
        elif node.op == "call_function":
            values[node] = node.target(
                *torch.fx.map_arg(node.args, values.__getitem__), **torch.fx.map_arg(node.kwargs, values.__getitem__)
            )
    return program, from_program(program), values


@pytest.mark.parametrize("name", CASES)
def test_pieces_need_no_more_than_pieces(name: str) -> None:
    program, graph, values = traced(name)
    nodes = {node.name: node for node in program.graph.nodes}
    with torch.no_grad():
        for layout in (layout for degree in (2, 4, 8) for layout in layouts_of(graph, degree)):
            split = [v for v in range(graph.num_ops) if layout.work[v] < 1.0]
            assert split
            for v in split:
                check_op(nodes[graph.names[v]], layout.read[v], layout, v, values)


@pytest.mark.parametrize("degree", [2, 4])
def test_sequence_parallelism_sends_as_much(degree: int) -> None:
    """An all-reduce is a scatter and a gather, forward and backward; nothing of a layer is done by all devices."""
    graph = traced("llama")[1]
    plain, sequence = layouts_of(graph, degree)
    for back in ("", "_back"):
        reduced, gathered = (
            [one.exchanged_bytes[what + back].sum() for one in (plain, sequence)]
            for what in ("all_reduce", "all_gather")
        )
        assert reduced[1] == 0.0 < reduced[0]
        assert 2.0 * reduced[0] + gathered[0] == gathered[1]
    assert (sequence.work == 1.0).sum() <= 1 < (plain.work == 1.0).sum()
