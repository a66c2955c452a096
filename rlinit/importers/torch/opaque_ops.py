"""Calls that no tracer sees into, as operators of their own.

Such a call (of a module that branches on data, say) becomes one node ``rlinit::opaque`` of an exported program. It runs
the call as it is, on the tensors that the node gets: the parameters of the module first, then the tensors among the
arguments. Everything else about the call is fixed when it is recorded. Whatever then turns out otherwise while
running is an error, never another result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rlinit.errors import InvalidGraph
from rlinit.importers.torch.flops import flop_counter


@dataclass(frozen=True, slots=True, eq=False)
class OpaqueCall:
    """One recorded call.

    Parameters
    ----------
    label, kind
        What errors call it, and its kind of op.
    function
        What is called; a module is called with its parameters replaced by the tensors of the node.
    parameters
        Names of the module's parameters and buffers.
    leaves, structure
        Flat arguments, None where a tensor stands, and their structure.
    positions
        Places of the tensors among the leaves.
    flops, hidden_bytes
        Operations of the call as it was recorded, and bytes that the module holds besides parameters and buffers
        (packed weights of quantised layers).
    results, result_structure
        Flat results, and their structure; tensors are kept without storage.
    lock
        Modules are called by one thread at a time, since their parameters are replaced.
    """

    label: str
    kind: str
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    leaves: tuple[Any, ...]
    structure: Any
    positions: tuple[int, ...]
    results: tuple[Any, ...]
    result_structure: Any
    flops: float
    hidden_bytes: int
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors that the call gives.

        Raises
        ------
        RuntimeError
            It writes to what it was given, or gives something of another type or shape than when it was recorded.
        """
        given = dict(zip(self.parameters, tensors, strict=False))
        leaves = list(self.leaves)
        for at, tensor in zip(self.positions, tensors[len(given) :], strict=True):
            leaves[at] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        versions = [tensor._version for tensor in tensors]
        with self.lock, torch.no_grad():
            result = _called(self.function, given, args, kwargs)
        if [tensor._version for tensor in tensors] != versions:
            raise RuntimeError(f"{self.label} writes to a tensor it was given")
        found = pytree.tree_leaves(result)
        self._check(found)
        storages = {tensor.untyped_storage()._cdata for tensor in tensors}
        return [_own(value, storages) for value in found if isinstance(value, torch.Tensor)]

    def _check(self, found: Sequence[Any]) -> None:
        if len(found) != len(self.results):
            raise RuntimeError(
                f"{self.label} gives {len(found)} values; when it was traced it gave {len(self.results)}"
            )
        for value, recorded in zip(found, self.results, strict=True):
            if isinstance(recorded, torch.Tensor):
                if (
                    not isinstance(value, torch.Tensor)
                    or value.shape != recorded.shape
                    or value.dtype != recorded.dtype
                ):
                    got = f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else value
                    raise RuntimeError(
                        f"{self.label} gives {got}; when it was traced it gave {recorded.dtype} of shape "
                        f"{tuple(recorded.shape)}, and plans need sizes that do not depend on data"
                    )
            elif type(value) is not type(recorded) or value != recorded:
                raise RuntimeError(
                    f"{self.label} gives {value!r}; when it was traced it gave {recorded!r}, which is part of the plan"
                )

    def like(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return tensors of the types and shapes that the call gives, on the device of the last one given."""
        device = tensors[-1].device if tensors else torch.device("cpu")
        return [
            torch.empty(value.shape, dtype=value.dtype, device=device)
            for value in self.results
            if isinstance(value, torch.Tensor)
        ]


_CALLS: list[OpaqueCall] = []
"""Every recorded call by its number in the node; programs may live anywhere, so none is ever forgotten."""


@torch.library.custom_op(
    "rlinit::opaque",
    mutates_args=(),
    schema="(int call, Tensor[] tensors) -> Tensor[]",
    tags=(torch.Tag.nondeterministic_seeded,),  # so that nobody folds it away or calls it twice
)
def call_opaque(call: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run a recorded call.

    Parameters
    ----------
    call
        Number of the recorded call.
    tensors
        Its tensors, in the order of the recording.
    """
    return _recorded(call).run(tensors)


@call_opaque.register_fake
def _(call: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return _recorded(call).like(tensors)


def _recorded(call: int) -> OpaqueCall:
    if not 0 <= call < len(_CALLS):
        raise RuntimeError("the program calls a module that was recorded in another process; export the model again")
    return _CALLS[call]


def replay_call(call: int, held: Mapping[str, torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return what a recorded call gives for other tensors, by one opaque op.

    Parameters
    ----------
    call
        Its number.
    held
        Parameters and buffers by name; empty for a function.
    args, kwargs
        Arguments, equal to the recorded ones but for their tensors.

    Raises
    ------
    RuntimeError
        They are not.
    """
    recorded = _recorded(call)
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    others = tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    if structure != recorded.structure or others != recorded.leaves:
        raise RuntimeError(f"{recorded.label} is called with other arguments than when it was recorded")
    made = iter(call_opaque(call, [*(held[name] for name in recorded.parameters), *tensors]))
    results = [next(made) if isinstance(value, torch.Tensor) else value for value in recorded.results]
    return pytree.tree_unflatten(results, recorded.result_structure)


def record_call(
    label: str, kind: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> int:
    """Call a module or function once, and return the number under which the call is kept.

    Parameters
    ----------
    label, kind
        See `OpaqueCall`.
    function, args, kwargs
        What is called with what; tensors have values, or lie on the meta device.

    Raises
    ------
    InvalidGraph
        It gives something between ops that is neither tensors nor plain values, or writes to what it is given.
    """
    held = state_of(function) if isinstance(function, torch.nn.Module) else {}
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    positions = tuple(at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    tensors = [*held.values(), *(leaves[at] for at in positions)]
    versions = [tensor._version for tensor in tensors]
    with torch.no_grad(), flop_counter() as counter:
        result = _called(function, held, args, kwargs)
    if [tensor._version for tensor in tensors] != versions:
        raise InvalidGraph(f"{label} cannot be traced, and writes to a tensor that it is given or holds")
    found, result_structure = pytree.tree_flatten(result)
    for value in found:
        if value is not None and not isinstance(value, (torch.Tensor, bool, int, float, str)):
            raise InvalidGraph(f"{label} cannot be traced, and gives a {type(value).__name__}; expected tensors")
    _CALLS.append(
        OpaqueCall(
            label,
            kind,
            function,
            tuple(held),
            tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves),
            structure,
            positions,
            tuple(value.to("meta") if isinstance(value, torch.Tensor) else value for value in found),
            result_structure,
            float(counter.get_total_flops()),
            _hidden_bytes(function),
        )
    )
    return len(_CALLS) - 1


def opaque_call(node: torch.fx.Node) -> OpaqueCall | None:
    """Return the call that a node of a program makes; None for nodes that are no opaque calls."""
    if node.target is not torch.ops.rlinit.opaque.default:
        return None
    call = node.args[0]
    return _recorded(call) if isinstance(call, int) else None


def holds_objects(function: Any) -> bool:
    """Whether a module holds objects of TorchScript, such as packed weights, which torch.export cannot look into."""
    modules = function.modules() if isinstance(function, torch.nn.Module) else ()
    return any(isinstance(value, torch.ScriptObject) for module in modules for value in vars(module).values())


def _hidden_bytes(function: Any) -> int:
    """Return the bytes of tensors in a module's state that are no parameters or buffers."""
    if not isinstance(function, torch.nn.Module) or not holds_objects(function):
        return 0
    seen = state_of(function).keys()
    hidden = [value for name, value in function.state_dict().items() if name not in seen]
    return sum(leaf.nbytes for leaf in pytree.tree_leaves(hidden) if isinstance(leaf, torch.Tensor))


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a module by name, shared ones once."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _called(function: Callable[..., Any], held: dict[str, torch.Tensor], args: Any, kwargs: Any) -> Any:
    # Compiled modules keep their own parameters, which therefore have to stay where they are.
    if isinstance(function, torch.nn.Module) and not isinstance(function, torch.jit.ScriptModule):
        return torch.func.functional_call(function, held, tuple(args), dict(kwargs))
    return function(*args, **kwargs)


def _own(value: torch.Tensor, storages: set[int]) -> torch.Tensor:
    """Return a contiguous tensor in a storage of its own, which is added to the storages that are taken."""
    value = value.detach().contiguous()
    if value.untyped_storage()._cdata in storages:
        value = value.clone()
    storages.add(value.untyped_storage()._cdata)
    return value
