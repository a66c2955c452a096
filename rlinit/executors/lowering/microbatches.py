"""Splitting the values of a program into micro-batches: which part of a value belongs to which input.

The shape of a value tells the dimension that grows with the batch. Where that dimension also holds others (tokens of
all inputs in one list, say), the inputs are taken to lie one after the other. Shapes alone do not prove that a program
treats its inputs independently, so `probe` compares a plan with the whole program on random inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from rlinit.errors import ExecutionFailure, InvalidPlan
from rlinit.executors.lowering.torch_program import TorchProgram, on_device, scalar_value

_MOST_ERROR = 0.01
"""Relative error by which batches of other sizes may differ through rounding in deep networks; a wrong part is off by
as much as the values themselves."""


def batch_rows(program: TorchProgram, node: Node) -> tuple[int, int] | None:
    """Return the dimension of a node's value along which inputs lie one after the other, and the rows of each input.

    None where the value does not grow with the batch.

    Parameters
    ----------
    program
        The program, whose `batch_symbol` stands for the inputs at once.
    node
        A node of it.

    Raises
    ------
    InvalidPlan
        Several dimensions grow with the batch, or not in proportion, or the value is no single tensor, so that it
        cannot be told which part belongs to which input.
    """
    if not is_batched(program, node):
        return None
    value = program.call(node, program.batch).value
    if not isinstance(value, torch.Tensor):
        raise InvalidPlan(f"the value of node {node.name!r} is a {type(value).__name__}; only tensors can be split")
    few, many = _two_sizes(program)
    sizes = zip(*(_shapes(program, node, rows)[0] for rows in (few, many)), strict=True)
    grown = [(axis, small, large) for axis, (small, large) in enumerate(sizes) if small != large]
    axis, small, large = grown[0]
    if len(grown) > 1 or small % few or large * few != small * many:
        raise InvalidPlan(
            f"the value of node {node.name!r} has shape {tuple(value.shape)}: it cannot be told which part belongs to "
            "which input; keep it and its consumers on one device, in the same batches"
        )
    return axis, int(small // few)


def is_batched(program: TorchProgram, node: Node) -> bool:
    """Return whether the shape of a node's value, or of a part of it, grows with the batch.

    Parameters
    ----------
    program
        The program, whose `batch_symbol` stands for the inputs at once.
    node
        A node of it.
    """
    if not program.calls and program.batch_symbol is None:
        return False
    few, many = _two_sizes(program)
    return _shapes(program, node, few) != _shapes(program, node, many)


def refuse_mixing(program: TorchProgram, node: Node) -> None:
    """Raise where a node makes one value of all inputs of a batch, which is another one for a part of the batch.

    Parameters
    ----------
    program
        The program, whose `batch_symbol` stands for the inputs at once.
    node
        A node of it.

    Raises
    ------
    InvalidPlan
        It does; the message names it. Ops that keep the batch dimension but mix along it cannot be told so.
    """
    if not is_batched(program, node) and scalar_value(program, node, 1) is None:
        for other in node.all_input_nodes:
            if is_batched(program, other):
                raise InvalidPlan(
                    f"node {node.name!r} makes one value of all inputs of a batch (from {other.name!r}); "
                    "it cannot run on parts of a batch"
                )


def _two_sizes(program: TorchProgram) -> tuple[int, int]:
    """Return two batch sizes at which shapes are known."""
    return (min(program.calls), program.batch) if program.calls else (program.batch, 2 * program.batch)


def _shapes(program: TorchProgram, node: Node, rows: int) -> list[list[Any]]:
    """Return the shape of each tensor of a node's value at a batch size."""
    value = program.call(node, rows).value
    known = {**program.sizes, program.batch_symbol: rows}
    parts = value if isinstance(value, (tuple, list)) else [value]
    return [
        [size.node.expr.subs(known) if isinstance(size, torch.SymInt) else size for size in part.shape]
        for part in parts
        if isinstance(part, torch.Tensor)
    ]


def probe(
    program: TorchProgram,
    run: Callable[[Sequence[Any]], Sequence[Any]],
    inputs: Sequence[Any],
    nodes: Sequence[Node],
    batch: int,
) -> None:
    """Check on random inputs that a plan which takes values apart gives what the whole program gives.

    Parameters
    ----------
    program
        Exported with a variable batch size.
    run
        Runs the plan: flat inputs -> flat outputs.
    inputs
        Flat inputs; random numbers like theirs are used, and their integers in another order.
    nodes
        Nodes whose values the plan takes apart or puts together, for the message.
    batch
        The number of inputs.

    Raises
    ------
    InvalidPlan
        The outputs differ by more than rounding: some op mixes the inputs of a batch, or lists them in another order.
    """
    generator = torch.Generator().manual_seed(0)
    alike = [_like(value, generator) if isinstance(value, torch.Tensor) else value for value in inputs]
    expected = _evaluate(program, alike, batch)
    names = ", ".join(node.name for node in nodes[:5]) + (", ..." if len(nodes) > 5 else "")
    what = (
        "the plan runs parts of a batch on their own, but the model mixes the inputs of a batch there, or lists them "
        f"in another order; {f'keep the values of {names} whole' if nodes else 'run the batch whole'}"
    )
    try:
        outputs = run(alike)
    except ExecutionFailure as problem:
        raise InvalidPlan(f"{what} ({problem})") from problem
    for value, true in zip(outputs, expected, strict=True):
        if isinstance(value, torch.Tensor) and (value.shape != true.shape or not _agree(value, true)):
            raise InvalidPlan(what)


def run_in_parts(program: TorchProgram, inputs: Sequence[Any], batch: int, parts: int) -> list[Any]:
    """Return the flat outputs of a program that is run, whole, on equal parts of a batch, one after the other.

    Parameters
    ----------
    program
        The program.
    inputs
        Its flat inputs, parameters aside.
    batch
        Inputs at once, a multiple of `parts`.
    parts
        Number of equal parts, at least 1.
    """
    size = batch // parts
    runs = []
    for at in range(parts):
        part = [
            value.narrow(0, at * size, size) if is_batched(program, node) else value
            for node, value in zip(program.inputs, inputs, strict=True)
        ]
        runs.append(_evaluate(program, part, size))
    return [
        torch.cat(values) if isinstance(values[0], torch.Tensor) else values[0] for values in zip(*runs, strict=True)
    ]


def _like(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return random numbers of the mean and spread of a tensor, or its integers in a random order."""
    value = value.cpu()
    if value.is_floating_point() and value.numel():
        spread, mean = (value.std(correction=0).item() or 1.0), value.mean().item()
        return torch.randn(value.shape, generator=generator, dtype=value.dtype) * spread + mean
    return value.flatten()[torch.randperm(value.numel(), generator=generator)].view(value.shape)


def _agree(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.is_floating_point() and not one.is_complex():
        # Choices that hang on rounding may differ here and there.
        return bool((one != other).double().mean() <= _MOST_ERROR) if one.numel() else True
    finite = torch.isfinite(other)
    difference = torch.where(finite, one - other, 0).double().norm()
    same = torch.equal(finite, torch.isfinite(one))
    return same and bool(difference <= _MOST_ERROR * torch.where(finite, other, 0).double().norm() + 1e-30)


def _evaluate(program: TorchProgram, inputs: Sequence[Any], batch: int) -> list[Any]:
    """Run a program on the CPU, as it was exported for the batch size; return the flat outputs."""
    program = program.exports.get(batch, program)
    wanted = {output for output in program.outputs if hasattr(output, "all_input_nodes")}
    known: dict[Node, Any] = dict(zip(program.inputs, inputs, strict=True)) | dict(program.constants)
    last = {other: node for node in program.nodes for other in node.all_input_nodes}
    device = torch.device("cpu")

    def value(node: Node) -> Any:
        number = None if node in known else scalar_value(program, node, batch)
        return known[node] if number is None else number

    with torch.no_grad():
        for node in program.nodes:
            if scalar_value(program, node, batch) is not None:
                continue
            args, kwargs = map_arg(node.args, value), map_arg(node.kwargs, value)
            known[node] = node.target(*on_device(args, device), **on_device(kwargs, device))  # type: ignore[operator]
            for other in node.all_input_nodes:
                if last[other] is node and other not in wanted:
                    known.pop(other, None)
    return [value(output) if output in wanted else output for output in program.outputs]
