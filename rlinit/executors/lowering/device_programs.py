"""From a plan and a program to what each device does: a list of instructions for each lane.

A lane is a device of the plan, or the collector, which gathers the outputs. Values of a lane are numbered; a value is
what one node gives for some shards of the inputs. Lanes meet in cells: one lane gives, another takes. All lanes follow
one order of batches in which producers come first, so that no two lanes can wait for each other.

===========  =====================================================================================================
instruction  meaning
===========  =====================================================================================================
`Fetch`      the value is an input of the model, or some shards of it
`Call`       the value is what a node computes from others
`Join`       the value is put together from parts of others, input by input
`Take`       the value is what another lane gives into a cell
`Give`       put a value into a cell
`Begin`      a batch of the plan starts; `End`: it is over
`Drop`       the values are not needed any more
===========  =====================================================================================================
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlinit.errors import InvalidPlan
from rlinit.executors.lowering.microbatches import batch_rows, is_batched, refuse_mixing
from rlinit.executors.lowering.torch_program import TorchProgram, scalar_value
from rlinit.plan import Plan

if TYPE_CHECKING:
    from torch.fx import Node

__all__ = [
    "Begin",
    "Call",
    "Constant",
    "Drop",
    "End",
    "Fetch",
    "Give",
    "Instruction",
    "Join",
    "Lanes",
    "Slot",
    "Take",
    "Task",
    "lower_lanes",
]

Shards = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """A value of the lane, where it stands in the arguments of a call."""

    value: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A parameter, buffer or other constant, where it stands in the arguments of a call."""

    node: Node


@dataclass(frozen=True, slots=True)
class Task:
    """One batch of an op: the op, its lane, and the shards of the inputs."""

    op: str
    lane: int
    shards: Shards


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read an input of the model; `shards` is empty for all of it."""

    value: int
    position: int
    shards: Shards
    axis: int | None


@dataclass(frozen=True, slots=True)
class Call:
    """Compute a node; `args` and `kwargs` hold slots, constants and plain values."""

    value: int
    node: Node
    target: Any
    args: Any
    kwargs: Any


@dataclass(frozen=True, slots=True)
class Join:
    """Stack parts along an axis: (value, first, end) in shards of that value, each input of which has `rows`."""

    value: int
    parts: tuple[tuple[int, int, int], ...]
    axis: int
    rows: int


@dataclass(frozen=True, slots=True)
class Take:
    """Wait for a cell and take what is in it."""

    value: int
    cell: int


@dataclass(frozen=True, slots=True)
class Give:
    """Put a value into a cell."""

    value: int
    cell: int


@dataclass(frozen=True, slots=True)
class Begin:
    """A task starts."""

    task: int


@dataclass(frozen=True, slots=True)
class End:
    """A task is over."""

    task: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget values."""

    values: tuple[int, ...]


Instruction = Fetch | Call | Join | Take | Give | Begin | End | Drop


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """What every lane does.

    Parameters
    ----------
    devices
        Device of each lane; the collector, which comes after them, has none.
    tasks
        Every batch, in the common order.
    instructions
        One list a lane, the collector's last.
    cells
        (giving lane, taking lane) of each cell.
    outputs
        Flat outputs: slots of the collector, constants or plain values.
    shard_inputs, num_shards
        Inputs of one shard, and shards.
    dealt
        Nodes whose values are taken apart or put together.
    """

    devices: tuple[str, ...]
    tasks: tuple[Task, ...]
    instructions: tuple[tuple[Instruction, ...], ...]
    cells: tuple[tuple[int, int], ...]
    outputs: tuple[Any, ...]
    shard_inputs: int
    num_shards: int
    dealt: tuple[Node, ...]


def lower_lanes(plan: Plan, program: TorchProgram, batch: int) -> Lanes:
    """Turn a plan and a program into instructions.

    Parameters
    ----------
    plan, program
        What to run.
    batch
        Rows of the program's inputs, where their number is variable: as many for each input of the plan.

    Raises
    ------
    InvalidPlan
        The rows cannot be dealt evenly to the plan's inputs.
        The plan has no schedule or misses an op of the program; an op mixes the inputs of a batch, or its value cannot
        be dealt to the devices that need it.
    """
    devices, tasks = _tasks(plan)
    members: dict[str, list[Node]] = {}
    for node in program.nodes:
        if program.node2op[node]:
            members.setdefault(program.node2op[node], []).append(node)
    if program.batch_symbol is None:
        batch = plan.inputs
    if batch % plan.inputs:
        raise InvalidPlan(f"the model's inputs have {batch} rows; the plan is for {plan.inputs} inputs of as many each")
    shard_rows = batch // plan.inputs * plan.shard_inputs
    return _Builder(program, devices, _ordered(tasks, members, program), members, shard_rows, batch).build()


def _tasks(plan: Plan) -> tuple[tuple[str, ...], list[Task]]:
    """Return the lanes' devices, and every batch by start."""
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
    return tuple(use.device for use in plan.stages), [Task(op, j, (0,)) for op, j in listed]


def _ordered(tasks: list[Task], members: Mapping[str, Sequence[Node]], program: TorchProgram) -> list[Task]:
    """Return the tasks such that producers come first, otherwise in the order given."""
    where = {(task.op, shard): at for at, task in enumerate(tasks) for shard in task.shards}
    after: list[set[int]] = [set() for _ in tasks]
    waiting = [0] * len(tasks)
    for at, task in enumerate(tasks):
        for op in {program.node2op[other] for other in _read_nodes(members.get(task.op, ()), program)} - {task.op}:
            for shard in task.shards:
                if (op, shard) not in where:
                    raise InvalidPlan(f"op {task.op!r} reads {op!r}, which the plan does not run for shard {shard}")
                before = where[op, shard]
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
class _Lane:
    instructions: list[Instruction] = field(default_factory=list)
    values: dict[tuple[Node, Shards], int] = field(default_factory=dict)
    count: int = 0

    def new(self, node: Node, shards: Shards) -> int:
        self.values[node, shards] = self.count
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
        shard_inputs: int,
        inputs: int,
    ) -> None:
        self._program, self._devices, self._tasks, self._members = program, devices, tasks, members
        self._shard_inputs = shard_inputs
        self._all: Shards = tuple(range(inputs // shard_inputs))
        self._lanes = [_Lane() for _ in range(len(devices) + 1)]
        self._owners: dict[str, list[Task]] = {}
        for task in tasks:
            self._owners.setdefault(task.op, []).append(task)
        self._cells: list[tuple[int, int]] = []
        self._cell_of: dict[tuple[Node, Shards, int], tuple[int, Shards]] = {}
        self._dealt: dict[Node, None] = {}
        self._position = {node: at for at, node in enumerate(program.inputs)}

    def build(self) -> Lanes:
        self._plan_cells()
        for at, task in enumerate(self._tasks):
            lane = self._lanes[task.lane]
            self._receive(task)
            lane.instructions.append(Begin(at))
            for node in self._members.get(task.op, ()):
                self._call(task.lane, node, task.shards)
                self._give(task, node)
            lane.instructions.append(End(at))
        outputs = tuple(self._argument(len(self._devices), value, self._all) for value in self._program.outputs)
        kept = {output.value for output in outputs if isinstance(output, Slot)}
        instructions = [_with_drops(lane.instructions, set()) for lane in self._lanes[:-1]]
        instructions.append(_with_drops(self._lanes[-1].instructions, kept))
        return Lanes(
            self._devices,
            tuple(self._tasks),
            tuple(instructions),
            tuple(self._cells),
            outputs,
            self._shard_inputs,
            len(self._all),
            tuple(self._dealt),
        )

    def _receive(self, task: Task) -> None:
        """Bring what a task reads before it begins, so that its time is that of computing."""
        for node in self._members.get(task.op, ()):
            for other in node.all_input_nodes:
                if self._program.node2op.get(other) != task.op:
                    self._value(task.lane, other, task.shards)

    def _plan_cells(self) -> None:
        """Decide what each batch sends where: once to each lane, the shards that any batch there reads."""
        needs: dict[tuple[Node, Shards, int], set[int]] = {}
        readers = [(task.lane, task.shards, self._members.get(task.op, ())) for task in self._tasks]
        for lane, shards, nodes in readers:
            for node in _read_nodes(nodes, self._program):
                self._need(needs, node, lane, shards)
        for output in self._program.outputs:
            if self._program.node2op.get(output):
                self._need(needs, output, len(self._devices), self._all)
        for (node, made, lane), wanted in needs.items():
            self._cell_of[node, made, lane] = (len(self._cells), tuple(sorted(wanted)))
            source = next(t.lane for t in self._owners[self._program.node2op[node]] if t.shards == made)
            self._cells.append((source, lane))

    def _need(self, needs: dict[tuple[Node, Shards, int], set[int]], node: Node, lane: int, shards: Shards) -> None:
        if scalar_value(self._program, node, 1) is not None:
            return
        for task in self._sources(node, lane, shards):
            if task.lane != lane:
                whole = self._is_whole(node)
                wanted = set(task.shards) if whole else set(task.shards) & set(shards)
                needs.setdefault((node, task.shards, lane), set()).update(wanted)

    def _is_whole(self, node: Node) -> bool:
        """Return whether a node's value is the same for all inputs, so that one batch's serves all."""
        return not is_batched(self._program, node)

    def _sources(self, node: Node, lane: int, shards: Shards) -> list[Task]:
        """Return the batches that a lane needs for some shards of a node's value."""
        owners = [task for task in self._owners[self._program.node2op[node]] if set(task.shards) & set(shards)]
        return [min(owners, key=lambda task: (task.lane != lane, task.shards))] if self._is_whole(node) else owners

    # -- instructions --------------------------------------------------------------------------------------------

    def _call(self, lane: int, node: Node, shards: Shards) -> int | None:
        """Compute a node on a lane for some shards, unless it is a plain number."""
        program = self._program
        if scalar_value(program, node, 1) is not None:
            return None
        if len(shards) < len(self._all):
            refuse_mixing(program, node)
        args = self._argument(lane, node.args, shards)
        kwargs = self._argument(lane, node.kwargs, shards)
        value = self._lanes[lane].new(node, shards)
        self._lanes[lane].instructions.append(Call(value, node, node.target, args, kwargs))
        return value

    def _give(self, task: Task, node: Node) -> None:
        """Send a node's value to the lanes that read it."""
        for lane in range(len(self._lanes)):
            found = self._cell_of.get((node, task.shards, lane))
            if found is not None:
                cell, wanted = found
                value = self._part(task.lane, node, wanted, [(task.shards, self._held(task.lane, node, task.shards))])
                self._lanes[task.lane].instructions.append(Give(value, cell))

    def _held(self, lane: int, node: Node, shards: Shards) -> int:
        return self._lanes[lane].values[node, shards]

    def _argument(self, lane: int, argument: Any, shards: Shards) -> Any:
        from torch.fx import Node

        if isinstance(argument, Node):
            return self._value(lane, argument, shards)
        if isinstance(argument, (list, tuple)):
            return type(argument)([self._argument(lane, part, shards) for part in argument])
        if isinstance(argument, dict):
            return {key: self._argument(lane, part, shards) for key, part in argument.items()}
        if isinstance(argument, slice):
            ends = (argument.start, argument.stop, argument.step)
            return slice(*(self._argument(lane, part, shards) for part in ends))
        return argument

    def _value(self, lane: int, node: Node, shards: Shards) -> Any:
        """Return a node's value for some shards on a lane, emitting what it takes to have it there."""
        program, held = self._program, self._lanes[lane].values
        if node in program.constants or node in program.constant_nodes:
            return Constant(node)
        number = scalar_value(program, node, len(shards) * self._shard_inputs)
        if number is not None:
            return number
        if (node, shards) in held:
            return Slot(held[node, shards])
        if node in self._position:
            return Slot(self._fetch(lane, node, shards))
        if not program.node2op[node]:
            value = self._call(lane, node, shards)
            return Slot(value if value is not None else -1)
        parts = []
        for task in self._sources(node, lane, shards):
            made = task.shards
            if task.lane != lane:
                cell, made = self._cell_of[node, task.shards, lane]
                if (node, made) not in held:
                    self._lanes[lane].instructions.append(Take(self._lanes[lane].new(node, made), cell))
            parts.append((made, held[node, made]))
        if self._is_whole(node):
            return Slot(parts[0][1])
        return Slot(self._part(lane, node, shards, parts))

    def _fetch(self, lane: int, node: Node, shards: Shards) -> int:
        """Read an input; what does not grow with the batch is read whole."""
        found = batch_rows(self._program, node) if is_batched(self._program, node) else None
        wanted = () if found is None or shards == self._all else shards
        held = self._lanes[lane].values
        if (node, wanted) not in held:
            value = self._lanes[lane].new(node, wanted)
            self._lanes[lane].instructions.append(Fetch(value, self._position[node], wanted, found and found[0]))
        return held[node, wanted]

    def _part(self, lane: int, node: Node, shards: Shards, parts: list[tuple[Shards, int]]) -> int:
        """Return the value of exactly some shards, stacked from parts that hold them."""
        if len(parts) == 1 and parts[0][0] == shards:
            return parts[0][1]
        found = batch_rows(self._program, node)
        if found is None:
            raise InvalidPlan(f"the value of node {node.name!r} has no batch dimension to deal it along")
        self._dealt[node] = None
        place = {shard: (value, at) for made, value in parts for at, shard in enumerate(made)}
        runs: list[tuple[int, int, int]] = []
        for shard in shards:
            value, at = place[shard]
            if runs and runs[-1][0] == value and runs[-1][2] == at:
                runs[-1] = (value, runs[-1][1], at + 1)
            else:
                runs.append((value, at, at + 1))
        joined = self._lanes[lane].new(node, shards)
        self._lanes[lane].instructions.append(Join(joined, tuple(runs), *found))
        return joined


def _with_drops(instructions: Sequence[Instruction], kept: set[int]) -> tuple[Instruction, ...]:
    """Forget every value right after its last use (or its making, where it has none)."""
    last: dict[int, int] = {}
    for at, instruction in enumerate(instructions):
        for value in _values_of(instruction):
            last[value] = at
    dropped: dict[int, list[int]] = {}
    for value, at in last.items():
        if value not in kept:
            dropped.setdefault(at, []).append(value)
    result: list[Instruction] = []
    for at, instruction in enumerate(instructions):
        result.append(instruction)
        if at in dropped:
            result.append(Drop(tuple(sorted(dropped[at]))))
    return tuple(result)


def _values_of(instruction: Instruction) -> list[int]:
    if isinstance(instruction, Call):
        return [instruction.value, *_slots((instruction.args, instruction.kwargs))]
    if isinstance(instruction, Join):
        return [instruction.value, *(value for value, _, _ in instruction.parts)]
    if isinstance(instruction, (Fetch, Take, Give)):
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
