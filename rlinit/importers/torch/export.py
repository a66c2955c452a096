"""PyTorch modules as computation graphs, by way of `torch.export`.

A module is exported to a program of ATen ops with known shapes (`export_program`), and the program becomes a graph
(`from_program`); `from_torch` does both. Nothing is computed, so modules on the ``meta`` device need no memory.
"""

from __future__ import annotations

import contextlib
import sysconfig
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rlinit.errors import InvalidGraph, imported
from rlinit.graph import Graph
from rlinit.importers.common.blocks import grouped
from rlinit.importers.common.parameters import Sharing
from rlinit.importers.common.precision import Dtype, Precision
from rlinit.importers.torch.known_warnings import without_known_warnings

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.nn import Module

Granularity = Literal["op", "layer", "module"]
Method = Literal["trace", "strict"]
"""How a module is traced; see `export_program`."""
_TRACING = threading.Lock()
"""Held while torch traces, which keeps what it is at in globals."""

_OTHER: Mapping[Method, Method] = {"trace": "strict", "strict": "trace"}


def import_torch() -> Any:
    """Return the torch module.

    Raises
    ------
    BackendUnavailable
        torch is not installed.
    """
    return imported("torch", "reading PyTorch models", "rlinit[torch]")


def from_torch(
    module: Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    batch: int | None = None,
    granularity: Granularity = "op",
    sharing: Sharing = "hold",
    name: str | None = None,
    method: Method = "trace",
    dtype: Dtype = None,
    keep: Sequence[str] = (),
) -> Graph:
    """Return the computation graph of a module called with the given arguments: `export_program`, `from_program`.

    To run a plan later, export once and keep the program: the graph's ops are nodes of that program.

    Parameters
    ----------
    module, args, kwargs, batch, method
        See `export_program`.
    granularity, sharing, dtype, keep, name
        See `from_program`; the name is by default the module's class.

    Raises
    ------
    InvalidGraph
        A module that cannot be traced, or a program `from_program` refuses.
    BackendUnavailable
        torch is not installed.
    """
    program = export_program(module, args, kwargs, batch=batch, method=method)
    return from_program(
        program, granularity=granularity, sharing=sharing, dtype=dtype, keep=keep, name=name or type(module).__name__
    )


def export_program(
    module: Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    batch: int | None = None,
    method: Method = "trace",
) -> ExportedProgram:
    """Return the module's forward as a program of ATen ops without in-place writes, for inference.

    The mode of the module is kept: call ``module.eval()`` first unless dropout and batch statistics are wanted.
    Where the program writes in place (``relu_``, assignment to a slice) it is rewritten so that every op only reads
    its inputs; its values are unchanged. Language models of transformers, whose forward returns a cache of keys and
    values besides, are exported without it (``config.use_cache``), unless ``use_cache`` is among the arguments.

    Parameters
    ----------
    module
        Any `torch.nn.Module`, on any device; on ``meta`` nothing is allocated.
    args, kwargs
        Arguments of its forward; tensors may lie on ``meta`` too. Their values do not matter, their shapes do.
    batch
        Batch size to trace for: the first dimension of the first tensor argument is the batch, and every tensor
        whose first dimension is as large gets this one instead. None: the arguments as they are.
    method
        "trace" runs forward on tensors without data (`torch.export`, ``strict=False``). "strict" reads its bytecode
        by TorchDynamo, slower, and can trace what calls out of Python less often.

    Raises
    ------
    InvalidGraph
        The module cannot be traced; the message has torch's reason, the line of the model, and what else to try.
    BackendUnavailable
        torch is not installed.
    """
    torch = import_torch()
    if not isinstance(module, torch.nn.Module):
        raise InvalidGraph(f"expected a torch.nn.Module, got a {type(module).__name__}")
    args, kwargs = tuple(args), dict(kwargs or {})
    if batch is not None:
        args, kwargs = _with_batch(args, kwargs, batch)
    return exported(module, args, kwargs, method)


def exported(
    module: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], method: Method, dynamic_shapes: Any = None
) -> ExportedProgram:
    """Return the program of a module; `dynamic_shapes` as for `torch.export.export`, all else as `export_program`.

    Parameters
    ----------
    module
        The module, in the mode (training or not) in which it is to run.
    args, kwargs
        Example arguments of a call of it.
    method
        "trace" or "strict".
    dynamic_shapes
        As for `torch.export.export`; None makes every dimension static.

    Raises
    ------
    InvalidGraph
        An unknown method, or a module that cannot be traced; the message says why and what to change.
    """
    import torch

    from rlinit.importers.torch.functionalise import without_writes

    if method not in get_args(Method):
        raise InvalidGraph(f"method is {method!r}; expected one of {', '.join(map(repr, get_args(Method)))}")
    try:
        with _TRACING, torch.no_grad(), _without_cache(module, kwargs), without_known_warnings():
            program = torch.export.export(
                module, args, dict(kwargs), strict=method == "strict", dynamic_shapes=dynamic_shapes
            )
            return without_writes(program)
    except Exception as problem:  # torch raises its own, TypeError for wrong arguments, and whatever forward raises
        reason = next((line.strip() for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
        raise InvalidGraph(
            f"{type(module).__name__} cannot be traced{_place(problem)}: {reason}. Check that the call runs; branches "
            f"on tensor values need torch.cond or torch.where. Or try method={_OTHER[method]!r}, or export to ONNX"
        ) from problem


@contextlib.contextmanager
def _without_cache(module: Module, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Switch off what models of transformers would return for the next call, as their configurations say.

    A cache is an object that programs cannot return, and of no use where tokens come one sequence at a time.
    """
    configs = {id(config): config for part in module.modules() if (config := getattr(part, "config", None)) is not None}
    changed = []
    if "use_cache" not in kwargs:
        changed = [config for config in configs.values() if getattr(config, "use_cache", None) is True]
    for config in changed:
        config.use_cache = False
    try:
        yield
    finally:
        for config in changed:
            config.use_cache = True


def from_program(
    program: ExportedProgram,
    *,
    granularity: Granularity = "op",
    sharing: Sharing = "hold",
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    dtype: Dtype = None,
    keep: Sequence[str] = (),
    name: str = "torch",
) -> Graph:
    """Return the computation graph of an exported program.

    ``granularity="op"``: one op for each ATen call, named as its node in ``program.graph``; reads of one output of a
    call with several (``getitem``) belong to the call. ``"module"``: one op for each call of a module that has
    no submodules, named by the module's path (``path/call1`` for later calls); what lies between stays as it is.
    ``"layer"``: the ops of each repeated block of the model stay together, colocated; see `Graph.group`. User inputs
    are ops of kind "input".

    * ``out_bytes`` covers the outputs of an op that another op or the caller reads, all of them together.
    * ``flops`` follows `torch.utils.flop_counter`: matrix products, convolutions, attention; elementwise ops have 0;
      control flow (`torch.cond`, loops) has those of its largest branch, one iteration.
    * What depends on no input (masks, positions, reshaped weights) is folded: its reader holds it. So is arithmetic
      on sizes. Random ops are never folded. `constant_nodes` names these nodes.
    * Parameters and how shared ones count: see `Holdings`.

    Extras of an op: ``node`` (name of its node in ``program.graph``, or of its module), ``nodes`` (all of its nodes
    in order), ``module`` (path of the module it belongs to), ``outputs`` (a list of [dtype, dimension, ...]),
    ``scopes`` ([path, class] of the modules around it), ``holds`` (other modules whose folded weights it has) and
    ``view`` (True where the output shares its input's storage); ``axes`` and ``operands``: see
    `rlinit.importers.common.axes`.

    Parameters
    ----------
    program
        From `export_program` or `torch.export.export`; one that writes in place is rewritten first, and the graph's
        ops are then nodes of the rewritten program, which `export_program` alone gives you.
    granularity, sharing
        See above and `Holdings`.
    batch
        Value of a dynamic dimension that is the first of an input; None: 1, or the least the program allows.
    dims
        Values of other dynamic dimensions: ``{"input_name[axis]": size}`` or ``{"symbol": size}``.
    dtype
        What floating-point weights and activations are counted in ("fp16", ("int4", "fp16"), ...); see `Precision`.
    keep
        Modules to keep whole, by path or class; see `Graph.group`.
    name
        The graph's name.

    Raises
    ------
    InvalidGraph
        A dimension that depends on data or that no value was chosen for, no op that depends on an input; the message
        names the node.
    """
    import_torch()
    from rlinit.importers.torch.functionalise import without_writes
    from rlinit.importers.torch.program import ProgramReader

    reader = ProgramReader(without_writes(program), granularity, sharing, batch, dims or {}, Precision.of(dtype))
    graph = reader.graph(name)
    return grouped(graph, "layer", keep) if granularity == "layer" else grouped(graph, "op", keep) if keep else graph


def constant_nodes(program: ExportedProgram) -> frozenset[str]:
    """Return the nodes of a program that belong to no op: constants, arithmetic on sizes, checks.

    They depend on no input's values, so an executor may evaluate them once, anywhere. Parameters are not among them.
    """
    import_torch()
    from rlinit.importers.torch.program import ProgramReader

    return ProgramReader(program, "op", "hold", None, {}, Precision()).constant_nodes()


def _with_batch(args: tuple[Any, ...], kwargs: dict[str, Any], batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with another batch size."""
    import torch
    from torch.utils import _pytree as pytree

    if batch < 1:
        raise InvalidGraph(f"batch is {batch}; expected an integer >= 1")
    leaves, spec = pytree.tree_flatten((args, kwargs))
    sizes = [leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
    if not sizes or sizes[0] == 0:
        raise InvalidGraph("a batch size was given, but no argument is a tensor with a first dimension to change")

    def resized(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0 or leaf.shape[0] != sizes[0]:
            return leaf
        return leaf[:1].expand(batch, *leaf.shape[1:]).contiguous()

    changed: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten([resized(leaf) for leaf in leaves], spec)
    return changed


def _place(problem: Exception) -> str:
    """Return the innermost line that is not torch's, Python's or this package's, as " at file:line (text)"."""
    import torch

    homes = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]), sysconfig.get_path("stdlib"), "<")
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if not frame.filename.startswith(homes)]
    return f" at {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].line})" if frames else ""
