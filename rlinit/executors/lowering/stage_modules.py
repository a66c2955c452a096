"""Modules of pipeline stages, cut from a program at any op; values for distant stages are relayed by those between.

Stage r takes a tuple of tensors from stage r - 1 and gives one to stage r + 1: all that was made before and is needed
after. The first stage takes the model's inputs, the last one gives the model's outputs.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import networkx as nx
import torch
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions
from torch.utils.checkpoint import checkpoint

from rlinit.errors import InvalidPlan
from rlinit.executors.lowering.microbatches import refuse_mixing
from rlinit.executors.lowering.torch_program import TorchProgram, scalar_value

Trainable = Literal["", "whole", "split"]
"""How a module trains: not at all, by one backward pass, or by one for its inputs and one for its parameters."""


@dataclass(frozen=True, slots=True, eq=False)
class StageModule:
    """One stage of a pipeline.

    Parameters
    ----------
    stage
        Its number in the plan.
    module
        Takes the `takes` as positional arguments and returns a tuple of the `gives`.
    takes, gives
        Names of the nodes whose values come in and go out; the last stage gives the model's tensor outputs. A stage
        that would take nothing takes one number that means nothing, since every stage waits for the one before.
    ops
        Ops it runs.
    parameters
        Name of a parameter of the module -> its name in the model, where the module trains.
    """

    stage: int
    module: GraphModule
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    ops: tuple[str, ...]
    parameters: Mapping[str, str] = field(default_factory=dict)


def stage_order(program: TorchProgram, op2stage: Mapping[str, int], k: int) -> list[int]:
    """Return the k stages such that each comes after those it reads from (ties: the smaller number first).

    Parameters
    ----------
    program
        The program, with the op of each node.
    op2stage
        Stage of each op by name, in 0 .. k - 1.
    k
        Number of stages.

    Raises
    ------
    InvalidPlan
        The stages read each other in a circle.
    """
    quotient: nx.DiGraph[int] = nx.DiGraph()
    quotient.add_nodes_from(range(k))
    for node in program.nodes:
        for other in node.all_input_nodes:
            ends = program.node2op.get(other, ""), program.node2op[node]
            if all(ends):
                i, j = op2stage[ends[0]], op2stage[ends[1]]
                if i != j:
                    quotient.add_edge(i, j)
    try:
        return list(nx.lexicographical_topological_sort(quotient))
    except nx.NetworkXUnfeasible:
        circle = sorted(stage for stage, _ in nx.find_cycle(quotient))
        raise InvalidPlan(f"stages {circle} of the plan read each other in a circle") from None


def stage_modules(
    program: TorchProgram,
    op2stage: Mapping[str, int],
    k: int,
    *,
    microbatch: int | None = None,
    batch: int = 1,
    devices: Sequence[torch.device] | None = None,
    trainable: Trainable = "",
    recomputed: Sequence[Set[str]] = (),
) -> list[StageModule]:
    """Cut a program into k modules, in the order in which they run.

    Parameters
    ----------
    program
        The program; exported with a variable batch size where `microbatch` is given.
    op2stage
        op -> stage from 0 to k - 1, whose quotient is acyclic.
    microbatch
        Inputs that one run of a stage gets; None: all of them.
    batch
        Number of all inputs, where it is variable in the program.
    devices
        Physical device of each place in the pipeline; the CPU if not given.
    trainable
        Parameters of the model get gradients, in one backward pass or in one split in two.
    recomputed
        Sets of ops of one stage whose values are made anew in the backward pass.

    Raises
    ------
    InvalidPlan
        Stages that read each other, a value that is no tensor between stages, or an op that mixes the inputs of a batch
        where `microbatch` is given.
    """
    cutter = _Cutter(program, stage_order(program, op2stage, k), op2stage, microbatch, batch, recomputed)
    return [cutter.cut(place, devices[place] if devices else None, trainable) for place in range(k)]


class _Cutter:
    def __init__(
        self,
        program: TorchProgram,
        order: list[int],
        op2stage: Mapping[str, int],
        microbatch: int | None,
        batch: int,
        recomputed: Sequence[Set[str]],
    ) -> None:
        self._program, self._order, self._rows = program, order, microbatch or batch
        self._recomputed = recomputed
        place = {stage: at for at, stage in enumerate(order)}
        self._op2place = {op: place[stage] for op, stage in op2stage.items()}
        self._nodes: list[list[Node]] = [[] for _ in order]
        for node in program.nodes:
            if program.node2op[node]:
                self._nodes[self._op2place[program.node2op[node]]].append(node)
            if microbatch is not None:
                refuse_mixing(program, node)
        last_need: dict[Node, int] = {}
        for at in range(len(order)):
            for node in self._nodes[at]:
                self._need(last_need, node.all_input_nodes, at)
        self._need(last_need, [output for output in program.outputs if self._is_node(output)], len(order) - 1)
        made = {node: self._made(node) for node in last_need}
        self._takes = [
            sorted((node for node, until in last_need.items() if made[node] < at <= until), key=lambda node: node.name)
            for at in range(len(order))
        ]

    def _is_node(self, value: Any) -> bool:
        return hasattr(value, "all_input_nodes")

    def _made(self, node: Node) -> int:
        """Return where a value first exists; the model's inputs exist at the first stage."""
        op = self._program.node2op.get(node, "")
        return self._op2place[op] if op else 0

    def _need(self, last_need: dict[Node, int], nodes: Sequence[Node], at: int) -> None:
        program = self._program
        for node in nodes:
            if node in program.constants or scalar_value(program, node, self._rows) is not None:
                continue
            if node in program.node2op and not program.node2op[node]:
                self._need(last_need, node.all_input_nodes, at)  # computed wherever it is needed
                continue
            last_need[node] = max(at, last_need.get(node, 0))

    def cut(self, at: int, device: torch.device | None, trainable: Trainable) -> StageModule:
        """Build the module at one place of the pipeline.

        Parameters
        ----------
        at
            The place.
        device
            Where its constants go.
        trainable
            Whether parameters get gradients, and how.
        """
        program, last = self._program, at == len(self._order) - 1
        graph: FxGraph = FxGraph()
        root: dict[str, Any] = {}
        known: dict[Node, Any] = {}
        takes = list(program.inputs) if at == 0 else self._takes[at]
        for node in takes:
            known[node] = graph.placeholder(node.name)
        if trainable and at:
            for node in takes:
                known[node] = graph.call_function(_with_contiguous_gradient, (known[node],))
        if at and not takes:
            graph.placeholder("nothing")
        writer = _Writer(program, graph, root, known, self._rows, device or torch.device("cpu"), bool(trainable))
        for node in self._nodes[at]:
            writer.value(node)
        gives = [output for output in program.outputs if self._is_node(output)] if last else self._takes[at + 1]
        results = [writer.value(node) for node in gives]
        if not last:
            # Only contiguous tensors can be sent; every view that the program takes of another works on them too.
            results = [graph.call_method("contiguous", (result,)) for result in results]
        if not results:
            results = [graph.call_function(torch.zeros, (1,))]
        if trainable == "split" and at:
            results = [graph.call_function(_joined, (result, *(known[node] for node in takes))) for result in results]
        graph.output(tuple(results))
        module = GraphModule(torch.nn.Module(), graph) if not root else GraphModule(root, graph)
        for block in self._recomputed:
            _recompute(module, {known[node].name for node in self._nodes[at] if program.node2op[node] in block})
        ops = tuple(dict.fromkeys(program.node2op[node] for node in self._nodes[at]))
        names = tuple(node.name for node in takes), tuple(node.name for node in gives)
        return StageModule(self._order[at], module, *names, ops, writer.parameters)


def _with_contiguous_gradient(value: torch.Tensor) -> torch.Tensor:
    """Return a value whose gradient is contiguous, since only such tensors can be sent."""
    if not value.requires_grad:
        return value
    passed: Any = value.view_as(value)
    passed.register_hook(lambda gradient: None if gradient is None else gradient.contiguous())
    return passed  # type: ignore[no-any-return]


def _joined(value: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
    """Return an output as torch's split backward can take it, without a copy.

    It detaches outputs in place, which views refuse, and finds parameters on ways from outputs to inputs alone: where
    an output comes from parameters only, it seems to come from an input, too.
    """
    joined: torch.Tensor = _join().apply(value, next((one for one in given if one.requires_grad), None))
    return joined


@cache
def _join() -> Any:
    class Join(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, value: torch.Tensor, __: torch.Tensor | None) -> torch.Tensor:
            return value.detach()

        @staticmethod
        def backward(_: Any, *gradients: Any) -> Any:
            return gradients[0], None

    return Join


def _recompute(module: GraphModule, names: Set[str]) -> None:
    """Make nodes of a module one call whose values are not kept for the backward pass, but made anew in it."""
    nodes = [node for node in module.graph.nodes if node.op == "call_function" and node.name in names]
    if not nodes:
        return
    name = f"recomputed_{len(dict(module.named_children()))}_"
    fuse_by_partitions(module, [dict.fromkeys(nodes)], prefix=name)
    part = getattr(module, f"{name}0")
    plain = part.forward
    part.forward = lambda *given: checkpoint(plain, *given, use_reentrant=False)


class _Writer:
    """Copies nodes into the graph of a stage, with what they need."""

    def __init__(
        self,
        program: TorchProgram,
        graph: FxGraph,
        root: dict[str, Any],
        known: dict[Node, Any],
        rows: int,
        device: torch.device,
        trainable: bool,
    ) -> None:
        self._program, self._graph, self._root, self._known = program, graph, root, known
        self._rows, self._device = rows, device
        self._names = program.exported.graph_signature.inputs_to_parameters if trainable else {}
        self.parameters: dict[str, str] = {}

    def value(self, node: Node) -> Any:
        """Return what stands for a node's value in this stage."""
        if node in self._known:
            return self._known[node]
        number = scalar_value(self._program, node, self._rows)
        if number is not None:
            return number
        if node in self._program.constants:
            name = f"constant_{len(self._root)}"
            value = self._program.constants[node]
            if isinstance(value, torch.Tensor):
                learns = node.name in self._names and value.requires_grad
                value = torch.nn.Parameter(value.detach().to(self._device), requires_grad=learns)
                if learns:
                    self.parameters[name] = self._names[node.name]
            self._root[name] = value
            self._known[node] = self._graph.get_attr(name)
            return self._known[node]
        if node.target is not operator.getitem and not isinstance(node.meta.get("val"), (torch.Tensor, tuple, list)):
            raise InvalidPlan(f"node {node.name!r} gives a {type(node.meta.get('val')).__name__}; expected tensors")
        call = self._program.call(node, self._rows)
        args, kwargs = self._mapped(call.args), self._mapped(call.kwargs)
        self._known[node] = self._graph.call_function(call.target, args, kwargs)
        return self._known[node]

    def _mapped(self, argument: Any) -> Any:
        def placed(part: Any) -> Any:
            if isinstance(part, Node):
                return self.value(part)
            return self._device if isinstance(part, torch.device) else part

        return map_aggregate(argument, placed)
