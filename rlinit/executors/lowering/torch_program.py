"""A torch model as a program whose nodes belong to the ops of a plan.

Nodes that no op names run with the op of their last producer (views that an importer folds, parts of tuples). What
depends on no input (masks, positions) is computed once, when the program is loaded; arithmetic on shapes is done when
the plan is lowered. Writes in place are taken out first, as the importer does, so that a value may be read on several
devices in any order.

A module that runs in parts of its batch is exported once for one input of the plan, as the plan's graph was, and once
for each size of a part. The calls of these programs follow each other alike, so that each is told by its place; only
their arguments differ, and what depends on no input. A program that was exported for any batch size is taken as it is.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from rlinit.errors import InvalidGraph, InvalidPlan
from rlinit.executors.lowering.batch_sizes import SizedCall, calls_at_size
from rlinit.graph import Graph
from rlinit.importers.torch.export import export_program, import_torch
from rlinit.importers.torch.export import exported as exported_for
from rlinit.importers.torch.functionalise import without_writes


@dataclass(frozen=True, slots=True, eq=False)
class TorchProgram:
    """An exported program and which op each of its nodes belongs to.

    Parameters
    ----------
    nodes
        Nodes that compute, in topological order.
    node2op
        node -> op; "" for nodes that depend on no op.
    constant_nodes
        Those of them that depend on no input either, and are the same for every batch size.
    inputs
        Placeholders of the model's inputs, flattened, in order.
    constants
        Placeholder or attribute node -> parameter, buffer or other constant.
    outputs
        The flattened outputs: nodes, or plain values.
    batch_symbol
        Symbol of the batch size, or None where the program was exported for one.
    sizes
        Symbol of another dynamic dimension -> its size, that of the inputs which the program was loaded for.
    exported
        The program whose nodes the plan's ops are; it puts inputs and outputs into their structure.
    batch
        Rows of the inputs that the program was loaded for; where all shapes are fixed, the inputs of the plan.
    exports
        Batch size -> the program exported for it, where the model was exported for several.
    calls
        Batch size -> node -> its call there, as that export makes it.
    """

    nodes: tuple[Node, ...]
    node2op: Mapping[Node, str]
    constant_nodes: frozenset[Node]
    inputs: tuple[Node, ...]
    constants: Mapping[Node, Any]
    outputs: tuple[Any, ...]
    batch_symbol: Any
    sizes: Mapping[Any, int]
    exported: ExportedProgram
    batch: int = 1
    exports: Mapping[int, TorchProgram] = field(default_factory=dict)
    calls: Mapping[int, Mapping[Node, SizedCall]] = field(default_factory=dict)

    def call(self, node: Node, rows: int) -> SizedCall:
        """Return what a node calls at a batch size; numbers that depend on it may be nodes (see `scalar_value`).

        Parameters
        ----------
        node
            A node of the program, or one of its inputs, which calls nothing.
        rows
            The batch size, one of those that the program was exported for.
        """
        if self.calls and node in self.calls[rows]:
            return self.calls[rows][node]
        return SizedCall(node.target, node.args, node.kwargs, node.meta.get("val"))

    def flat_inputs(self, inputs: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the inputs in the order of the placeholders; keyword arguments follow the positional ones.

        Parameters
        ----------
        inputs, kwargs
            Positional and keyword inputs, in the structure that the program was exported for; the order of keywords
            does not matter.

        Raises
        ------
        InvalidPlan
            Their number, types or shapes are not those that the program was exported for.
        """
        given = dict(kwargs or {})
        wanted = _keywords(self.exported) if given else []  # without keywords, all follow each other as positional ones
        if set(given) != set(wanted):
            raise InvalidPlan(f"the keyword inputs are {sorted(given)}; the model was exported for {sorted(wanted)}")
        leaves: list[Any] = pytree.tree_leaves((tuple(inputs), {name: given[name] for name in wanted}))
        if len(leaves) != len(self.inputs):
            raise InvalidPlan(f"there are {len(leaves)} inputs; the model was exported for {len(self.inputs)}")
        for node, leaf in zip(self.inputs, leaves, strict=True):
            self._check_input(node, leaf)
        return leaves

    def _check_input(self, node: Node, leaf: Any) -> None:
        value = self.call(node, self.batch).value
        if not isinstance(value, torch.Tensor):
            if isinstance(value, (bool, int, float, str)) and leaf != value:
                raise InvalidPlan(f"input {node.name!r} is {leaf!r}; the model was exported for {value!r}")
            return
        if not isinstance(leaf, torch.Tensor):
            raise InvalidPlan(f"input {node.name!r} is a {type(leaf).__name__}; expected a tensor")
        shape = [self.sizes.get(true.node.expr, true) if hasattr(true, "node") else true for true in value.shape]
        fixed = [size == true for size, true in zip(leaf.shape, shape, strict=False) if isinstance(true, int)]
        if leaf.dtype != value.dtype or leaf.dim() != value.dim() or not all(fixed):
            raise InvalidPlan(
                f"input {node.name!r} is {leaf.dtype} of shape {tuple(leaf.shape)}; the model was exported for "
                f"{value.dtype} of shape ({', '.join(map(str, shape))})"
            )

    def structured(self, outputs: Sequence[Any]) -> Any:
        """Return flat outputs as the model itself returns them."""
        return pytree.tree_unflatten(list(outputs), self.exported.call_spec.out_spec)


def _keywords(exported: ExportedProgram) -> list[str]:
    """Return the names of a program's keyword inputs, in its order."""
    spec = exported.call_spec.in_spec
    if spec is None or spec.num_children != 2:
        return []
    return [str(name) for name in spec.child(1).context or ()]


def export_model(
    model: Any,
    inputs: Sequence[Any],
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_batch: int | None = None,
) -> ExportedProgram:
    """Return the exported program of a model; one that is exported already is returned as it is.

    Parameters
    ----------
    model
        A ``torch.nn.Module`` or ``torch.export.ExportedProgram``.
    inputs, kwargs
        Example inputs, positional and by keyword.
    dynamic_batch
        Size of the first dimension that is a batch and may vary; None: all shapes are fixed.

    Raises
    ------
    BackendUnavailable
        torch is not installed.
    InvalidGraph, InvalidPlan
        The model cannot be exported, for any batch size; or it is neither.
    """
    import_torch()  # which may be hidden by now
    if isinstance(model, torch.export.ExportedProgram):
        return without_writes(model)
    if not isinstance(model, torch.nn.Module):
        raise InvalidPlan(f"the model is a {type(model).__name__}; expected a torch.nn.Module or ExportedProgram")
    if dynamic_batch is None:
        return export_program(model, tuple(inputs), kwargs)
    return _with_variable_batch(model, tuple(inputs), dict(kwargs or {}), dynamic_batch)


def _with_variable_batch(
    model: torch.nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], batch: int
) -> ExportedProgram:
    def shape_of(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == batch:
            return {0: torch.export.Dim.DYNAMIC}
        return None

    try:
        shapes: Any = pytree.tree_map(shape_of, inputs)
        if kwargs:
            names = list(inspect.signature(model.forward).parameters)[: len(inputs)]
            shapes = dict(zip(names, shapes, strict=True)) | pytree.tree_map(shape_of, kwargs)
        return exported_for(model, inputs, kwargs, "trace", shapes)
    except InvalidGraph as problem:
        raise InvalidPlan(f"the model cannot be exported with a variable batch size: {problem}") from problem


def op_nodes(ops: Sequence[str], graph: Graph | None) -> dict[str, str]:
    """Return node name -> op name, by the ``node`` attribute of the graph's ops or, without one, by the op's name.

    Parameters
    ----------
    ops
        Names of the plan's ops, read where there is no graph.
    graph
        The graph of the plan, or None.
    """
    if graph is None:
        return {op: op for op in ops}
    found: dict[str, str] = {}
    for i, op in enumerate(graph.names):
        attributes = graph.extras.get(i, {})
        named = attributes.get("nodes", attributes.get("node", op))
        for node in [named] if isinstance(named, str) else named:
            found[str(node)] = op
    return found


def torch_program(
    model: Any,
    inputs: Sequence[Any],
    ops: Sequence[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    graph: Graph | None = None,
    plan_inputs: int = 1,
    parts: Collection[int] = (),
) -> TorchProgram:
    """Return the program of a model with its nodes assigned to ops.

    Parameters
    ----------
    model, inputs, kwargs
        As for `export_model`.
    ops
        Ops of the plan.
    graph
        The plan's graph, for the names of nodes and to check that the model has the same data flow.
    plan_inputs
        Inputs of the plan that the batch holds, which is the first dimension of the model's inputs.
    parts
        How many of them run at once: every number that there is, besides all of them.

    Raises
    ------
    InvalidPlan
        An op has no node in the model, the data flow differs from the graph's, the batch cannot be split, the model
        makes other calls for other batch sizes, is in training mode, or writes to its inputs or buffers.
    """
    names = op_nodes(ops, graph)
    given = tuple(inputs), dict(kwargs or {})
    sizes = {plan_inputs, *parts}
    if plan_inputs > 1 and hasattr(model, "forward"):
        program = _sized(model, given, names, plan_inputs, sizes)
    else:
        program = _read(export_model(model, inputs, kwargs=kwargs), names, given)
        if program.batch_symbol is None:
            if len(sizes) > 1:
                raise InvalidPlan("the program has no variable batch size; export it with one, or give the module")
            program = replace(program, batch=plan_inputs)
        _rows_each(program.batch, plan_inputs)
    missing = _missing(program, names)
    if missing:
        raise InvalidPlan(
            f"op {names[missing[0]]!r} of the plan is node {missing[0]!r}, which the model does not have "
            f"({len(missing)} such ops); the plan was made for another model, or for another export of it"
        )
    if graph is not None:
        _check_flow(graph, [*program.inputs, *program.nodes], names)
    return program


def _read(exported: ExportedProgram, names: Mapping[str, str], given: tuple[Any, dict[str, Any]]) -> TorchProgram:
    """Return a program whose nodes are assigned to ops by their names."""
    constants, user_inputs = _leaves(exported)
    nodes = [node for node in exported.graph.nodes if node.op == "call_function" and not _is_check(node)]
    for node in nodes:
        _refuse_training(node)
    node2op = _assigned(nodes, names)
    (result,) = exported.graph.find_nodes(op="output")
    batch_symbol = _batch_symbol(user_inputs)
    sizes = _input_sizes(user_inputs, given)
    return TorchProgram(
        nodes=tuple(nodes),
        node2op=node2op,
        constant_nodes=_constant_nodes(nodes, node2op, constants),
        inputs=tuple(user_inputs),
        constants=constants,
        outputs=_outputs(exported, result),
        batch_symbol=batch_symbol,
        batch=sizes.pop(batch_symbol, 1),
        sizes=sizes,
        exported=exported,
    )


def _missing(program: TorchProgram, names: Mapping[str, str]) -> list[str]:
    """Return the names that no call and no input of a program has."""
    known = {node.name for node in program.exported.graph.nodes if node.op == "call_function" or node in program.inputs}
    return [name for name in names if name not in known]


def _sized(
    model: Any, given: tuple[Any, dict[str, Any]], names: Mapping[str, str], plan_inputs: int, parts: Collection[int]
) -> TorchProgram:
    """Return the program of a module at every batch size that is asked for.

    Its nodes are those of the export for one input, of which a plan's graph is read; where that lacks one, of the
    export for the whole batch, or else of that for any batch size.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    rows = tensors[0].shape[0] if tensors else 0
    unit = _rows_each(rows, plan_inputs)

    @cache
    def at(size: int) -> TorchProgram:
        return _read(export_program(model, *given, batch=size), {}, given)

    main = next((at(size) for size in (unit, rows) if not _missing(at(size), names)), None)
    if main is None:
        return _read(export_model(model, given[0], kwargs=given[1], dynamic_batch=rows), names, given)
    fixed = {node.name for node in main.constant_nodes}
    main = _read(main.exported, {name: op for name, op in names.items() if name not in fixed}, given)
    exports = {size: at(size) for size in sorted({unit, rows, *(unit * count for count in parts)})}
    calls, outputs = {}, main.outputs
    for size, other in exports.items():
        calls[size], own = calls_at_size(main, other)
        outputs = tuple(own.get(value, value) for value in other.outputs)  # in the end those of the whole batch
    return replace(
        main,
        outputs=outputs,
        constants={node: value for one in (*exports.values(), main) for node, value in one.constants.items()},
        constant_nodes=main.constant_nodes.union(*(one.constant_nodes for one in exports.values())),
        batch=rows,
        exports=exports,
        calls=calls,
    )


def _rows_each(rows: int, plan_inputs: int) -> int:
    """Return the rows of a batch that belong to each input of the plan."""
    if not rows or rows % plan_inputs:
        raise InvalidPlan(f"the model's inputs have {rows} rows; the plan is for {plan_inputs} inputs of as many each")
    return rows // plan_inputs


def _leaves(exported: ExportedProgram) -> tuple[dict[Node, Any], list[Node]]:
    """Return constants by placeholder or attribute node, and the placeholders of the model's inputs."""
    signature = exported.graph_signature
    constants: dict[Node, Any] = {}
    user_inputs = []
    for node in exported.graph.nodes:
        if node.op == "get_attr":
            value: Any = exported.graph_module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            constants[node] = value
        if node.op != "placeholder":
            continue
        name = node.name
        target = (
            signature.inputs_to_parameters.get(name)
            or signature.inputs_to_buffers.get(name)
            or signature.inputs_to_lifted_tensor_constants.get(name)
            or signature.inputs_to_lifted_custom_objs.get(name)
        )
        if target is None:
            user_inputs.append(node)
        else:
            constants[node] = (
                exported.state_dict[target] if target in exported.state_dict else exported.constants[target]
            )
    return constants, user_inputs


def _outputs(exported: ExportedProgram, result: Node) -> tuple[Any, ...]:
    outputs = []
    for spec, value in zip(exported.graph_signature.output_specs, result.args[0], strict=True):  # type: ignore[arg-type]
        if spec.kind != OutputKind.USER_OUTPUT:
            raise InvalidPlan(
                f"the model writes to {spec.target!r} ({spec.kind.name}), which a plan cannot do on several devices; "
                "call model.eval() before exporting, or take the write out of its forward"
            )
        outputs.append(value)
    return tuple(outputs)


def _is_check(node: Node) -> bool:
    """Return whether a node only asserts something about shapes, which the executor does not need."""
    return not node.users and ("assert" in str(node.target) or "sym_constrain" in str(node.target))


def _assigned(nodes: Sequence[Node], names: Mapping[str, str]) -> dict[Node, str]:
    """Return the op of each node: its own, or the one of its last producer; parts of a tuple go with the tuple."""
    node2op: dict[Node, str] = {}
    last: dict[str, int] = {}
    for at, node in enumerate(nodes):
        before = [other for other in node.all_input_nodes if node2op.get(other)]
        if _is_scalar(node):
            node2op[node] = ""  # sizes are known without running the op
        elif node.target is operator.getitem and before:
            node2op[node] = node2op[before[0]]  # cheap, and so only single tensors travel
        elif node.name in names:
            node2op[node] = names[node.name]
        else:
            node2op[node] = node2op[max(before, key=lambda other: last[other.name])] if before else ""
        last[node.name] = at
    return node2op


def _is_scalar(node: Node) -> bool:
    """Return whether a node gives a plain number, or one that depends on shapes."""
    return isinstance(node.meta.get("val"), (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def _check_flow(graph: Graph, nodes: Sequence[Node], names: Mapping[str, str]) -> None:
    """Check that ops read each other in the model, through unnamed nodes, as they do in the graph."""
    behind: dict[Node, frozenset[str]] = {}
    reads: dict[str, set[str]] = {name: set() for name in graph.names}
    for node in nodes:
        found: set[str] = set()
        for other in () if _is_scalar(node) else node.all_input_nodes:
            found |= behind.get(other, frozenset())
        own = names.get(node.name)
        if own is None:
            behind[node] = frozenset(found)
        else:
            reads[own] |= found - {own}
            behind[node] = frozenset({own})
    for v, op in enumerate(graph.names):
        listed = {graph.names[u] for u in graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]].tolist()}
        for missing in sorted(listed ^ reads[op]):
            where = "the model" if missing in reads[op] else "the plan's graph"
            raise InvalidPlan(
                f"op {op!r} reads {missing!r} in {where} only; the plan was made for another version of the model"
            )


def _constant_nodes(
    nodes: Sequence[Node], node2op: Mapping[Node, str], constants: Mapping[Node, Any]
) -> frozenset[Node]:
    """Return the nodes that are the same in every run: no input, no random number and no shape reaches them."""
    found: set[Node] = set()
    for node in nodes:
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        known = all(other in constants or other in found for other in node.all_input_nodes)
        if known and not random and not node2op[node]:
            found.add(node)
    return frozenset(found)


def _refuse_training(node: Node) -> None:
    """Refuse ops that are told to train: they write statistics behind the program's back, or draw random numbers."""
    schema = getattr(node.target, "_schema", None)
    for at, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name in ("train", "training"):
            given = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name)
            if given is True:
                raise InvalidPlan(f"node {node.name!r} is in training mode; call model.eval() before exporting")


def on_device(argument: Any, device: torch.device) -> Any:
    """Return arguments of a call with the devices in them replaced, which were written there by the export.

    Parameters
    ----------
    argument
        An argument of a call: a tensor, number, device, or any nest of lists and dicts of them.
    device
        The device to put in.
    """
    return pytree.tree_map(lambda part: device if isinstance(part, torch.device) else part, argument)


def _batch_symbol(inputs: Sequence[Node]) -> Any:
    """Return the symbol of the first first dimension that is variable, None where none is."""
    for node in inputs:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dim() and isinstance(value.shape[0], torch.SymInt):
            return value.shape[0].node.expr
    return None


def _input_sizes(nodes: Sequence[Node], inputs: Any) -> dict[Any, int]:
    """Return the sizes of dynamic dimensions, which are those of the inputs."""
    found: dict[Any, int] = {}
    for node, leaf in zip(nodes, pytree.tree_leaves(inputs), strict=False):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and isinstance(leaf, torch.Tensor):
            for true, size in zip(value.shape, leaf.shape, strict=False):
                if isinstance(true, torch.SymInt) and true.node.expr.is_symbol:
                    found.setdefault(true.node.expr, int(size))
    return found


def scalar_value(program: TorchProgram, node: Node, batch: int) -> int | float | bool | None:
    """Return the value at a batch size of a node that computes with shapes; None for other nodes.

    Parameters
    ----------
    program
        The program, whose `batch_symbol` stands for the inputs at once.
    node
        A node of it.
    batch
        Inputs at once, at least 1.

    Raises
    ------
    InvalidPlan
        It depends on data.
    """
    value = node.meta.get("val")
    if isinstance(value, (bool, int, float)):
        return value
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return None
    expression = value.node.expr
    known = dict(program.sizes) if program.batch_symbol is None else {**program.sizes, program.batch_symbol: batch}
    number = expression.subs(known) if known else expression
    if getattr(number, "free_symbols", None):
        raise InvalidPlan(f"node {node.name!r} computes {expression}, which depends on the data")
    kind = int if isinstance(value, torch.SymInt) else float if isinstance(value, torch.SymFloat) else bool
    return kind(number)
