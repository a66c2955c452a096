"""Reading an exported program node by node: which nodes are ops, what they hold, move and compute."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind

from rlinit.errors import InvalidGraph
from rlinit.graph import Graph
from rlinit.importers.common.parameters import Holdings, Sharing
from rlinit.importers.common.precision import Precision
from rlinit.importers.torch.axes import axes_of
from rlinit.importers.torch.flops import FlopTable
from rlinit.importers.torch.symbolic_sizes import SizeTable, dense_shape, tensors_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

    from rlinit.importers.torch.export import Granularity

_RANDOM = torch.Tag.nondeterministic_seeded
_DROPOUTS = frozenset({"alpha_dropout", "dropout", "feature_alpha_dropout", "feature_dropout"})
_MAY_COPY = frozenset({"reshape", "flatten", "contiguous"})
"""Calls that share storage with their input where its strides allow it, and copy elsewhere."""


@dataclass(slots=True)
class _Op:
    """An op of the graph while it is put together."""

    name: str
    kind: str
    nodes: list[Node] = field(default_factory=list)
    module: str = ""


class ProgramReader:
    """Sorts the nodes of a program without in-place writes into ops, constants and the rest.

    ==================  ==================================================================================
    node                becomes
    ==================  ==================================================================================
    user input          an op of kind "input"
    parameter, buffer   bytes of the ops that read it
    constant            the same: no input reaches it and it is not random
    arithmetic on sizes nothing; sizes are known
    check               nothing (it returns no tensor)
    getitem             part of the op whose output it picks
    any other call      an op
    ==================  ==================================================================================
    """

    def __init__(
        self,
        program: ExportedProgram,
        granularity: Granularity,
        sharing: Sharing,
        batch: int | None,
        dims: Mapping[str, int],
        precision: Precision,
    ) -> None:
        if granularity not in ("op", "layer", "module"):
            raise ValueError(f"granularity is {granularity!r}; expected 'op', 'layer' or 'module'")
        self.program = program
        self.granularity = granularity
        self.sharing: Sharing = sharing
        self.precision = precision
        self.flop_table = FlopTable()
        self.inputs: dict[str, InputKind] = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs}
        self.sizes = SizeTable(program, batch, dims)
        self.nodes = [node for node in program.graph.nodes if node.op != "output"]
        self.trained = {  # parameters with a gradient, and what is computed from them alone
            spec.arg.name
            for spec in program.graph_signature.input_specs
            if spec.kind == InputKind.PARAMETER
            and getattr(program.state_dict.get(spec.target or ""), "requires_grad", True)
        }
        self.returned = {node for node in program.graph.output_node().all_input_nodes}
        self.stored = {
            spec.arg.name
            for spec in program.graph_signature.input_specs
            if spec.kind == InputKind.PARAMETER or (spec.kind == InputKind.BUFFER and spec.persistent)
        }
        self.folded: dict[Node, frozenset[str]] = {}  # constant call -> modules whose weights are in it
        self.roots: dict[Node, Node] = {}  # constant tensor -> the tensor whose storage it is a view of
        self.ops: list[_Op] = []
        self.owner: dict[Node, _Op] = {}
        self._sort_nodes()

    # -- what each node is -------------------------------------------------------------------------------------

    def _sort_nodes(self) -> None:
        for node in self.nodes:
            if node.op == "placeholder":
                self._sort_placeholder(node)
            elif node.op == "call_function":
                self._sort_call(node)
            elif node.op != "get_attr":  # get_attr: the body of a control-flow op
                raise InvalidGraph(f"node {node.name!r} is a {node.op}; expected a program made by torch.export")
        if not any(op.kind != "input" for op in self.ops):
            raise InvalidGraph(
                "no op of the program depends on a tensor given as an argument; there is nothing to plan"
            )
        if self.granularity == "module":
            self._join_modules()

    def _sort_placeholder(self, node: Node) -> None:
        value = node.meta.get("val")
        if self.inputs.get(node.name) != InputKind.USER_INPUT:
            self.roots[node] = node
        elif isinstance(value, torch.Tensor):
            self._open(node, "input")

    def _sort_call(self, node: Node) -> None:
        value = node.meta.get("val")
        source = node.args[0] if node.args else None
        if node.target is operator.getitem and isinstance(source, torch.fx.Node) and source in self.owner:
            op = self.owner[source]
            op.nodes.append(node)
            self.owner[node] = op
        elif not (tensors_of(value) or _is_control_flow(node) or self.sizes.depends_on_data(value)):
            return  # a check, or arithmetic on sizes
        elif self._is_random(node) or any(source in self.owner for source in node.all_input_nodes):
            self._open(node, str(node.target).removesuffix(".default").removeprefix("aten."))
        else:
            self.roots[node] = self._root(node)
            if any(source.name in self.trained for source in node.all_input_nodes):
                self.trained.add(node.name)
            self.folded[node] = self._modules_in(node)

    def _open(self, node: Node, kind: str) -> None:
        stack = node.meta.get("nn_module_stack") or {}
        module = str(list(stack.values())[-1][0]) if stack else ""
        op = _Op(node.name, kind, [node], module)
        self.ops.append(op)
        self.owner[node] = op

    def _modules_in(self, node: Node) -> frozenset[str]:
        """Return the modules whose stored tensors a constant call reads, itself or through others."""
        found = [self.folded.get(source, frozenset()) for source in node.all_input_nodes]
        scopes = _scopes(node)
        if scopes and any(source.name in self.stored for source in node.all_input_nodes):
            found.append(frozenset({scopes[-1][0]}))
        return frozenset().union(*found)

    def _is_random(self, node: Node) -> bool:
        return _RANDOM in getattr(node.target, "tags", ()) or _is_control_flow(node)

    def _root(self, node: Node) -> Node:
        """Return the tensor whose storage a constant lies in."""
        is_view = _is_view(node) or node.target is operator.getitem
        sources = [source for source in node.all_input_nodes if source in self.roots]
        return self.roots[sources[0]] if is_view and sources else node

    def constant_nodes(self) -> frozenset[str]:
        """Return the calls that belong to no op."""
        return frozenset(
            node.name for node in self.nodes if node.op in ("call_function", "get_attr") and node not in self.owner
        )

    # -- modules -----------------------------------------------------------------------------------------------

    def _join_modules(self) -> None:
        """Make one op of each call of a module without submodules.

        The nodes of a call follow each other in program order, and program order is topological, so that joining
        runs of it makes no cycle.
        """
        paths = {op.module for op in self.ops}
        parents = {path[:end] for path in paths for end, letter in enumerate(path) if letter == "."} | {""}
        joined: list[_Op] = []
        calls: dict[str, int] = {}
        last = None
        for op in self.ops:
            call = self._call_of(op)
            if call is None or op.module in parents:
                joined.append(op)
                last = None
                continue
            if call != last:
                number = calls.get(op.module, 0)
                calls[op.module] = number + 1
                name = f"{op.module}/call{number}" if number else op.module
                joined.append(_Op(name, self._class_of(op), [], op.module))
                last = call
            joined[-1].nodes.extend(op.nodes)
        taken = {op.name for op in joined if op.name != op.nodes[0].name}
        for op in joined:
            if op.name == op.nodes[0].name and op.name in taken:  # a module may be called as a node is
                op.name = f"{op.name}/op"
        self.ops = joined
        self.owner = {node: op for op in joined for node in op.nodes}

    def _call_of(self, op: _Op) -> str | None:
        """Return what tells the call of the innermost module of an op from its other calls."""
        stack = op.nodes[0].meta.get("nn_module_stack")
        return str(list(stack)[-1]) if stack else None

    def _class_of(self, op: _Op) -> str:
        kind = list(op.nodes[0].meta["nn_module_stack"].values())[-1][1]
        return str(kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]

    # -- the graph ---------------------------------------------------------------------------------------------

    def graph(self, name: str) -> Graph:
        """Return the graph of the program's ops."""
        holdings = Holdings(self.sharing)
        edges: set[tuple[str, str]] = set()
        for op in self.ops:
            for node in op.nodes:
                for source in node.all_input_nodes:
                    self._read(op, node, source, holdings, edges)
        held = holdings.attributes()
        rows = []
        for op in self.ops:
            rows.append((op.name, self._row(op) | {"param_bytes": 0} | held.get(op.name, {})))
        return Graph.build(rows, sorted(edges), name=name)

    def _read(self, op: _Op, node: Node, source: Node, holdings: Holdings, edges: set[tuple[str, str]]) -> None:
        """Note that a node of an op reads another node's value."""
        producer = self.owner.get(source)
        if producer is not None and producer is not op:
            edges.add((producer.name, op.name))
        root = self.roots.get(source)
        if root is None or not tensors_of(root.meta.get("val")):
            return
        size = sum(self._bytes(tensor, root.name, is_weight=True) for tensor in tensors_of(root.meta["val"]))
        is_parameter = self.inputs.get(root.name) == InputKind.PARAMETER
        is_trained = source.name in self.trained
        holdings.add(op.name, root.name, size, is_parameter=is_parameter, is_trained=is_trained)

    def _row(self, op: _Op) -> dict[str, Any]:
        outputs = self._outputs(op)
        shapes = [self.sizes.shape(tensor, op.name) for tensor in outputs]
        row: dict[str, Any] = {
            "op": op.kind,
            "out_bytes": sum(self._bytes(tensor, op.name, is_weight=False) for tensor in outputs),
            "flops": sum(self._flops(node, self.program.graph_module) for node in op.nodes),
            "node": op.name if op.nodes[0].name == op.name else op.module,
            "nodes": [node.name for node in op.nodes],
            "module": op.module,
            "scopes": _scopes(op.nodes[0]),
            "outputs": [
                [str(tensor.dtype).removeprefix("torch."), *shape]
                for tensor, shape in zip(outputs, shapes, strict=True)
            ],
        }
        if all(node.target is operator.getitem or self._is_free(node) for node in op.nodes):
            row["view"] = True
        row |= self._axes(op)
        holds = {path for node in op.nodes for u in node.all_input_nodes for path in self.folded.get(u, ())}
        if holds - {op.module}:
            row["holds"] = sorted(holds - {op.module})
        return row | self.precision.noted()

    def _axes(self, op: _Op) -> dict[str, Any]:
        """Return what there is to note of the dimensions of a call; see `rlinit.importers.common.axes`."""
        first, *others = op.nodes
        made = tensors_of(first.meta.get("val"))
        if not made or first.op != "call_function" or any(node.target is not operator.getitem for node in others):
            return {}
        read: list[Node] = []
        torch.fx.map_arg((first.args, first.kwargs), read.append)
        read = [node for node in read if tensors_of(node.meta.get("val"))]
        if any(len(tensors_of(node.meta["val"])) > 1 for node in read) or _is_control_flow(first):
            return {}
        shapes = [tuple(self.sizes.shape(tensors_of(node.meta["val"])[0], op.name)) for node in read]
        found = axes_of(first, shapes, tuple(self.sizes.shape(made[0], op.name)))
        if found is None:
            return {}
        names = [self.owner[node].name if node in self.owner else "" for node in read]
        return {"axes": found, "operands": [[name, *shape] for name, shape in zip(names, shapes, strict=True)]}

    def _bytes(self, tensor: torch.Tensor, label: str, *, is_weight: bool) -> int:
        count = math.prod(dense_shape(tensor, self.sizes, label))
        bits = 8 * int(tensor.dtype.itemsize)
        return self.precision.bytes_of(count, bits, is_float=tensor.dtype.is_floating_point, is_weight=is_weight)

    def _outputs(self, op: _Op) -> list[torch.Tensor]:
        """Return the tensors of an op that others read; all that it makes where nobody reads any."""
        inside = set(op.nodes)
        read = [
            node
            for node in op.nodes
            if node in self.returned or any(user not in inside and user in self.owner for user in node.users)
        ]
        tensors = [tensor for node in read for tensor in tensors_of(node.meta.get("val"))]
        return tensors or tensors_of(op.nodes[-1].meta.get("val"))

    def _is_free(self, node: Node) -> bool:
        """Return whether a call moves nothing: its output is its input, or lies in the same storage.

        Reshaping shares storage only where the strides allow it, which is tried on tensors without storage.
        """
        name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
        if name in _DROPOUTS and len(node.args) == 3 and node.args[2] is False:
            return True
        if not _is_view(node):
            return False
        source = node.args[0] if node.args else None
        value = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
        made = node.meta.get("val")
        if name not in _MAY_COPY or not isinstance(value, torch.Tensor) or not isinstance(made, torch.Tensor):
            return True
        strides = [int(self.sizes.size(stride, node.name)) for stride in value.stride()]
        shape = self.sizes.shape(value, node.name)
        laid = torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
        if name == "contiguous":
            return laid.is_contiguous()
        again = laid.reshape(self.sizes.shape(made, node.name))
        return bool(again.untyped_storage()._cdata == laid.untyped_storage()._cdata)

    # -- operations --------------------------------------------------------------------------------------------

    def _flops(self, node: Node, within: torch.fx.GraphModule) -> float:
        """Return the operations of a node of `within`; of control flow, those of its largest branch, once."""
        if node.op != "call_function":
            return 0.0
        if _is_control_flow(node):
            found = [getattr(within, str(source.target)) for source in node.all_input_nodes if source.op == "get_attr"]
            bodies = [body for body in found if isinstance(body, torch.fx.GraphModule)]
            return max((sum(self._flops(inner, body) for inner in body.graph.nodes) for body in bodies), default=0.0)
        if not self.flop_table.counts(node.target):
            return 0.0
        args = [self._meta(argument, node.name) for argument in node.args]
        kwargs = {key: self._meta(argument, node.name) for key, argument in node.kwargs.items()}
        try:
            return self.flop_table.count(node.target, args, kwargs)
        except Exception as problem:  # whatever the op's own checks raise
            raise InvalidGraph(
                f"node {node.name!r}: cannot count the operations of {node.target}: {problem}"
            ) from problem

    def _meta(self, argument: Any, label: str) -> Any:
        """Return an argument with every node replaced by a tensor without storage, or the size it stands for."""
        if isinstance(argument, (list, tuple)):
            return type(argument)(self._meta(entry, label) for entry in argument)
        if not isinstance(argument, torch.fx.Node):
            return argument
        value = argument.meta["val"]
        if isinstance(value, torch.Tensor):
            return torch.empty(self.sizes.shape(value, label), dtype=value.dtype, device="meta")
        if isinstance(value, (list, tuple)):
            return [torch.empty(self.sizes.shape(t, label), dtype=t.dtype, device="meta") for t in value]
        return self.sizes.size(value, label)


def _scopes(node: Node) -> list[list[str]]:
    """Return path and class of the modules around a call, the outermost first."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    return [[str(path), (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]] for path, kind in stack]


def _is_control_flow(node: Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def _is_view(node: Node) -> bool:
    """Whether the output of a call lies in its input's storage."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.returns:
        return False
    return all(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
