"""From a plan and a program to what each device does: a graph of calls for each device.

There is a program for each device of the plan, and one of the collector, which gathers the outputs. A value of one is
what one node makes for some micro-batches of the inputs. Programs meet in cells: one sends, another receives. Their
code, by torch.fx, forgets each value after its last use. All follow one order of batches in which producers come first,
so that no two can wait for each other.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx
import torch
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from rlinit.errors import InvalidPlan
from rlinit.executors.lowering.microbatches import batch_rows, is_batched, refuse_mixing
from rlinit.executors.lowering.torch_program import TorchProgram, scalar_value
from rlinit.plan import Plan

Microbatches = tuple[int, ...]
GIVEN = ("inputs", "bring", "recv", "send", "begin", "end")
"""What a program is called with: the model's inputs, and the functions of `_Run` and `Port` of these names."""


@dataclass(frozen=True, slots=True)
class Task:
    """One batch of an op: the op, the rank of its program, and the micro-batches of the inputs."""

    op: str
    rank: int
    microbatches: Microbatches


class DeviceProgram:
    """What one device does: a graph of calls, with attributes for its device and constants.

    Attributes
    ----------
    graph
        Of a function of `GIVEN`.
    values
        What some micro-batches of a node's value are in the graph.
    constants
        Attribute -> the node whose constant it is.
    op_of
        Name of a node of the graph -> the op that is at work there.
    """

    def __init__(self) -> None:
        self.graph = Graph()
        self.given = {name: self.graph.placeholder(name) for name in GIVEN}
        self.values: dict[tuple[Node, Microbatches], Node] = {}
        self.constants: dict[str, Node] = {}
        self.op_of: dict[str, str] = {}
        self.op = ""

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Node:
        """Add a call, by the op that is at work.

        Parameters
        ----------
        target
            What is called.
        args, kwargs
            Nodes of the graph, and plain values in any nest.
        """
        made = self.graph.call_function(target, args, kwargs)
        self.op_of[made.name] = self.op
        return made

    def use(self, name: str, *args: Any) -> Node:
        """Add a call of one of the functions that are given.

        Parameters
        ----------
        name
            One of `GIVEN`.
        args
            As for `call`.
        """
        return self.call(operator.call, (self.given[name], *args))

    def constant(self, node: Node) -> Node:
        """Return the attribute that stands for a constant."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = node
        return self.graph.get_attr(name)


@dataclass(frozen=True, slots=True, eq=False)
class DevicePrograms:
    """What every device does.

    Parameters
    ----------
    devices
        Device of each program; the collector, which comes after them, has none.
    tasks
        Every batch, in the common order.
    programs
        One a device, the collector's last, which returns the flat outputs.
    cells
        (sending rank, receiving rank) of each cell.
    split_nodes
        Nodes whose values are taken apart or put together.
    """

    devices: tuple[str, ...]
    tasks: tuple[Task, ...]
    programs: tuple[DeviceProgram, ...]
    cells: tuple[tuple[int, int], ...]
    split_nodes: tuple[Node, ...]


def lower_devices(plan: Plan, program: TorchProgram, *, apart: bool = False, measure: bool = False) -> DevicePrograms:
    """Turn a plan and a program into one program a device.

    Parameters
    ----------
    plan, program
        What to run; the program for as many inputs, and for all parts of them that the plan runs at once.
    apart
        Run the micro-batches of each batch one after the other, so that only outputs are put together. Then ops may
        mix the inputs of a batch, where the outputs do not show it, which is for the caller to find out.
    measure
        Tell begin and end of every batch.

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
    return _Builder(program, devices, _ordered(tasks, members, program), members, microbatch_rows, apart).build(
        measure=measure
    )


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
    reads: nx.DiGraph[int] = nx.DiGraph()
    reads.add_nodes_from(range(len(tasks)))
    for at, task in enumerate(tasks):
        for op in {program.node2op[other] for other in _read_nodes(members.get(task.op, ()), program)} - {task.op}:
            for microbatch in task.microbatches:
                if (op, microbatch) not in where:
                    raise InvalidPlan(
                        f"op {task.op!r} reads {op!r}, which the plan does not run for microbatch {microbatch}"
                    )
                reads.add_edge(where[op, microbatch], at)
    try:
        return [tasks[at] for at in nx.lexicographical_topological_sort(reads)]
    except nx.NetworkXUnfeasible:
        stuck = tasks[nx.find_cycle(reads)[0][0]].op
        raise InvalidPlan(
            f"op {stuck!r} waits for itself; the ops of the plan are not an acyclic split of the model"
        ) from None


def _read_nodes(nodes: Sequence[Node], program: TorchProgram) -> list[Node]:
    """Return the nodes of ops that some nodes read."""
    return [other for node in nodes for other in node.all_input_nodes if program.node2op.get(other)]


class _Builder:
    """Adds calls task by task, in the common order."""

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
        self._programs = [DeviceProgram() for _ in range(len(devices) + 1)]
        self._owners: dict[str, list[Task]] = {}
        for task in tasks:
            self._owners.setdefault(task.op, []).append(task)
        self._cells: list[tuple[int, int]] = []
        self._cell_of: dict[tuple[Node, Microbatches, int], tuple[int, Microbatches]] = {}
        self._split: dict[Node, None] = {}
        self._position = {node: at for at, node in enumerate(program.inputs)}

    def build(self, *, measure: bool) -> DevicePrograms:
        self._plan_cells()
        for at, task in enumerate(self._tasks):
            program = self._programs[task.rank]
            self._receive(task)
            program.op = task.op
            if measure:
                program.use("begin", at)
            for node in self._members.get(task.op, ()):
                self._call(task.rank, node, task.microbatches)
                self._send(task, node)
            if measure:
                program.use("end", at)
            program.op = ""
        outputs = tuple(self._argument(len(self._devices), value, self._all) for value in self._program.outputs)
        for program in self._programs:
            program.graph.output(outputs if program is self._programs[-1] else ())
        return DevicePrograms(
            self._devices, tuple(self._tasks), tuple(self._programs), tuple(self._cells), tuple(self._split)
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

    # -- calls ---------------------------------------------------------------------------------------------------

    def _call(self, rank: int, node: Node, microbatches: Microbatches) -> Node | None:
        """Compute a node in a program for some micro-batches, unless it is a plain number."""
        program = self._program
        if scalar_value(program, node, 1) is not None:
            return None
        if len(microbatches) < len(self._all) and not self._apart:
            refuse_mixing(program, node)
        call = program.call(node, len(microbatches) * self._microbatch_inputs)
        args = self._argument(rank, call.args, microbatches)
        kwargs = self._argument(rank, call.kwargs, microbatches)
        value = self._programs[rank].call(call.target, args, kwargs)
        self._programs[rank].values[node, microbatches] = value
        return value

    def _send(self, task: Task, node: Node) -> None:
        """Send a node's value to the programs that read it."""
        for rank in range(len(self._programs)):
            found = self._cell_of.get((node, task.microbatches, rank))
            if found is not None:
                cell, wanted = found
                made = self._programs[task.rank].values[node, task.microbatches]
                self._programs[task.rank].use(
                    "send", cell, self._part(task.rank, node, wanted, [(task.microbatches, made)])
                )

    def _argument(self, rank: int, argument: Any, microbatches: Microbatches) -> Any:
        def placed(part: Any) -> Any:
            if isinstance(part, torch.fx.Node):
                return self._value(rank, part, microbatches)
            return self._programs[rank].graph.get_attr("device") if isinstance(part, torch.device) else part

        return map_aggregate(argument, placed)

    def _value(self, rank: int, node: Node, microbatches: Microbatches) -> Any:
        """Return a node's value for some micro-batches in a program, adding what it takes to have it there."""
        program, held = self._program, self._programs[rank].values
        if node in program.constants or node in program.constant_nodes:
            return self._programs[rank].constant(node)
        number = scalar_value(program, node, len(microbatches) * self._microbatch_inputs)
        if number is not None:
            return number
        if (node, microbatches) in held:
            return held[node, microbatches]
        if node in self._position:
            return self._fetch(rank, node, microbatches)
        if not program.node2op[node]:
            return self._call(rank, node, microbatches)
        parts = []
        for task in self._sources(node, rank, microbatches):
            made = task.microbatches
            if task.rank != rank:
                cell, made = self._cell_of[node, task.microbatches, rank]
                if (node, made) not in held:
                    held[node, made] = self._programs[rank].use("recv", cell)
            parts.append((made, held[node, made]))
        return parts[0][1] if self._is_whole(node) else self._part(rank, node, microbatches, parts)

    def _fetch(self, rank: int, node: Node, microbatches: Microbatches) -> Node:
        """Read an input; what does not grow with the batch is read whole."""
        found = batch_rows(self._program, node) if is_batched(self._program, node) else None
        wanted = () if found is None or microbatches == self._all else microbatches
        program, size = self._programs[rank], self._microbatch_inputs
        if (node, wanted) not in program.values:
            value = program.call(operator.getitem, (program.given["inputs"], self._position[node]))
            if wanted and found:
                value = program.call(_part, (value, found[0], [at * size for at in wanted], size))
            program.values[node, wanted] = program.use("bring", value)
        return program.values[node, wanted]

    def _part(self, rank: int, node: Node, microbatches: Microbatches, parts: list[tuple[Microbatches, Node]]) -> Node:
        """Return the value of exactly some microbatches, stacked from parts that hold them."""
        if len(parts) == 1 and parts[0][0] == microbatches:
            return parts[0][1]
        found = batch_rows(self._program, node)
        if found is None:
            raise InvalidPlan(f"the value of node {node.name!r} has no batch dimension to split it along")
        self._split[node] = None
        axis, each = found[0], found[1] * self._microbatch_inputs
        place = {microbatch: (value, at) for made, value in parts for at, microbatch in enumerate(made)}
        runs: list[tuple[Node, int, int]] = []
        for microbatch in microbatches:
            value, at = place[microbatch]
            if runs and runs[-1][0] is value and runs[-1][2] == at * each:
                runs[-1] = (value, runs[-1][1], (at + 1) * each)
            else:
                runs.append((value, at * each, (at + 1) * each))
        joined = self._programs[rank].call(_stack, (runs, axis))
        self._programs[rank].values[node, microbatches] = joined
        return joined


def _part(value: torch.Tensor, axis: int, starts: Sequence[int], size: int) -> torch.Tensor:
    """Return some microbatches of an input."""
    if list(starts) == list(range(starts[0], starts[0] + len(starts) * size, size)):
        return value.narrow(axis, starts[0], len(starts) * size)
    return torch.cat([value.narrow(axis, start, size) for start in starts], axis)


def _stack(parts: Sequence[tuple[torch.Tensor, int, int]], axis: int) -> torch.Tensor:
    """Return parts of values, one after the other."""
    pieces = []
    for value, first, end in parts:
        whole = (first, end) == (0, value.shape[axis])
        piece = value if whole else value.narrow(axis, first, end - first)
        # The program may take views that a slice of contiguous memory would not allow.
        pieces.append(piece.contiguous() if value.is_contiguous() else piece)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, axis)
