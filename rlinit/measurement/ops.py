"""Measuring the ops of a torch model on the devices that are present.

The whole exported program runs again and again by the local executor, as a plan that puts every op on one device, each
op between two readings of the clock (CUDA events on GPUs). So ops find caches, allocators and neighbours as they do
when a plan runs, which a loop over one op alone would not show. The first passes warm up and do not count; the others
give a median and an interquartile range, scaled so that all ops add up to what a pass takes (`sum_factor`). Equal ops
(same kind, shapes, types, layouts and arguments) share one figure, taken from the measurements of them all.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlinit.costs.table import CostRow, CostTable
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.measurement.cache import Figure, MeasuredCache
from rlinit.plan import Batch, DeviceUse, Plan

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torch.fx import Node

    from rlinit.executors.lowering.torch_program import TorchProgram

__all__ = [
    "Measuring",
    "cpu_name",
    "device_versions",
    "figure_of",
    "measure_ops",
    "physical_device",
    "placed_plan",
    "sum_factor",
    "torch_threads",
]

_METHOD = "in passes, v2"
"""Part of the cache's keys: figures of another way to measure do not compare."""


@dataclass(frozen=True, slots=True)
class Measuring:
    """How to measure.

    Parameters
    ----------
    warmup
        Passes over the program that do not count.
    repeats
        Passes that count.
    threads
        CPU threads of an op; None: as many as torch uses now. A plan over several CPU workers runs each of them with
        its share of the threads (see `LocalExecutor`), so measure with that share.
    time_limit_s
        Stop repeating once a device at a batch size has taken this long; warm-up and two passes are made anyway.
        None: no limit.
    clock
        ``wall``, or ``processor``: seconds that the thread was at work. For machines in use, where other work stretches
        what the wall shows; for one CPU worker of one thread.

    Raises
    ------
    InvalidPlan
        Negative warm-up, fewer than two repeats (they would have no spread), no threads, a negative limit.
    """

    warmup: int = 2
    repeats: int = 10
    threads: int | None = None
    time_limit_s: float | None = None
    clock: Literal["wall", "processor"] = "wall"

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.repeats < 2:
            raise InvalidPlan(f"warmup is {self.warmup} and repeats {self.repeats}; expected >= 0 and >= 2")
        if self.clock == "processor" and self.threads != 1:
            raise InvalidPlan(f"clock='processor' counts one thread; threads is {self.threads}, expected 1")
        if self.threads is not None and self.threads < 1:
            raise InvalidPlan(f"threads is {self.threads}; expected >= 1")
        if self.time_limit_s is not None and not self.time_limit_s >= 0:
            raise InvalidPlan(f"time_limit_s is {self.time_limit_s}; expected >= 0")


def measure_ops(
    model: Any,
    inputs: Sequence[Any],
    graph: Graph,
    *,
    devices: Mapping[str, str] | Sequence[str] = ("cpu",),
    batches: Sequence[int] | None = None,
    settings: Measuring | None = None,
    cache: str | Path | None = None,
) -> CostTable:
    """Measure every op of a graph on devices of this machine.

    Ops of kind "input" compute nothing: they cost 0 on a CPU, and the copy from the host on a GPU. Run it on an idle
    machine; the table says how far the measurements spread.

    Parameters
    ----------
    model
        The ``torch.nn.Module`` in eval mode, or its ``torch.export.ExportedProgram``.
    inputs
        Example inputs. Their values hardly matter, but integers must be legal (numbers of tokens).
    graph
        From `from_torch` or `from_program` of the same model: tells which nodes are which op.
    devices
        device name of the table -> physical device ("cpu", "cuda:0"), or just physical devices. Names that share a
        physical device are measured once.
    batches
        Batch sizes; for each, the first dimension of the inputs is made as large, and a module is exported again; an
        exported program must have been exported with that dimension dynamic. None: the inputs as they are, noted as
        batch size 1, which is what their graph calls it.
    settings
        Warm-up, repeats, threads.
    cache
        Folder that keeps figures between runs, see `MeasuredCache`. Ops that have a figure there keep it; where all
        have one, nothing runs. None: nothing is kept.

    Raises
    ------
    InvalidPlan
        The graph is not the model's, a device is not there, a batch size is not >= 1 or asked of a program whose batch
        size is fixed, or parameters are on the ``meta`` device.
    InvalidGraph
        The model cannot be exported at a batch size.
    ExecutionFailure
        An op failed, such as for lack of memory; the message names op and device.
    InvalidCostTable
        The cache is damaged or cannot be written.
    BackendUnavailable
        torch is not installed.
    """
    settings = settings or Measuring()
    named = dict(devices) if isinstance(devices, Mapping) else {device: device for device in devices}
    physical = {name: physical_device(device) for name, device in named.items()}
    sizes: list[int | None] = [None] if batches is None else list(dict.fromkeys(batches))
    if not physical or not sizes or any(size is not None and size < 1 for size in sizes):
        raise InvalidPlan(f"devices are {list(named)} and batches {sizes}; expected some, and batch sizes >= 1")
    load = _machine_load()
    rows: list[CostRow] = []
    with torch_threads(settings.threads):
        for size in sizes:
            measured = _Program(model, inputs, graph, size)
            found = {device: measured.figures(device, settings, cache) for device in dict.fromkeys(physical.values())}
            for name, device in physical.items():
                for op, one in found[device].items():
                    rows.append(CostRow(op, name, size or 1, one.seconds, one.spread_s, one.repeats))
        notes = {f"device {name}".replace(":", "."): device_versions(device) for name, device in physical.items()}
        notes |= load | ({} if settings.clock == "wall" else {"clock": settings.clock})
    return CostTable(tuple(rows), " ".join(graph.name.split()) or "costs", notes)


def physical_device(name: str) -> torch.device:
    """Return the torch device of a name, if this machine has it.

    Raises
    ------
    InvalidPlan
        It is no name of a device ("cpu", "cuda:N"), or that device is not there.
    BackendUnavailable
        torch is not installed.
    """
    from rlinit.executors.lowering.streams import ports_of
    from rlinit.importers.torch.export import import_torch

    import_torch()
    return ports_of([name], {name: name})[0].device


def device_versions(device: torch.device) -> str:
    """Return what measurements depend on besides the op: processor and threads, or GPU; precision; versions."""
    import torch

    if device.type == "cuda":
        what = f"{device}, {torch.cuda.get_device_name(device)}, cuda {torch.version.cuda}"
        what += f", float32 matmul {torch.get_float32_matmul_precision()}, conv tf32 {torch.backends.cudnn.allow_tf32}"
    else:
        what = f"{cpu_name()}, {torch.get_num_threads()} threads"
    return f"{what}, torch {torch.__version__}"


def figure_of(samples: Sequence[float]) -> Figure:
    """Return median and interquartile range of samples, of which there must be one at least."""
    low, middle, high = np.percentile(np.asarray(samples, np.float64), [25.0, 50.0, 75.0]).tolist()
    return Figure(max(0.0, middle), max(0.0, high - low), len(samples))


def sum_factor(totals: Sequence[float], medians: Sequence[float]) -> float:
    """Return what medians are to be multiplied by to add up to the median total of the passes they are from.

    Interruptions stretch few ops of a pass, but some in every pass, so that medians of ops add up to less: by 1 to 14%
    on a machine in use.

    Parameters
    ----------
    totals
        Seconds of all ops together in each pass.
    medians
        Of each op over the passes, as often as a pass runs it.
    """
    total_s = math.fsum(medians)
    return max(1.0, float(np.median(totals)) / total_s) if total_s > 0 and len(totals) else 1.0


def placed_plan(graph: Graph, op2device: Mapping[str, str], *, inputs: int = 1) -> Plan:
    """Return a plan without times that runs the ops of a graph, in natural order, where a mapping says.

    All `inputs` go through each op at once; more than one need a model exported with a dynamic first dimension.

    Parameters
    ----------
    graph
        The graph.
    op2device
        Device name of every op by its name.
    inputs
        Inputs that go through each op at once, at least 1.
    """
    order = [graph.names[v] for v in graph.order.tolist()]
    devices = list(dict.fromkeys(op2device[op] for op in order))
    return Plan(
        objective="latency",
        status="feasible",
        values=(0.0,),
        bounds=(0.0,),
        bound_source="",
        method="given",
        assignment={op: op2device[op] for op in graph.names},
        stages=(),
        history=(),
        phase_s={},
        graph=graph.name,
        graph_fingerprint=graph.fingerprint(),
        hardware=", ".join(devices),
        hardware_fingerprint="",
        batches=tuple(Batch(op, op2device[op], (0,), float(at), float(at)) for at, op in enumerate(order)),
        devices=tuple(DeviceUse(device, sum(op2device[op] == device for op in order), 0.0, 0.0) for device in devices),
        inputs=inputs,
        shard_inputs=inputs,
    )


def _machine_load() -> dict[str, str]:
    """Return a note of how busy the machine is already, where the system tells."""
    if not hasattr(os, "getloadavg"):
        return {}
    return {"load before measuring": f"{os.getloadavg()[0]:.2f} on {os.cpu_count()} cores"}


def cpu_name() -> str:
    """Return what the system calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [" ".join(line.partition(":")[2].split()) for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let torch use that many threads on the CPU for a while; None: as many as it uses now."""
    import torch

    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Program:
    """A model at one batch size, to be measured on any device."""

    def __init__(self, model: Any, inputs: Sequence[Any], graph: Graph, batch: int | None) -> None:
        import torch

        from rlinit.executors.lowering.microbatches import is_batched
        from rlinit.executors.lowering.torch_program import export_model, torch_program
        from rlinit.importers.torch.export import export_program

        self.graph = graph
        again = batch is not None and isinstance(model, torch.nn.Module)
        self.exported: ExportedProgram = (
            export_program(model, tuple(inputs), batch=batch) if again else export_model(model, inputs)
        )
        self.program = torch_program(self.exported, inputs, list(graph.names), graph=graph)
        for node, value in self.program.constants.items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                raise InvalidPlan(f"{node.name!r} is on the meta device; model.to_empty(device='cpu') gives it memory")
        if batch is not None and not again and self.program.batch_symbol is None:
            raise InvalidPlan(
                "this exported program has a fixed batch size; leave batches out, or give the torch.nn.Module or a "
                "program exported with a dynamic first dimension"
            )
        self.inputs = tuple(inputs) if batch is None else _resized(self.program, inputs, batch)
        self.flat = self.program.flat_inputs(self.inputs)
        sizes = (value.shape[0] for node, value in self._given() if is_batched(self.program, node))
        self.num_inputs = int(next(sizes, 1))
        self.keys = _op_keys(self.program, graph, self.flat)

    def _given(self) -> Iterator[tuple[Node, Any]]:
        return zip(self.program.inputs, self.flat, strict=True)

    def figures(self, device: torch.device, settings: Measuring, folder: str | Path | None) -> dict[str, Figure]:
        """Return the figure of each op on a device, measuring those that the cache lacks."""
        method = _METHOD if settings.clock == "wall" else f"{_METHOD}, {settings.clock} clock"
        cache = None if folder is None else MeasuredCache(Path(folder), f"{device_versions(device)}, {method}")
        known = {} if cache is None else cache.read()
        missing = set(self.keys.values()) - set(known)
        if missing:
            samples: dict[str, list[float]] = {key: [] for key in missing}
            totals: dict[int, float] = {}
            for at, op, seconds in self._samples(device, settings):
                if self.keys[op] in samples:
                    samples[self.keys[op]].append(seconds)
                    totals[at] = totals.get(at, 0.0) + seconds
            fresh = {key: figure_of(values) for key, values in samples.items()}
            medians = [fresh[self.keys[op]].seconds for op in self.graph.names if self.keys[op] in fresh]
            factor = sum_factor(list(totals.values()), medians)
            fresh = {
                key: Figure(one.seconds * factor, one.spread_s * factor, one.repeats) for key, one in fresh.items()
            }
            if cache is not None:
                cache.add(fresh)
            known = {**known, **fresh}
        return {op: known[self.keys[op]] for op in self.graph.names}

    def _samples(self, device: torch.device, settings: Measuring) -> Iterator[tuple[int, str, float]]:
        """Yield pass, op and seconds of every measurement that counts."""
        from rlinit.executors.local import LocalExecutor

        fed = self._input_ops()
        started = time.perf_counter()
        executor = LocalExecutor(measure=True, clock=settings.clock)
        plan = placed_plan(self.graph, dict.fromkeys(self.graph.names, str(device)), inputs=self.num_inputs)
        with executor.load(
            plan, self.exported, self.inputs, graph=self.graph, devices={str(device): str(device)}
        ) as run:
            for at in range(settings.warmup + settings.repeats):
                late = settings.time_limit_s is not None and time.perf_counter() - started > settings.time_limit_s
                if late and at >= settings.warmup + 2:
                    return
                batches = run.run(*self.inputs).batches
                if at < settings.warmup:
                    continue
                for batch in batches:
                    if batch.op not in fed:
                        yield at, batch.op, max(0.0, batch.end_s - batch.start_s)
                for op, values in fed.items():
                    yield at, op, _copy_s(values, device)

    def _input_ops(self) -> dict[str, list[Any]]:
        """Return the tensors of each op that is an input of the model."""
        given = {node.name: value for node, value in self._given()}
        computing = {op for op in self.program.node2op.values() if op}
        found = {}
        for v, op in enumerate(self.graph.names):
            if op not in computing:
                names = self.graph.extras.get(v, {}).get("nodes", [op])
                found[op] = [given[name] for name in names if name in given]
        return found


def _copy_s(values: Sequence[Any], device: torch.device) -> float:
    """Return seconds to copy inputs from the host to a device; 0 where that is the host."""
    if device.type == "cpu":
        return 0.0
    import torch

    torch.cuda.synchronize(device)
    started = time.perf_counter()
    for value in values:
        value.to(device)
    torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _resized(program: TorchProgram, inputs: Sequence[Any], batch: int) -> tuple[Any, ...]:
    """Return the inputs with as many entries as the program expects, copies of the first."""
    import torch
    from torch.utils import _pytree as pytree

    leaves, spec = pytree.tree_flatten((tuple(inputs), {}))
    resized = []
    for node, leaf in zip(program.inputs, leaves, strict=True):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and isinstance(leaf, torch.Tensor) and value.dim() == leaf.dim() > 0:
            rows = value.shape[0] if isinstance(value.shape[0], int) else batch
            leaf = leaf if leaf.shape[0] == rows else leaf[:1].expand(rows, *leaf.shape[1:]).contiguous()
        resized.append(leaf)
    args: tuple[Any, ...] = pytree.tree_unflatten(resized, spec)[0]
    return args


def _op_keys(program: TorchProgram, graph: Graph, flat: Sequence[Any]) -> dict[str, str]:
    """Return for each op a text that equal ops share: kinds, shapes, types, layouts and arguments of its nodes."""
    shapes = f"inputs {[_tensor(value) for value in flat]} " if program.batch_symbol is not None else ""
    writers: dict[str, _KeyWriter] = {op: _KeyWriter() for op in graph.names}
    for node in program.nodes:
        op = program.node2op[node]
        if op:
            writers[op].add(node)
    given = {node.name: value for node, value in zip(program.inputs, flat, strict=True)}
    keys = {}
    for v, op in enumerate(graph.names):
        text = writers[op].text()
        names = graph.extras.get(v, {}).get("nodes", [op])
        keys[op] = f"{shapes}{text}" if text else f"input {[_tensor(given[name]) for name in names if name in given]}"
    return keys


class _KeyWriter:
    """Writes the calls of one op; values are numbered as they appear, so that names do not matter."""

    def __init__(self) -> None:
        self._number: dict[Node, int] = {}
        self._calls: list[str] = []

    def add(self, node: Node) -> None:
        """Write one call."""
        named = "".join(f", {key}={self._argument(value)}" for key, value in node.kwargs.items())
        args = ", ".join(self._argument(value) for value in node.args)
        self._calls.append(f"{node.target}({args}{named})")
        self._number[node] = len(self._number)

    def text(self) -> str:
        """Return all calls."""
        return "; ".join(self._calls)

    def _argument(self, argument: Any) -> str:
        from torch.fx import Node

        if isinstance(argument, Node):
            if argument.op == "get_attr":
                return _body(argument)
            new = argument not in self._number
            number = self._number.setdefault(argument, len(self._number))
            return f"%{number}:{_tensor(argument.meta.get('val'))}" if new else f"%{number}"
        if isinstance(argument, (list, tuple)):
            return f"[{', '.join(map(self._argument, argument))}]"
        if isinstance(argument, slice):
            return f"{self._argument(argument.start)}:{self._argument(argument.stop)}:{self._argument(argument.step)}"
        if type(argument).__name__ == "device":
            return "device"
        return repr(argument)


def _body(node: Node) -> str:
    """Return the code of a control-flow op's branch, or what else an attribute is."""
    value: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return str(getattr(value, "code", "")) or _tensor(value)


def _tensor(value: Any) -> str:
    """Return type, shape and, where it is not the plain one, layout."""
    import torch

    if not isinstance(value, torch.Tensor):
        return type(value).__name__ if not isinstance(value, (bool, int, float, str)) else repr(value)
    text = f"{str(value.dtype).removeprefix('torch.')}{[str(size) for size in value.shape]}".replace("'", "")
    if value.layout != torch.strided:
        return f"{text} {value.layout}"
    symbolic = any(not isinstance(size, int) for size in value.shape)
    return text if not symbolic and value.is_contiguous() else f"{text} strides {[str(s) for s in value.stride()]}"
