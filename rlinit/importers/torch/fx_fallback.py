"""Modules that `torch.export` cannot take, prepared for it by way of `torch.fx`.

`torch.fx` follows forward with symbols and lets no value through, so it never takes a branch on data for granted. Where
it cannot follow a submodule, the submodule becomes one call. The traced module is run on the example inputs, call by
call; calls that work only on real values (branches on data, NumPy, quantised weights) are recorded as opaque ops (see
`rlinit.importers.torch.opaque_ops`), and what results is a module that `torch.export` can take apart as any other.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from rlinit.errors import InvalidGraph
from rlinit.importers.torch.opaque_ops import holds_objects, record_call, replay_call, state_of

_TOLERANCE = 1e-4
"""Relative difference that two runs of the same kernels may have through threads."""


def fx_module(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.nn.Module:
    """Return a module of the same signature, parameters and values that consists of traced calls.

    The module is run three times on the example inputs, which therefore need real values unless everything lies on the
    meta device. Its buffers and random state are left as they were.

    Parameters
    ----------
    module, args, kwargs
        The module and example arguments; those that are no tensors are fixed.

    Raises
    ------
    InvalidGraph
        What was traced is not what the module does, or a call cannot be an op.
    Exception
        Whatever tracing or running the module raises.
    """
    with torch.no_grad(), _undisturbed(module):
        torch.manual_seed(0)
        expected = module(*_copied(args), **_copied(dict(kwargs)))
        tracer = _Tracer(module, args, kwargs)
        graph = tracer.trace(module)
        graph.set_codegen(_Structured(tracer))
        traced = torch.fx.GraphModule(module, graph, type(module).__name__)
        given = (*args, *kwargs.values())
        _Recorder(traced).run(*_copied(given))
        # Modules that are opaque now are left behind, and with them what torch.export could not read.
        traced = torch.fx.GraphModule(traced, traced.graph, type(module).__name__)
        torch.manual_seed(0)
        found = torch.fx.Interpreter(traced).run(*_copied(given))
    _compare(module, pytree.tree_leaves(expected), pytree.tree_leaves(found))

    def forward(*args: Any, **kwargs: Any) -> Any:
        return torch.fx.Interpreter(traced).run(*args, *kwargs.values())

    traced.forward = functools.wraps(module.forward)(forward)  # torch.export reads the names of its parameters
    return traced


class _Structured(torch.fx.graph.CodeGen):
    """Lets a traced graph take and give what the module does, where it is run by an interpreter."""

    def __init__(self, tracer: _Tracer) -> None:
        super().__init__()
        self._num_inputs, self._structure = len(tracer.leaves), tracer.result_structure

    def process_inputs(self, *args: Any) -> Any:
        """Return flat inputs."""
        leaves = pytree.tree_leaves(args)
        if len(leaves) != self._num_inputs:
            raise InvalidGraph(f"there are {len(leaves)} inputs; expected {self._num_inputs}")
        return leaves

    def process_outputs(self, outputs: Any) -> Any:
        """Return outputs in their structure."""
        return pytree.tree_unflatten(list(outputs), self._structure)


class _Tracer(torch.fx.Tracer):
    """Makes a placeholder of each argument, of which only tensors are read, and a call of what it cannot follow."""

    def __init__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.leaves, self._structure = pytree.tree_flatten((args, dict(kwargs)))
        self._names = _argument_names(module, args, kwargs)
        self.result_structure: Any = None

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Return forward with its results flattened; it gets placeholders for tensors, and other values themselves."""
        leaves = []
        for name, leaf in zip(self._names, self.leaves, strict=True):
            proxy = self.create_proxy("placeholder", name, (), {})
            leaves.append(proxy if isinstance(leaf, torch.Tensor) else leaf)
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)

        def flat(root: Any) -> list[Any]:
            results, self.result_structure = pytree.tree_flatten(root_fn(root, *args, **kwargs))
            return results

        return flat, [self.root]

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        """Make one call of compiled modules and of torch's own."""
        return isinstance(m, torch.jit.ScriptModule) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: torch.nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Follow a submodule; where that fails, take back what was traced and make one call of it."""
        last = next(iter(reversed(self.graph.nodes)), None)
        stack, calls = dict(self.module_stack), dict(self.num_calls)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:  # whatever forward raises on symbols
            for node in reversed(list(self.graph.nodes)):
                if node is last:
                    break
                self.graph.erase_node(node)
            self.module_stack.clear()
            self.module_stack.update(stack)
            self.num_calls.clear()
            self.num_calls.update(calls)
        path = self.path_of_module(m)
        self.module_stack[path] = (path, type(m))
        try:
            return self.create_proxy("call_module", path, args, kwargs)
        finally:
            self.module_stack.popitem()


class _Recorder(torch.fx.Interpreter):
    """Runs a traced module on real values and replaces the calls that need them by opaque ones."""

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a call, as an opaque one if it does not work on tensors without values."""
        if n.op not in ("call_function", "call_method", "call_module"):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        function = self._function(n)
        if _works_without_values(function, args, kwargs):
            return super().run_node(n)
        call = record_call(*self._label(n, function), function, tuple(args), kwargs)
        held = self._held(n, function) if isinstance(function, torch.nn.Module) else {}
        n.op, n.target = "call_function", replay_call
        n.args, n.kwargs = (call, held, n.args, n.kwargs), {}
        return super().run_node(n)

    def _held(self, node: torch.fx.Node, module: torch.nn.Module) -> dict[str, torch.fx.Node]:
        """Return a new node for each parameter and buffer of the module that a node calls."""
        graph, held = node.graph, {}
        with graph.inserting_before(node):
            for name, value in state_of(module).items():
                held[name] = graph.get_attr(f"{node.target}.{name}")
                self.env[held[name]] = value
        return held

    def _function(self, node: torch.fx.Node) -> Callable[..., Any]:
        if node.op == "call_module":
            found: Callable[..., Any] = self.fetch_attr(str(node.target))
            return found
        if node.op == "call_method":
            name = str(node.target)
            return lambda value, *args, **kwargs: getattr(value, name)(*args, **kwargs)
        return node.target  # type: ignore[return-value]

    def _label(self, node: torch.fx.Node, function: Callable[..., Any]) -> tuple[str, str]:
        """Return what errors call a call, and its kind of op."""
        if node.op == "call_module":
            return f"module {str(node.target)!r}", getattr(function, "original_name", type(function).__name__)
        name = str(node.target) if node.op == "call_method" else getattr(function, "__name__", str(function))
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        where = f" in module {stack[-1][0]!r}" if stack else ""
        return f"{'method' if node.op == 'call_method' else 'function'} {name!r}{where}", name


def _works_without_values(function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether a call can be traced further: it runs on tensors that have a shape and no values."""
    if holds_objects(function):
        return False
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())

    def fake(value: Any) -> Any:
        return mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value

    try:
        given = pytree.tree_map(fake, (tuple(args), dict(kwargs)))
        with mode:
            if isinstance(function, torch.nn.Module):
                held = {name: fake(value) for name, value in state_of(function).items()}
                torch.func.functional_call(function, held, *given)
            else:
                function(*given[0], **given[1])
    except Exception:  # torch's own, and whatever the call raises on them
        return False
    return True


def _argument_names(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """Return a name for each leaf of the arguments, after the parameter of forward that it belongs to."""
    parameters = list(inspect.signature(module.forward).parameters)
    named = [(parameters[min(at, len(parameters) - 1)], value) for at, value in enumerate(args)] + list(kwargs.items())
    names = []
    for name, value in named:
        for path, _ in pytree.tree_leaves_with_path(value):
            names.append(re.sub(r"\W+", "_", f"{name}{pytree.keystr(path)}").strip("_"))
    return names


@contextlib.contextmanager
def _undisturbed(module: torch.nn.Module) -> Iterator[None]:
    """Give a module its buffers, and torch its random state, back in the end."""
    kept = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for name, buffer in module.named_buffers():
                if name in kept and kept[name].shape == buffer.shape and buffer.device.type != "meta":
                    buffer.copy_(kept[name])


def _copied(values: Any) -> Any:
    """Return arguments whose tensors may be written to."""
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, values)


def _compare(module: torch.nn.Module, expected: list[Any], found: list[Any]) -> None:
    """Refuse a trace that does not give what the module gives."""
    same = len(expected) == len(found)
    for one, other in zip(expected, found, strict=False):
        if not isinstance(one, torch.Tensor):
            same = same and not isinstance(other, torch.Tensor)
            continue
        same = same and isinstance(other, torch.Tensor) and one.shape == other.shape and one.dtype == other.dtype
        if same and one.device.type != "meta":
            same = torch.allclose(one.double(), other.double(), rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
    if not same:
        raise InvalidGraph(
            f"what torch.fx traced of {type(module).__name__} does not give what the module gives; its forward asks "
            "for the type of a tensor, or draws random numbers"
        )
