"""The independent checker of training pipelines: plain Python over the definitions, slow and simple on purpose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from rlinit.checker.stages import (
    check_devices,
    check_stage,
    check_stage_rules,
    device_index,
    exactly,
    held_parameters,
    io_rates,
    readers_of,
    size_of,
)
from rlinit.checker.tolerances import OVERFULL, ROUNDING
from rlinit.costs.roofline import op_times
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.importers.common.blocks import blocks_of
from rlinit.plan import Plan, StageUse, TrainedStageUse, TrainingUse


def check_training(plan: Plan, graph: Graph, hardware: Hardware) -> tuple[float, ...]:
    """Check every rule of training pipelines on a plan; return its value.

    Parameters
    ----------
    plan
        A 'pipeline' plan with `training`.
    graph
        The graph it is for, whose fingerprint was compared.
    hardware
        The devices it is for, one a stage.

    Raises
    ------
    InvalidPlan
        As `check_stages`; also a backward op apart from its forward op, a memory overfull with what training takes, a
        block recomputed that is not whole on its stage, a step of another length.
    """
    training = plan.training
    if training is None:
        raise InvalidPlan("the plan says nothing of training")
    assignment = {op: int(stage) for op, stage in (plan.assignment or {}).items()}
    devices = [use.device for use in plan.stages]
    if not plan.contiguous or (training.schedule == "interleaved") != (plan.chunks > 1):
        raise InvalidPlan(
            f"a pipeline that trains by {training.schedule} has not {plan.chunks} chunks, or is contiguous"
        )
    if plan.chunk_order != "interleaved":
        raise InvalidPlan(f"the chunks of a pipeline that trains are interleaved, not {plan.chunk_order}")
    check_devices(plan, hardware, devices)
    model = _Model(graph)
    check_stage_rules(assignment, graph, hardware, devices, ordered=model.ordered)
    for v, u in enumerate(model.partner):
        if assignment[graph.names[u]] != assignment[graph.names[v]]:
            raise InvalidPlan(f"op {graph.names[v]!r} is not on the stage of {graph.names[u]!r}, whose backward it is")
    pairs = trained_uses(model, assignment, hardware, devices, training)
    for j, (use, trained) in enumerate(pairs):
        check_stage(j, plan.stages[j], use)
        _check_trained(j, training.stages[j], trained)
    seconds = []
    for name in dict.fromkeys(devices):
        own = [pair for pair in pairs if pair[0].device == name]
        device = hardware.devices[device_index(hardware, name)]
        seconds.append(math.fsum(use.time_s for use, _ in own))
        holds = math.fsum(trained.memory_bytes for _, trained in own)
        if holds > device.memory_bytes * (1.0 + OVERFULL):
            raise InvalidPlan(
                f"device {name!r} holds {holds:,.0f} bytes in training; its memory has {device.memory_bytes:,.0f}"
            )
    step = step_seconds(training, [use for use, _ in pairs], [trained for _, trained in pairs], plan.chunks)
    if abs(step - training.step_s) > ROUNDING * step:
        raise InvalidPlan(f"training.step_s is {training.step_s} but a step takes {step}")
    exchanged = _exchanged_bytes(graph, [devices[assignment[name]] for name in graph.names])
    if abs(exchanged - training.exchange_bytes) > ROUNDING * exchanged:
        raise InvalidPlan(f"training.exchange_bytes is {training.exchange_bytes} but stages exchange {exchanged}")
    return (max(seconds),)


def _exchanged_bytes(graph: Graph, device_of_op: Sequence[str]) -> float:
    """Return the bytes that devices send each other to add up the gradients of parameters that several hold."""
    holders = [len({device_of_op[v] for v in one.readers}) for one in graph.shared]
    return math.fsum(2.0 * max(0, count - 1) * one.size_bytes for count, one in zip(holders, graph.shared, strict=True))


def _check_trained(j: int, claimed: TrainedStageUse, true: TrainedStageUse) -> None:
    for figure in TrainedStageUse.__dataclass_fields__:
        said, is_so = getattr(claimed, figure), getattr(true, figure)
        if isinstance(is_so, tuple):
            same = said == is_so
        else:
            same = abs(said - is_so) <= ROUNDING * max(said, is_so, 1e-3 * true.memory_bytes * ("bytes" in figure))
        if not same:
            raise InvalidPlan(f"training.stages[{j}].{figure} is given as {said} but is {is_so}")


class _Model:
    """The ops of a graph by what they are in training."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        index = {name: v for v, name in enumerate(graph.names)}
        self.partner = [index[graph.extras.get(v, {}).get("backward_of", name)] for v, name in enumerate(graph.names)]
        self.has_backward = any(u != v for v, u in enumerate(self.partner))
        self.forward = [v for v, u in enumerate(self.partner) if u == v]
        pairs = {(u, v) for u, v in graph.edges.tolist() if self.partner[u] == u and self.partner[v] == v}
        back = {
            (self.partner[v], self.partner[u])
            for u, v in graph.edges.tolist()
            if self.partner[u] != u and self.partner[v] != v
        }
        # A gradient gives an order where no forward edge does.
        self.ordered = sorted(pairs | {(u, v) for u, v in back if (v, u) not in pairs and u != v})
        self.size = [size_of(value) for value in (*graph.out_bytes.tolist(), *graph.further.size_bytes.tolist())]
        self.readers = readers_of(graph)
        self.maker = [*range(graph.num_ops), *graph.further.op.tolist()]
        self.blocks = blocks_of(graph, "layer")
        self.forward_tensors = [t for t, u in enumerate(self.maker) if self.partner[u] == u]
        self.forward_readers = {
            t: [v for v in self.readers[t][1] if self.partner[v] == v] if t in self.readers else []
            for t in self.forward_tensors
        }

    def widths(self) -> dict[int, float]:
        """Return op -> bytes of the tensors alive around it, in Kahn's order with the smallest index first."""
        import networkx as nx

        forward: nx.DiGraph[int] = nx.DiGraph(self.ordered)
        forward.add_nodes_from(self.forward)
        place = {v: at for at, v in enumerate(nx.lexicographical_topological_sort(forward))}
        ends: list[list[int | Fraction]] = [[] for _ in range(len(place) + 1)]
        begins: list[list[int | Fraction]] = [[] for _ in range(len(place) + 1)]
        for t in self.forward_tensors:
            exact = exactly(self.size[t])
            reads = [place[v] for v in self.forward_readers[t]]
            begins[place[self.maker[t]]].append(exact)
            ends[max(reads, default=len(place) - 1) + 1].append(exact)
        alive: int | Fraction = 0
        width = []
        for begin, end in zip(begins, ends, strict=True):
            alive += sum(begin) - sum(end)
            width.append(float(alive))
        return {v: width[at] for v, at in place.items()}

    def block(self, name: str, members: set[int], j: int) -> tuple[float, list[int]]:
        """Return the bytes that recomputing a block saves of a micro-batch, and its ops."""
        ops = [v for v in self.forward if self.blocks[v] == name]
        if not ops or not members.issuperset(ops):
            raise InvalidPlan(f"stage {j} recomputes {name!r}, which is not a block that is whole on it")
        inside = set(ops)
        left = set(ops)
        for u, v in sorted(self.ordered, key=lambda pair: self.place[pair[0]]):
            if u in left and v not in inside:
                left.add(v)
            elif u in left and u not in inside and v in inside:
                raise InvalidPlan(f"stage {j} recomputes {name!r}, which a path leaves and enters again")
        saved = [
            self.size[t]
            for t in self.forward_tensors
            if self.maker[t] in inside and self.forward_readers[t] and inside.issuperset(self.forward_readers[t])
        ]
        return math.fsum(saved), ops

    @property
    def place(self) -> list[int]:
        """Place of each op in the graph's natural order."""
        place = [0] * self.graph.num_ops
        for at, v in enumerate(self.graph.order.tolist()):
            place[v] = at
        return place


class _Traffic(NamedTuple):
    """Tensors that enter and leave each stage, bytes made in it, and those made before it and needed in it or later."""

    enter: list[list[int]]
    leave: list[list[int]]
    made: list[float]
    crossing: list[float]


def trained_uses(
    model: _Model, assignment: Mapping[str, int], hardware: Hardware, devices: Sequence[str], training: TrainingUse
) -> list[tuple[StageUse, TrainedStageUse]]:
    """Return what each stage does, from the definitions alone; see `rlinit.stages.training.problem`.

    Parameters
    ----------
    model
        The ops by what they are.
    assignment
        op name -> stage.
    hardware, devices
        The hardware, and the device of each stage.
    training
        Schedule, micro-batches, optimiser, and the blocks that each stage recomputes.
    """
    graph, k = model.graph, len(devices)
    stage = [assignment[name] for name in graph.names]
    traffic = _traffic(model, stage, k)
    widths = model.widths()
    used = sorted(set(stage))
    flying = _in_flight(training, used, devices)
    after = [sum(at >= j for at in used) for j in range(k)]
    split = training.schedule == "zero-bubble"
    dropped = [min(training.microbatches, after[j]) if split else flying[j] for j in range(k)]
    pairs = []
    ops: list[list[int]] = [[] for _ in range(k)]
    for v, at in enumerate(stage):
        ops[at].append(v)
    for j in range(k):
        device = hardware.devices[device_index(hardware, devices[j])]
        members = set(ops[j])
        beside = [ops[at] for at in range(k) if at != j and devices[at] == devices[j]]
        pairs.append(
            _stage_pair(model, members, j, device, hardware, traffic, training, (flying[j], dropped[j]), widths, beside)
        )
    return pairs


def _traffic(model: _Model, stage: Sequence[int], k: int) -> _Traffic:
    enter: list[list[int]] = [[] for _ in range(k)]
    leave: list[list[int]] = [[] for _ in range(k)]
    for t, (u, readers) in sorted(model.readers.items()):
        elsewhere = {stage[v] for v in readers} - {stage[u]}
        for j in elsewhere:
            enter[j].append(t)
        if elsewhere:
            leave[stage[u]].append(t)
    made: list[list[float]] = [[] for _ in range(k)]
    crossing: list[list[float]] = [[] for _ in range(k + 1)]
    for t in model.forward_tensors:
        first, last = stage[model.maker[t]], max((stage[v] for v in model.forward_readers[t]), default=-1)
        made[first].append(model.size[t])
        for j in range(first + 1, last + 1):
            crossing[j].append(model.size[t])
    return _Traffic(enter, leave, list(map(math.fsum, made)), list(map(math.fsum, crossing)))


def _stage_pair(
    model: _Model,
    members: set[int],
    j: int,
    device: Device,
    hardware: Hardware,
    traffic: _Traffic,
    training: TrainingUse,
    counts: tuple[int, int],
    widths: Mapping[int, float],
    beside: Sequence[Sequence[int]],
) -> tuple[StageUse, TrainedStageUse]:
    graph = model.graph
    seconds = op_times(graph, device)
    ahead = [v for v in members if model.partner[v] == v]
    forward = math.fsum(float(seconds[v]) for v in ahead)
    backward = math.fsum(_backward(model, v, device, float(seconds[v])) for v in members)
    rate_in, rate_out, delay_in, delay_out = io_rates(hardware, device_index(hardware, device.name))
    taken = [(model.size[t] / rate_in + delay_in, model.size[t] / rate_out + delay_out) for t in traffic.enter[j]]
    sent = [(model.size[t] / rate_out + delay_out, model.size[t] / rate_in + delay_in) for t in traffic.leave[j]]
    there_and_back = 1 if model.has_backward else 2
    param = held_parameters(graph, sorted(members))
    together = math.fsum([param, *(held_parameters(graph, ops) for ops in beside)])
    spare = max(0.0, together - device.cache_bytes) * (param / together if beside and together > 0 else 1.0)
    again = training.stages[j].recomputed
    if again and training.recompute == "none":
        raise InvalidPlan(f"stage {j} recomputes {again[0]!r}, which the plan rules out")
    blocks = [model.block(name, members, j) for name in again]
    if training.recompute == "all":
        _check_all(model, members, j, again)
    recompute = math.fsum(float(seconds[v]) for _, ops in blocks for v in ops)
    m, (flying, dropped) = training.microbatches, counts
    before, after = (traffic.crossing[j], traffic.crossing[j + 1]) if members else (0.0, 0.0)
    use = StageUse(
        device=device.name,
        num_ops=len(members),
        work_s=forward + backward + recompute,
        in_s=math.fsum(part for pair in taken for part in pair[:there_and_back]),
        out_s=math.fsum(part for pair in sent for part in pair[:there_and_back]),
        overflow_s=2.0 * spare / rate_in,
        param_bytes=param,
        off_cache_bytes=spare,
        out_bytes=math.fsum(model.size[t] for t in traffic.leave[j]),
    )
    trained = TrainedStageUse(
        forward_s=forward,
        backward_s=backward,
        recompute_s=recompute,
        in_flight=flying,
        state_bytes=training.state_factor * param,
        kept_bytes=flying * traffic.made[j] - dropped * math.fsum(saved for saved, _ in blocks),
        recomputed_bytes=max((saved for saved, _ in blocks), default=0.0),
        buffer_bytes=(m + 1) * before + m * after,
        working_bytes=max((widths[v] for v in ahead), default=0.0),
        recomputed=again,
    )
    return use, trained


def _check_all(model: _Model, members: set[int], j: int, again: Sequence[str]) -> None:
    """Check that a stage recomputes every block that can run as a whole there, where that saves something."""
    for name in sorted({model.blocks[v] or "" for v in members} - {"", *again}):
        try:
            saved, _ = model.block(name, members, j)
        except InvalidPlan:
            continue
        if saved > 0.0:
            raise InvalidPlan(f"stage {j} does not recompute {name!r}, though recompute is 'all'")


def _backward(model: _Model, v: int, device: Device, seconds: float) -> float:
    """Return what an op adds to the backward pass: its time if it is a backward op, or the backward of a model's op."""
    if model.has_backward:
        return seconds if model.partner[v] != v else 0.0
    given = model.graph.extras.get(v, {}).get("backward_time_s")
    if isinstance(given, Mapping):
        given = next((given[key] for key in (device.name, device.kind, "*") if key in given), None)
    return 2.0 * seconds if given is None else float(given) * device.slowdown


def _in_flight(training: TrainingUse, used: Sequence[int], devices: Sequence[str]) -> list[int]:
    """Return the micro-batches that each stage holds at most; `used` are the stages that have ops."""
    count, m, k = len(devices), training.microbatches, len(set(devices))
    if training.schedule == "interleaved":
        most = [0] * count
        for device in range(k):
            now = [0] * count
            for kind, _, j in _interleaved(k, count // k, m, device):
                now[j] += 1 if kind == "F" else -1
                most[j] = max(most[j], now[j])
    else:
        after = [sum(at >= j for at in used) for j in range(count)]
        most = {"gpipe": [m] * count}.get(training.schedule, after)
    if training.schedule == "zero-bubble":  # those that wait for the gradients of parameters count twice
        return [min(m, count) + min(m, count - after[j]) if j in used else 0 for j in range(count)]
    return [min(m, most[j]) if j in used else 0 for j in range(count)]


def step_seconds(
    training: TrainingUse, uses: Sequence[StageUse], trained: Sequence[TrainedStageUse], chunks: int = 1
) -> float:
    """Return how long a step takes: the longest path through its passes.

    Parameters
    ----------
    training
        Schedule and micro-batches.
    uses, trained
        What each stage does.
    chunks
        Stages of each device.
    """
    busy = [(use, one) for use, one in zip(uses, trained, strict=True) if use.num_ops or chunks > 1]
    count, m = len(busy), training.microbatches
    split = training.schedule == "zero-bubble"
    length: dict[str, list[float]] = {"F": [], "B": [], "W": []}
    for use, one in busy:
        half = (use.in_s + use.out_s + use.overflow_s) / 2
        length["F"].append(one.forward_s + half)
        length["B"].append(one.backward_s / (2 if split else 1) + one.recompute_s + half)
        length["W"].append(one.backward_s / 2)
    k = count // chunks
    queues = [
        _interleaved(k, chunks, m, device) if chunks > 1 else _queue(training.schedule, k, m, device)
        for device in range(k)
    ]
    end: dict[tuple[int, str, int], float] = {}
    now = [0.0] * k
    left = sum(map(len, queues))
    while left:
        for device, queue in enumerate(queues):
            while queue:
                kind, i, j = queue[0]
                other = {"F": j - 1, "B": j + 1}.get(kind, -1)
                if 0 <= other < count:
                    if (other, kind, i) not in end:
                        break
                    now[device] = max(now[device], end[other, kind, i])
                now[device] += length[kind][j]
                end[j, kind, i] = now[device]
                queue.pop(0)
                left -= 1
    return max(now, default=0.0)


def _queue(schedule: str, k: int, m: int, j: int) -> list[tuple[str, int, int]]:
    """Return the passes of stage j of k: with GPipe all forward ones first, else k - j of them."""
    warm = m if schedule == "gpipe" else min(m, k - j)
    queue = [("F", i, j) for i in range(warm)]
    for i in range(m):
        queue.append(("B", i, j))
        if schedule == "zero-bubble" and i >= j:
            queue.append(("W", i - j, j))
        if warm + i < m:
            queue.append(("F", warm + i, j))
    waiting = range(max(m - j, 0), m) if schedule == "zero-bubble" else ()
    return queue + [("W", i, j) for i in waiting]


def _interleaved(k: int, v: int, m: int, device: int) -> list[tuple[str, int, int]]:
    """Return the passes of a device with v chunks: groups of k micro-batches go through its chunks in turn."""
    pairs = [(i, chunk) for i in range(m) for chunk in range(v)]
    ahead = sorted(pairs, key=lambda pair: (pair[0] // k, pair[1], pair[0]))
    back = sorted(pairs, key=lambda pair: (pair[0] // k, -pair[1], pair[0]))
    forward = [("F", i, chunk * k + device) for i, chunk in ahead]
    queue = forward[: (v - 1) * k + 2 * (k - 1 - device)]
    rest = forward[len(queue) :]
    for i, chunk in back:
        queue += [*rest[:1], ("B", i, chunk * k + device)]
        rest = rest[1:]
    return queue
