"""One model exported for several batch sizes: which calls of the programs are the same call.

The programs come from one forward, so that they have the same calls, which read each other alike. Only sizes among
their arguments differ, what depends on no input (masks, positions), and where a value is copied or a view is taken,
since a batch of one lies otherwise in memory. Calls that read the same are told apart by their other arguments,
or their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from rlinit.errors import InvalidPlan

if TYPE_CHECKING:
    from rlinit.executors.lowering.torch_program import TorchProgram

_COPIES = frozenset({"alias", "clone", "contiguous"})
_RESHAPES = frozenset({"_unsafe_view", "reshape", "view"})


class SizedCall(NamedTuple):
    """What a node calls at one batch size, on nodes of the program and on values; and what comes out of it."""

    target: Any
    args: Any
    kwargs: Any
    value: Any


def calls_at_size(main: TorchProgram, other: TorchProgram) -> tuple[dict[Node, SizedCall], dict[Node, Node]]:
    """Return the calls of a program as its export for another batch size makes them.

    Parameters
    ----------
    main, other
        Two exports of a model; the constants of both may stand among the arguments.

    Returns
    -------
    tuple
        Node of `main` -> its call, for its inputs and all that depends on them; and node of `other` -> that of `main`
        which gives the same.

    Raises
    ------
    InvalidPlan
        The exports make different calls; the message names the first.
    """
    held = {id(value): node for node, value in main.constants.items()}
    own = dict(zip(other.inputs, main.inputs, strict=True))
    own |= {node: held[id(value)] for node, value in other.constants.items() if id(value) in held}
    moving, moving_there = ({*one.inputs, *one.nodes} - one.constant_nodes for one in (main, other))
    named, named_there = moving | set(own.values()), moving_there | own.keys()
    copied: dict[Node, Node] = {}
    left: dict[Any, list[Node]] = {}
    for node in _calls(main, copied):
        left.setdefault((_kind(node), _reads(node, named, copied)), []).append(node)
    calls = {own[node]: SizedCall(None, (), {}, node.meta.get("val")) for node in other.inputs}
    for same in _calls(other, own):
        alike = left.get((_kind(same), _reads(same, named_there, own)))
        if not alike:
            raise _apart(same)
        node = own[same] = alike.pop(next((at for at, one in enumerate(alike) if _plain(one) == _plain(same)), 0))
        calls[node] = _call(same, own, {copied.get(read, read): read for read in node.all_input_nodes})
    missed = next((node for nodes in left.values() for node in nodes), None)
    if missed is not None:
        raise _apart(missed)
    for node, source in copied.items():
        calls[node] = SizedCall(node.target, node.args, node.kwargs, calls[source].value)
    return calls, own


def _calls(program: TorchProgram, known: dict[Node, Node]) -> Iterator[Node]:
    """Yield the calls that depend on inputs; note instead what a copy is one of."""
    for node in program.nodes:
        if node in program.constant_nodes:
            continue
        if _name(node) in _COPIES:
            source: Any = node.args[0]
            known[node] = known.get(source, source)
        else:
            yield node


def _reads(node: Node, named: Set[Node], known: Mapping[Node, Node]) -> tuple[Node | None, ...]:
    """Return what a node reads, by the nodes of the main program; None for what each program has for itself."""
    return tuple(dict.fromkeys(known.get(read, read) if read in named else None for read in node.all_input_nodes))


def _plain(node: Node) -> str:
    """Return the arguments of a call without the nodes among them."""
    return str(map_arg((node.args, node.kwargs), lambda _: None))


def _call(same: Node, own: Mapping[Node, Node], read_as: Mapping[Node, Node]) -> SizedCall:
    """Return a call on nodes of the main program; a part of a batch may lie otherwise than what a view asks for."""

    def named(read: Node) -> Node:
        mine = own.get(read, read)
        return read_as.get(mine, mine)

    target: Any = torch.ops.aten.reshape.default if _name(same) in _RESHAPES else same.target
    return SizedCall(target, map_arg(same.args, named), map_arg(same.kwargs, named), same.meta.get("val"))


def _kind(node: Node) -> Any:
    return "reshape" if _name(node) in _RESHAPES else node.target


def _name(node: Node) -> str:
    """Return the name of a call of ATen's usual form; "" for others."""
    return str(node.target).removeprefix("aten.").removesuffix(".default") if node.op == "call_function" else ""


def _apart(node: Node) -> InvalidPlan:
    return InvalidPlan(
        f"the model makes other calls for other batch sizes, such as {node.name!r}, so that no part of it can run; "
        "plan its export for any batch size (torch.export with dynamic_shapes, rlinit.load_graph)"
    )
