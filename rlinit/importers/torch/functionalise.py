"""Taking writes in place out of exported programs, so that the data flow is all there is between ops."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from rlinit.importers.torch.known_warnings import without_known_warnings

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node

_PLAIN = frozenset(
    {"add_", "sub_", "mul_", "div_", "neg_", "exp_", "sqrt_", "rsqrt_", "clamp_", "clamp_min_", "clamp_max_"}
    | {"relu_", "relu6_", "hardtanh_", "leaky_relu_", "elu_", "selu_", "celu_", "silu_", "mish_", "hardswish_"}
    | {"hardsigmoid_", "sigmoid_", "tanh_", "threshold_"}
)
"""Writes whose functional form gives the same values and, on tensors of one floating-point type, the same type."""

_FRESH = frozenset(
    {"batch_norm", "group_norm", "instance_norm", "layer_norm", "linear", "matmul", "relu6"}
    | {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
)
"""Composite ops that return new storage; a composite op may otherwise return its input."""

_DROPOUTS = frozenset({"alpha_dropout", "dropout", "feature_alpha_dropout", "feature_dropout"})


def without_writes(program: ExportedProgram) -> ExportedProgram:
    """Return the program rewritten so that no op writes in place, itself where none does.

    Activations and arithmetic in place on a tensor no other name refers to (nearly all there are in networks) become
    their functional forms, and later readers read the result. Where anything else is written, torch takes all
    writes out by tracing the program again, which takes two times as long as exporting it.
    """
    if not any(_writes(node) for graph in _graphs(program) for node in graph.nodes):
        return program
    with without_known_warnings():
        copied = _without_idle_dropout(program)
        return _rewritten(copied) or copied.run_decompositions({})


def _graphs(program: ExportedProgram) -> list[Graph]:
    modules = program.graph_module.modules()
    return [module.graph for module in modules if isinstance(module, torch.fx.GraphModule)]


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


def _without_idle_dropout(program: ExportedProgram) -> ExportedProgram:
    """Return a copy without dropouts that are switched off.

    They return their input, which torch's own removal of writes does not know: it would take a write to the result
    for one that leaves the input as it was.
    """
    old = program.graph_module
    graph, copies = torch.fx.Graph(), dict[Any, Any]()
    graph.output(graph.graph_copy(old.graph, copies))
    for node, twin in copies.items():
        twin.name = node.name  # a copy avoids Python's own names, such as "input", and the signature has them
    graph.output_node().meta.update(old.graph.output_node().meta)
    signature = copy.deepcopy(program.graph_signature)
    for node in list(graph.nodes):
        name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
        if node.op == "call_function" and name in _DROPOUTS and len(node.args) == 3 and node.args[2] is False:
            source = node.args[0]
            node.replace_all_uses_with(source)
            signature.replace_all_uses(node.name, source.name)
            graph.erase_node(node)
    module = torch.fx.GraphModule(old, graph)
    module.meta.update(old.meta)
    return torch.export.ExportedProgram(
        root=module,
        graph=graph,
        graph_signature=signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )


def _rewritten(program: ExportedProgram) -> ExportedProgram | None:
    """Bring plain writes to their functional form, in place; None, and nothing changed, where another remains."""
    if any(_writes(node) for graph in _graphs(program)[1:] for node in graph.nodes):
        return None
    place = {node: i for i, node in enumerate(program.graph.nodes)}
    targets: dict[Node, Any] = {}
    for node in place:
        if _writes(node):
            targets[node] = _functional(node)
            if targets[node] is None or not _sole_name(node, place, targets):
                return None
    for node, target in targets.items():
        written = node.args[0]
        if not isinstance(written, torch.fx.Node):  # _sole_name saw to it
            return None
        node.target = target
        for user in [user for user in written.users if place[user] > place[node]]:
            user.replace_input_with(written, node)
            if user.op == "output":
                program.graph_signature.replace_all_uses(written.name, node.name)
    program.graph_module.recompile()
    return program


def _functional(node: Node) -> Any:
    """Return the functional form of a plain write, None where there is none that gives the same type."""
    packet = getattr(node.target, "overloadpacket", None)
    name = getattr(packet, "__name__", "")
    if getattr(node.target, "namespace", "") != "aten" or name not in _PLAIN:
        return None
    values = [source.meta.get("val") for source in node.all_input_nodes]
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point:
        return None
    overload = node.target._overloadname  # type: ignore[union-attr]
    return getattr(getattr(torch.ops.aten, name[:-1]), overload, None)


def _sole_name(writer: Node, place: Mapping[Node, int], targets: Mapping[Node, Any]) -> bool:
    """Whether no tensor but the written one lies in its storage when it is written."""
    written = writer.args[0] if writer.args else None
    if not isinstance(written, torch.fx.Node) or not isinstance(written.meta.get("val"), torch.Tensor):
        return False
    if not _makes_storage(written, targets):
        return False
    return all(_makes_storage(user, targets) for user in written.users if place[user] < place[writer])


def _makes_storage(node: Node, targets: Mapping[Node, Any]) -> bool:
    """Whether the outputs of a call share no storage with its inputs, once `targets` replace the writes."""
    target = targets.get(node, node.target)
    schema = getattr(target, "_schema", None)
    if node.op != "call_function" or schema is None or any(result.alias_info for result in schema.returns):
        return False
    if target.overloadpacket.__name__ in _FRESH:
        return True
    return not torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
