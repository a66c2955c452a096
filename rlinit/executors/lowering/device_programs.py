"""From a plan and a program to what each device does: a list of `instructions` for each device.

There is a program for each device of the plan, and one of the collector, which gathers the outputs. Values of a program
are numbered; a value is what one node makes for some micro-batches of the inputs. Programs meet in cells: one sends,
another receives. All follow one order of batches in which producers come first, so that no two can wait for each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rlinit.errors import InvalidPlan
from rlinit.executors.lowering.instructions import (
    Begin,
    Call,
    Constant,
    End,
    Fetch,
    Free,
    Instruction,
    Join,
    Microbatches,
    Recv,
    Send,
    Slot,
)
from rlinit.executors.lowering.microbatches import batch_rows, is_batched, refuse_mixing
from rlinit.executors.lowering.torch_program import TorchProgram, scalar_value
from rlinit.plan import Plan

if TYPE_CHECKING:
    from torch.fx import Node


@dataclass(frozen=True, slots=True)
class Task:
    """One batch of an op: the op, the rank of its program, and the micro-batches of the inputs."""

    op: str
    rank: int
    microbatches: Microbatches


@dataclass(frozen=True, slots=True, eq=False)
class DevicePrograms:
    """What every device does.

    Parameters
    ----------
    devices
        Device of each program; the collector, which comes after them, has none.
    tasks
        Every batch, in the common order.
    instructions
        One list a program, the collector's last.
    cells
        (sending rank, receiving rank) of each cell.
    outputs
        Flat outputs: slots of the collector, constants or plain values.
    microbatch_inputs, num_microbatches
        Inputs of one microbatch, and microbatches.
    split_nodes
        Nodes whose values are taken apart or put together.
    """

    devices: tuple[str, ...]
    tasks: tuple[Task, ...]
    instructions: tuple[tuple[Instruction, ...], ...]
    cells: tuple[tuple[int, int], ...]
    outputs: tuple[Any, ...]
    microbatch_inputs: int
    num_microbatches: int
    split_nodes: tuple[Node, ...]


def lower_devices(plan: Plan, program: TorchProgram, *, apart: bool = False) -> DevicePrograms:
    """Turn a plan and a program into instructions.

    Parameters
    ----------
    plan, program
        What to run; the program for as many inputs, and for all parts of them that the plan runs at once.
    apart
        Run the micro-batches of each batch one after the other, so that only outputs are put together. Then ops may
        mix the inputs of a batch, where the outputs do not show it, which is for the caller to find out.

    Raises
    ------
    InvalidPlan
        The plan has no schedule or misses an op of the program; an op mixes the inputs of a batch, or its value cannot
        be split over the devices that need it.
    """
    devices, tasks = _tasks(plan)
    if apart:
        tasks = [replace(task, microbatches=(one,)) for task in tasks for one in task.microbatches]
    members: dict[str, list[Node]] = {}
    for node in program.nodes:
        if program.node2op[node]:
            members.setdefault(program.node2op[node], []).append(node)
    microbatch_rows = program.batch // plan.inputs * plan.shard_inputs
    return _Builder(program, devices, _ordered(tasks, members, program), members, microbatch_rows, apart).build()


def _tasks(plan: Plan) -> tuple[tuple[str, ...], list[Task]]:
    """Return the programs' devices, and every batch by start."""
    if plan.assignment is None:
        raise InvalidPlan(f"the plan is {plan.status}; there is no schedule to run")
    if plan.objective in ("latency", "throughput"):
        names = [use.device for use in plan.devices if use.num_batches]
        index = {name: i for i, name in enumerate(names)}
        batches = sorted(plan.batches, key=lambda batch: batch.start_s)
        return tuple(names), [Task(batch.op, index[batch.device], tuple(sorted(batch.shards))) for batch in batches]
    # Stages run whole, one after the other; the order within comes from the program, unless the plan has one.
    ordered = [(op, j) for j, order in enumerate(plan.stage_orders) for op in order]
    listed = ordered or [(op, int(j)) for op, j in plan.assignment.items()]
    names = list(plan.device_times_s)
    return tuple(names), [Task(op, names.index(plan.stages[j].device), (0,)) for op, j in listed]


def _ordered(tasks: list[Task], members: Mapping[str, Sequence[Node]], program: TorchProgram) -> list[Task]:
    """Return the tasks such that producers come first, otherwise in the order given."""
    where = {(task.op, microbatch): at for at, task in enumerate(tasks) for microbatch in task.microbatches}
    after: list[set[int]] = [set() for _ in tasks]
    waiting = [0] * len(tasks)
    for at, task in enumerate(tasks):
        for op in {program.node2op[other] for other in _read_nodes(members.get(task.op, ()), program)} - {task.op}:
            for microbatch in task.microbatches:
                if (op, microbatch) not in where:
                    raise InvalidPlan(
                        f"op {task.op!r} reads {op!r}, which the plan does not run for microbatch {microbatch}"
                    )
                before = where[op, microbatch]
                if at not in after[before]:
                    after[before].add(at)
                    waiting[at] += 1
    ready = [at for at, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        at = heapq.heappop(ready)
        order.append(tasks[at])
        for other in sorted(after[at]):
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, other)
    if len(order) < len(tasks):
        stuck = next(tasks[at].op for at, count in enumerate(waiting) if count)
        raise InvalidPlan(f"op {stuck!r} waits for itself; the ops of the plan are not an acyclic split of the model")
    return order


def _read_nodes(nodes: Sequence[Node], program: TorchProgram) -> list[Node]:
    """Return the nodes of ops that some nodes read."""
    return [other for node in nodes for other in node.all_input_nodes if program.node2op.get(other)]


@dataclass(slots=True)
class _Emitter:
    instructions: list[Instruction] = field(default_factory=list)
    values: dict[tuple[Node, Microbatches], int] = field(default_factory=dict)
    count: int = 0

    def new(self, node: Node, microbatches: Microbatches) -> int:
        self.values[node, microbatches] = self.count
        self.count += 1
        return self.count - 1


class _Builder:
    """Emits instructions task by task, in the common order."""

    def __init__(
        self,
        program: TorchProgram,
        devices: tuple[str, ...],
        tasks: list[Task],
        members: Mapping[str, Sequence[Node]],
        microbatch_inputs: int,
        apart: bool,
    ) -> None:
        self._apart = apart
        self._program, self._devices, self._tasks, self._members = program, devices, tasks, members
        self._microbatch_inputs = microbatch_inputs
        self._all: Microbatches = tuple(range(program.batch // microbatch_inputs))
        self._programs = [_Emitter() for _ in range(len(devices) + 1)]
        self._owners: dict[str, list[Task]] = {}
        for task in tasks:
            self._owners.setdefault(task.op, []).append(task)
        self._cells: list[tuple[int, int]] = []
        self._cell_of: dict[tuple[Node, Microbatches, int], tuple[int, Microbatches]] = {}
        self._split: dict[Node, None] = {}
        self._position = {node: at for at, node in enumerate(program.inputs)}

    def build(self) -> DevicePrograms:
        self._plan_cells()
        for at, task in enumerate(self._tasks):
            emitter = self._programs[task.rank]
            self._receive(task)
            emitter.instructions.append(Begin(at))
            for node in self._members.get(task.op, ()):
                self._call(task.rank, node, task.microbatches)
                self._send(task, node)
            emitter.instructions.append(End(at))
        outputs = tuple(self._argument(len(self._devices), value, self._all) for value in self._program.outputs)
        kept = {output.value for output in outputs if isinstance(output, Slot)}
        instructions = [_with_frees(emitter.instructions, set()) for emitter in self._programs[:-1]]
        instructions.append(_with_frees(self._programs[-1].instructions, kept))
        return DevicePrograms(
            self._devices,
            tuple(self._tasks),
            tuple(instructions),
            tuple(self._cells),
            outputs,
            self._microbatch_inputs,
            len(self._all),
            tuple(self._split),
        )

    def _receive(self, task: Task) -> None:
        """Bring what a task reads before it begins, so that its time is that of computing."""
        for node in self._members.get(task.op, ()):
            for other in node.all_input_nodes:
                if self._program.node2op.get(other) != task.op:
                    self._value(task.rank, other, task.microbatches)

    def _plan_cells(self) -> None:
        """Decide what each batch sends where: once to each program, the micro-batches that any batch there reads."""
        needs: dict[tuple[Node, Microbatches, int], set[int]] = {}
        readers = [(task.rank, task.microbatches, self._members.get(task.op, ())) for task in self._tasks]
        for rank, microbatches, nodes in readers:
            for node in _read_nodes(nodes, self._program):
                self._need(needs, node, rank, microbatches)
        for output in self._program.outputs:
            if self._program.node2op.get(output):
                self._need(needs, output, len(self._devices), self._all)
        for (node, made, rank), wanted in needs.items():
            self._cell_of[node, made, rank] = (len(self._cells), tuple(sorted(wanted)))
            source = next(t.rank for t in self._owners[self._program.node2op[node]] if t.microbatches == made)
            self._cells.append((source, rank))

    def _need(
        self, needs: dict[tuple[Node, Microbatches, int], set[int]], node: Node, rank: int, microbatches: Microbatches
    ) -> None:
        if scalar_value(self._program, node, 1) is not None:
            return
        for task in self._sources(node, rank, microbatches):
            if task.rank != rank:
                whole = self._is_whole(node)
                wanted = set(task.microbatches) if whole else set(task.microbatches) & set(microbatches)
                needs.setdefault((node, task.microbatches, rank), set()).update(wanted)

    def _is_whole(self, node: Node) -> bool:
        """Return whether a node's value is the same for all inputs, so that one batch's serves all."""
        return not is_batched(self._program, node)

    def _sources(self, node: Node, rank: int, microbatches: Microbatches) -> list[Task]:
        """Return the batches that a program needs for some micro-batches of a node's value."""
        owners = [
            task for task in self._owners[self._program.node2op[node]] if set(task.microbatches) & set(microbatches)
        ]
        return (
            [min(owners, key=lambda task: (task.rank != rank, task.microbatches))] if self._is_whole(node) else owners
        )

    # -- instructions --------------------------------------------------------------------------------------------

    def _call(self, rank: int, node: Node, microbatches: Microbatches) -> int | None:
        """Compute a node in a program for some micro-batches, unless it is a plain number."""
        program = self._program
        if scalar_value(program, node, 1) is not None:
            return None
        if len(microbatches) < len(self._all) and not self._apart:
            refuse_mixing(program, node)
        call = program.call(node, len(microbatches) * self._microbatch_inputs)
        args = self._argument(rank, call.args, microbatches)
        kwargs = self._argument(rank, call.kwargs, microbatches)
        value = self._programs[rank].new(node, microbatches)
        self._programs[rank].instructions.append(Call(value, node, call.target, args, kwargs))
        return value

    def _send(self, task: Task, node: Node) -> None:
        """Send a node's value to the programs that read it."""
        for rank in range(len(self._programs)):
            found = self._cell_of.get((node, task.microbatches, rank))
            if found is not None:
                cell, wanted = found
                value = self._part(
                    task.rank, node, wanted, [(task.microbatches, self._held(task.rank, node, task.microbatches))]
                )
                self._programs[task.rank].instructions.append(Send(value, cell))

    def _held(self, rank: int, node: Node, microbatches: Microbatches) -> int:
        return self._programs[rank].values[node, microbatches]

    def _argument(self, rank: int, argument: Any, microbatches: Microbatches) -> Any:
        from torch.fx import Node

        if isinstance(argument, Node):
            return self._value(rank, argument, microbatches)
        if isinstance(argument, (list, tuple)):
            return type(argument)([self._argument(rank, part, microbatches) for part in argument])
        if isinstance(argument, dict):
            return {key: self._argument(rank, part, microbatches) for key, part in argument.items()}
        if isinstance(argument, slice):
            ends = (argument.start, argument.stop, argument.step)
            return slice(*(self._argument(rank, part, microbatches) for part in ends))
        return argument

    def _value(self, rank: int, node: Node, microbatches: Microbatches) -> Any:
        """Return a node's value for some micro-batches in a program, emitting what it takes to have it there."""
        program, held = self._program, self._programs[rank].values
        if node in program.constants or node in program.constant_nodes:
            return Constant(node)
        number = scalar_value(program, node, len(microbatches) * self._microbatch_inputs)
        if number is not None:
            return number
        if (node, microbatches) in held:
            return Slot(held[node, microbatches])
        if node in self._position:
            return Slot(self._fetch(rank, node, microbatches))
        if not program.node2op[node]:
            value = self._call(rank, node, microbatches)
            return Slot(value if value is not None else -1)
        parts = []
        for task in self._sources(node, rank, microbatches):
            made = task.microbatches
            if task.rank != rank:
                cell, made = self._cell_of[node, task.microbatches, rank]
                if (node, made) not in held:
                    self._programs[rank].instructions.append(Recv(self._programs[rank].new(node, made), cell))
            parts.append((made, held[node, made]))
        if self._is_whole(node):
            return Slot(parts[0][1])
        return Slot(self._part(rank, node, microbatches, parts))

    def _fetch(self, rank: int, node: Node, microbatches: Microbatches) -> int:
        """Read an input; what does not grow with the batch is read whole."""
        found = batch_rows(self._program, node) if is_batched(self._program, node) else None
        wanted = () if found is None or microbatches == self._all else microbatches
        held = self._programs[rank].values
        if (node, wanted) not in held:
            value = self._programs[rank].new(node, wanted)
            self._programs[rank].instructions.append(Fetch(value, self._position[node], wanted, found and found[0]))
        return held[node, wanted]

    def _part(self, rank: int, node: Node, microbatches: Microbatches, parts: list[tuple[Microbatches, int]]) -> int:
        """Return the value of exactly some microbatches, stacked from parts that hold them."""
        if len(parts) == 1 and parts[0][0] == microbatches:
            return parts[0][1]
        found = batch_rows(self._program, node)
        if found is None:
            raise InvalidPlan(f"the value of node {node.name!r} has no batch dimension to split it along")
        self._split[node] = None
        place = {microbatch: (value, at) for made, value in parts for at, microbatch in enumerate(made)}
        runs: list[tuple[int, int, int]] = []
        for microbatch in microbatches:
            value, at = place[microbatch]
            if runs and runs[-1][0] == value and runs[-1][2] == at:
                runs[-1] = (value, runs[-1][1], at + 1)
            else:
                runs.append((value, at, at + 1))
        joined = self._programs[rank].new(node, microbatches)
        self._programs[rank].instructions.append(Join(joined, tuple(runs), *found))
        return joined


def _with_frees(instructions: Sequence[Instruction], kept: set[int]) -> tuple[Instruction, ...]:
    """Forget every value right after its last use (or its making, where it has none)."""
    last: dict[int, int] = {}
    for at, instruction in enumerate(instructions):
        for value in _values_of(instruction):
            last[value] = at
    freed: dict[int, list[int]] = {}
    for value, at in last.items():
        if value not in kept:
            freed.setdefault(at, []).append(value)
    result: list[Instruction] = []
    for at, instruction in enumerate(instructions):
        result.append(instruction)
        if at in freed:
            result.append(Free(tuple(sorted(freed[at]))))
    return tuple(result)


def _values_of(instruction: Instruction) -> list[int]:
    if isinstance(instruction, Call):
        return [instruction.value, *_slots((instruction.args, instruction.kwargs))]
    if isinstance(instruction, Join):
        return [instruction.value, *(value for value, _, _ in instruction.parts)]
    if isinstance(instruction, (Fetch, Recv, Send)):
        return [instruction.value]
    return []


def _slots(argument: Any) -> list[int]:
    if isinstance(argument, Slot):
        return [argument.value]
    if isinstance(argument, (list, tuple)):
        return [value for part in argument for value in _slots(part)]
    if isinstance(argument, dict):
        return [value for part in argument.values() for value in _slots(part)]
    if isinstance(argument, slice):
        return _slots((argument.start, argument.stop, argument.step))
    return []
