"""The local executor: one process, one worker thread with its own stream for each device of a plan.

Each worker runs straight-line code generated from its program (see `rlinit.executors.lowering.device_programs`), so
that running an op by a plan costs hardly more than running it without. Logical devices may share a physical one: then
nothing is copied between them. Between different ones tensors are copied asynchronously on a stream of their own.
Outputs end up on the CPU.
"""

from __future__ import annotations

import linecache
import queue
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Literal

from rlinit.checker.compatibility import require_graph
from rlinit.errors import ExecutionFailure, InvalidPlan
from rlinit.executors.compatibility import require_program
from rlinit.executors.lowering.codegen import DeviceCode, device_code
from rlinit.executors.lowering.device_programs import DevicePrograms, lower_devices
from rlinit.executors.lowering.microbatches import is_batched, probe
from rlinit.executors.lowering.streams import Port, ports_of
from rlinit.executors.lowering.torch_program import TorchProgram, on_device, torch_program
from rlinit.executors.protocol import Execution
from rlinit.graph import Graph
from rlinit.plan import Batch, Plan

if TYPE_CHECKING:
    import torch
    from torch.fx import Node


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Runs placement plans, and stage plans one input at a time, on the devices of this process.

    Outputs equal those of the unplaced model bit for bit where ops run on the same kind of device, in batches of the
    same size and with the same number of threads; otherwise up to the rounding of the kernels.

    Parameters
    ----------
    threads
        CPU threads of all workers on the CPU together; None: as many as torch uses now.
    time_limit_s
        Seconds after which a run is given up; None: no limit.
    measure
        Measure every batch.
    clock
        ``wall``, or ``processor``: seconds that the thread was at work, which other work on the machine does not
        stretch. For plans that run on one CPU worker of one thread.
    """

    threads: int | None = None
    time_limit_s: float | None = None
    measure: bool = False
    clock: Literal["wall", "processor"] = "wall"

    def execute(
        self,
        plan: Plan,
        model: Any,
        inputs: Sequence[Any],
        *,
        kwargs: Mapping[str, Any] | None = None,
        graph: Graph | None = None,
        devices: Mapping[str, str] | None = None,
    ) -> Execution:
        """Load a plan and run it once; see `Executor.execute`. For many runs, `load` once."""
        with self.load(plan, model, inputs, kwargs=kwargs, graph=graph, devices=devices) as program:
            return program.run(*inputs, kwargs=kwargs)

    def load(
        self,
        plan: Plan,
        model: Any,
        inputs: Sequence[Any],
        *,
        kwargs: Mapping[str, Any] | None = None,
        graph: Graph | None = None,
        devices: Mapping[str, str] | None = None,
    ) -> LocalProgram:
        """Export the model, move its parameters and start the workers.

        Parameters
        ----------
        plan, model, inputs, kwargs, graph, devices
            As for `Executor.execute`.

        Raises
        ------
        InvalidPlan
            The plan is not for this model, or cannot be run so; or a device that it uses is not there. Plans that take
            batches apart are compared with the whole model on random inputs first, which takes as long as two runs.

        Notes
        -----
        A module is exported once for each number of inputs that the plan runs at once. Where values of several inputs
        cannot be told apart (tokens in another order, counts over a batch), batches run input by input: a warning says
        so.
        """
        if plan.assignment is None:
            raise InvalidPlan(f"the plan is {plan.status}; there is no schedule to run")
        if graph is not None:
            require_graph(plan, graph)
        program = torch_program(
            model,
            inputs,
            list(plan.assignment),
            kwargs=kwargs,
            graph=graph,
            plan_inputs=plan.inputs,
            parts={len(batch.shards) * plan.shard_inputs for batch in plan.batches},
        )
        if graph is None:
            require_program(plan, program.exported)
        flat = program.flat_inputs(inputs, kwargs)
        known = {use.device for use in plan.devices} | {use.device for use in plan.stages}
        for name in devices or {}:
            if name not in known:
                raise InvalidPlan(
                    f"devices names {name!r}, which the plan does not know; expected some of {sorted(known)}"
                )
        try:
            return self._loaded(plan, program, flat, devices or {})
        except InvalidPlan as problem:
            if plan.inputs == plan.shard_inputs:
                raise
            try:
                loaded = self._loaded(plan, program, flat, devices or {}, apart=True)
            except InvalidPlan:
                raise problem from None
            warnings.warn(f"{problem}; now each input of a batch runs on its own, slower than planned", stacklevel=2)
            return loaded

    def _loaded(
        self, plan: Plan, program: TorchProgram, flat: list[Any], devices: Mapping[str, str], *, apart: bool = False
    ) -> LocalProgram:
        """Return the loaded plan, compared with the whole model where it takes batches apart."""
        programs = lower_devices(plan, program, apart=apart, measure=self.measure)
        used = {name: device for name, device in devices.items() if name in programs.devices}
        loaded = LocalProgram(program, programs, used, self)
        if programs.split_nodes or apart:
            try:
                probe(program, lambda given: loaded.run_flat(given)[0], flat, programs.split_nodes, program.batch)
            except BaseException:
                loaded.close()
                raise
        return loaded


class LocalProgram:
    """A loaded plan; `run` it as often as wanted, then `close` it (or use it in a ``with``).

    While it is open, torch's count of threads is the share of one worker.
    """

    def __init__(
        self, program: TorchProgram, programs: DevicePrograms, devices: Mapping[str, str], settings: LocalExecutor
    ) -> None:
        import torch

        self._program, self._programs, self._settings = program, programs, settings
        self.input_names = tuple(node.name for node in program.inputs)
        self._clock = time.thread_time if settings.clock == "processor" else time.perf_counter
        self._ports = ports_of(programs.devices, devices, self._clock)
        self._codes = _codes(program, programs, self._ports)
        for device in {port.device for port in self._ports if port.device.type == "cuda"}:
            torch.cuda.synchronize(device)  # constants were computed on another stream than the programs use
        self._threads_before = torch.get_num_threads()
        on_cpu = sum(port.device.type == "cpu" for port in self._ports[:-1])
        share = max(1, (settings.threads or self._threads_before) // max(1, on_cpu))
        self._lock = threading.Lock()
        self._closed = False
        self._queues: list[queue.SimpleQueue[_Run | None]] = [queue.SimpleQueue() for _ in programs.devices]
        # One program that nobody watches runs in the calling thread: waking another one takes long on a busy machine.
        self._inline = len(programs.devices) == 1 and settings.time_limit_s is None
        if settings.clock == "processor" and (not self._inline or on_cpu != 1 or share != 1):
            raise InvalidPlan("clock='processor' counts one thread: one CPU device, threads=1 and no time limit")
        if self._inline:
            torch.set_num_threads(share)
        self._workers = [
            threading.Thread(target=self._work, args=(rank, share), name=f"program of {device}", daemon=True)
            for rank, device in enumerate(() if self._inline else programs.devices)
        ]
        for worker in self._workers:
            worker.start()

    def __enter__(self) -> LocalProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and give torch its threads back."""
        import torch

        with self._lock:
            if self._closed:
                return
            self._closed = True
            for one in self._queues:
                one.put(None)
            for worker in self._workers:
                worker.join(timeout=5.0)
            torch.set_num_threads(self._threads_before)
            for code in self._codes:
                linecache.cache.pop(code.file_name, None)

    def run(self, *inputs: Any, kwargs: Mapping[str, Any] | None = None) -> Execution:
        """Run the plan on inputs of the shapes it was loaded with.

        Parameters
        ----------
        inputs, kwargs
            Positional and keyword inputs.

        Raises
        ------
        InvalidPlan
            The inputs do not fit.
        ExecutionFailure
            An op failed, or the time limit passed; the message names the op and the device. Nothing runs on after it,
            but for an op that does not return.
        """
        flat = self._program.flat_inputs(inputs, kwargs)
        self._check_batch(flat)
        outputs, seconds, batches = self.run_flat(flat)
        return Execution(self._program.structured(outputs), seconds, batches)

    def run_flat(self, flat: Sequence[Any]) -> tuple[list[Any], float, tuple[Batch, ...]]:
        """Run on flat inputs that are checked already; return flat outputs, seconds, and measured batches.

        Raises
        ------
        ExecutionFailure
            The program was closed, an op failed, or the time limit passed.
        """
        with self._lock:
            if self._closed:
                raise ExecutionFailure("the program was closed")
            run = _Run(len(self._programs.cells), list(flat), self._programs.devices, self._settings.time_limit_s)
            started = self._clock()
            for one in self._queues[: len(self._workers)]:
                one.put(run)
            try:
                if self._inline:
                    self._serve(0, run)
                outputs = self._collect(run)
                run.join()
            except BaseException as problem:  # Ctrl-C: let the workers stop, too
                run.fail(ExecutionFailure("the run was interrupted"), problem)
                raise
            seconds = self._clock() - started
        if run.failure is not None:
            raise run.failure
        return outputs, seconds, self._measured(run, started)

    def _check_batch(self, flat: Sequence[Any]) -> None:
        expected = self._program.batch
        for node, value in zip(self._program.inputs, flat, strict=True):
            if is_batched(self._program, node) and value.shape[0] != expected:
                raise InvalidPlan(f"input {node.name!r} has {value.shape[0]} rows; the plan was loaded for {expected}")

    def _work(self, rank: int, threads: int) -> None:
        """Run the code of a device program for every run that comes; in a thread of its own."""
        import torch

        torch.set_num_threads(threads)
        while True:
            run = self._queues[rank].get()
            if run is None:
                return
            self._serve(rank, run)
            del run

    def _serve(self, rank: int, run: _Run) -> None:
        import torch

        with torch.no_grad():
            self._run_device(rank, self._ports[rank], self._codes[rank], run)
        run.done(rank)

    def _run_device(self, rank: int, port: Port, code: DeviceCode, run: _Run) -> tuple[Any, ...]:
        name = self._programs.devices[rank] if rank < len(self._programs.devices) else "outputs"
        try:
            with port.streams():
                result = code.call(run.inputs, port.bring, run.receiver(port), run.sender(port), port.begin, port.end)
                run.marks[rank] = port.finish()
                return result
        except _Stopped:
            return ()
        except Exception as problem:
            op = code.op_at(problem.__traceback__)
            what = f"op {op!r}" if op else "moving data"
            run.fail(ExecutionFailure(f"{what} failed on device {name!r} ({port.device}): {problem}"), problem)
            return ()

    def _collect(self, run: _Run) -> list[Any]:
        """Run the collector in the calling thread; return the flat outputs."""
        import torch

        with torch.no_grad():
            return list(self._run_device(len(self._programs.devices), self._ports[-1], self._codes[-1], run))

    def _measured(self, run: _Run, started: float) -> tuple[Batch, ...]:
        batches = []
        for rank in range(len(self._programs.devices)):
            for at, begin_s, end_s in run.marks.get(rank, ()):
                task = self._programs.tasks[at]
                device = self._programs.devices[rank]
                batches.append(Batch(task.op, device, task.microbatches, begin_s - started, end_s - started))
        return tuple(sorted(batches, key=lambda batch: batch.start_s))


def _codes(program: TorchProgram, programs: DevicePrograms, ports: Sequence[Port]) -> list[DeviceCode]:
    """Generate the code of every device program; constants are moved to each physical device once."""
    constants = _Constants(program)
    codes = []
    for name, port, one in zip((*programs.devices, "outputs"), ports, programs.programs, strict=True):
        held = {at: constants.constant(node, port.device) for at, node in one.constants.items()}
        codes.append(device_code(name, one, SimpleNamespace(device=port.device, **held)))
    return codes


class _Constants:
    """Constants on the devices that read them: one copy a physical device, computed ones included."""

    def __init__(self, program: TorchProgram) -> None:
        self._program = program
        self._held: dict[tuple[Any, torch.device], Any] = {}

    def constant(self, node: Node, device: torch.device) -> Any:
        """Return a constant on a device, from the first time on."""
        if (node, device) not in self._held:
            self._held[node, device] = self._made(node, device)
        return self._held[node, device]

    def _made(self, node: Node, device: torch.device) -> Any:
        import torch
        from torch.fx.node import map_arg

        if node in self._program.constants:
            value = self._program.constants[node]
            return value.detach().to(device) if isinstance(value, torch.Tensor) else value
        args = on_device(map_arg(node.args, lambda other: self.constant(other, device)), device)
        kwargs = on_device(map_arg(node.kwargs, lambda other: self.constant(other, device)), device)
        with torch.no_grad():
            return node.target(*args, **kwargs)  # type: ignore[operator]


class _Stopped(Exception):
    """Another device program failed."""


class _Run:
    """The state of one run: cells, who failed, and how many programs are still at work."""

    def __init__(self, num_cells: int, inputs: list[Any], devices: Sequence[str], time_limit_s: float | None) -> None:
        self.inputs = inputs
        self.failure: ExecutionFailure | None = None
        self.marks: dict[int, list[tuple[int, float, float]]] = {}
        self._cells: list[Any] = [None] * num_cells
        self._full = [threading.Event() for _ in range(num_cells)]
        self._ended = threading.Semaphore(0)
        self._working = dict(enumerate(devices))
        self._num_programs = len(devices)
        self._limit_s = time_limit_s
        self._deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
        self._failing = threading.Lock()

    def receiver(self, port: Port) -> Callable[[int], Any]:
        """Return what waits for a cell and brings its value to the port's device."""
        cells, full, receive = self._cells, self._full, port.receive

        def recv(cell: int) -> Any:
            event = full[cell]
            if not event.is_set() and not event.wait(self._left_s()):
                self._time_out()
            if self.failure is not None:
                raise _Stopped
            value, cells[cell] = cells[cell], None
            return receive(value)

        return recv

    def sender(self, port: Port) -> Callable[[int, Any], None]:
        """Return what puts a value into a cell."""
        cells, full, send = self._cells, self._full, port.send

        def send_(cell: int, value: Any) -> None:
            cells[cell] = send(value)
            full[cell].set()
            if self.failure is not None:
                raise _Stopped

        return send_

    def fail(self, failure: ExecutionFailure, cause: BaseException | None = None) -> None:
        """End the run with an error, the first one that is reported; wake everybody."""
        with self._failing:
            if self.failure is None:
                failure.__cause__ = cause
                self.failure = failure
        for event in self._full:
            event.set()

    def done(self, rank: int) -> None:
        """Tell that a device program is over."""
        self._working.pop(rank, None)
        self._ended.release()

    def join(self) -> None:
        """Wait until all device programs are over, or a failed run's grace time has passed."""
        for _ in range(self._num_programs):
            left = 5.0 if self.failure is not None else self._left_s()
            if not self._ended.acquire(timeout=left):
                if self.failure is not None:
                    return
                self._time_out(stop=False)

    def _left_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _time_out(self, *, stop: bool = True) -> None:
        busy = ", ".join(map(repr, self._working.values())) or "none"
        self.fail(ExecutionFailure(f"the run took more than {self._limit_s} s; devices still at work: {busy}"))
        if stop:
            raise _Stopped
