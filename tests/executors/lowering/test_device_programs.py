"""Instructions of device programs: what they must hold whatever the plan, and the code that is made of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import rlinit.executors
from rlinit.executors.lowering.codegen import device_code
from rlinit.executors.lowering.device_programs import DevicePrograms, lower_devices
from rlinit.executors.lowering.instructions import Begin, Call, End, Free, Recv, Send
from rlinit.executors.lowering.torch_program import torch_program
from rlinit.exporters.perfetto import trace_events
from rlinit.plan import Plan
from tests.draws import draws
from tests.executors.plans import random_hardware, random_plan
from tests.late import late_imports

with late_imports():
    import torch

    from tests.executors.models import RandomNet, graph_of


CASES = [(seed, inputs) for seed in range(draws(6)) for inputs in (1, 4)]
"""Seeds of random networks and plans, and the inputs at once."""


@cache
def programs_of(seed: int, inputs: int) -> tuple[Plan, DevicePrograms]:
    """Return a random plan of a random network, and its device programs."""
    model, x = RandomNet(seed, 8).eval(), torch.randn(max(inputs, 2), 4)
    graph = graph_of(model, (x,), batched=inputs > 1)
    plan = random_plan(graph, random_hardware(seed, 3), seed, inputs=inputs)
    program = torch_program(model, (x,), graph.names, graph=graph, plan_inputs=inputs, parts=range(1, inputs + 1))
    return plan, lower_devices(plan, program)


@pytest.mark.parametrize(("seed", "inputs"), CASES)
def test_every_value_is_made_used_and_freed_once(seed: int, inputs: int) -> None:
    """In each program a value is freed exactly once, after its last use; every cell is sent and received once."""
    plan, programs = programs_of(seed, inputs)
    sent: list[tuple[int, int]] = []
    received: list[tuple[int, int]] = []
    for rank, instructions in enumerate(programs.instructions):
        live: set[int] = set()
        for one in instructions:
            if isinstance(one, Free):
                assert live >= set(one.values)
                live -= set(one.values)
            elif isinstance(one, Send):
                assert one.value in live
                sent.append((one.cell, rank))
            elif not isinstance(one, (Begin, End)):
                assert one.value not in live
                live.add(one.value)
            if isinstance(one, Recv):
                received.append((one.cell, rank))
        assert not live or rank == len(programs.devices)
    assert sorted(sent) == [(cell, source) for cell, (source, _) in enumerate(programs.cells)]
    assert sorted(received) == [(cell, target) for cell, (_, target) in enumerate(programs.cells)]
    assert len(programs.tasks) == len(plan.batches)


@pytest.mark.parametrize(("seed", "inputs"), CASES)
def test_no_lane_waits_for_ever(seed: int, inputs: int) -> None:
    """DevicePrograms that run instruction by instruction, in any order, come to their ends."""
    _, programs = programs_of(seed, inputs)
    at = [0] * len(programs.instructions)
    full: set[int] = set()
    moved = True
    while moved:
        moved = False
        for rank, instructions in enumerate(programs.instructions):
            while at[rank] < len(instructions):
                one = instructions[at[rank]]
                if isinstance(one, Recv) and one.cell not in full:
                    break
                if isinstance(one, Send):
                    full.add(one.cell)
                at[rank] += 1
                moved = True
    assert at == [len(instructions) for instructions in programs.instructions]


def test_code_of_a_lane() -> None:
    """Code is one statement an instruction; arguments of the model appear by number only."""
    hostile = "__import__('os').system('false')"

    def target(x: torch.Tensor, text: str, device: torch.device) -> torch.Tensor:
        assert text == hostile
        assert device.type == "cpu"
        return x + 1

    (node,) = [n for n in torch.fx.symbolic_trace(torch.nn.Identity()).graph.nodes if n.op == "placeholder"]
    call = Call(0, node, target, [torch.ones(1), hostile, torch.device("cuda:3")], {})
    code = device_code(
        "x", [Begin(0), call, Send(0, 0), End(0), Free((0,))], (), ["op"], 1, torch.device("cpu"), lambda n, d: n
    )
    assert hostile not in code.source
    given: list[tuple[int, torch.Tensor]] = []
    code.call([], None, None, lambda cell, value: given.append((cell, value)), None, None)
    assert given == [(0, torch.full((1,), 2.0))]
    assert list(code.line2op.values()) == ["op", "op"]


def test_saved_plans_run_alike(tmp_path: Path) -> None:
    """A plan that was saved and loaded sent the same outputs and the same trace."""
    model, x = RandomNet(5).eval(), torch.randn(4, 4)
    graph = graph_of(model, (x,), batched=True)
    plan = random_plan(graph, random_hardware(5, 3), 5, inputs=4, transfers="exclusive")
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert trace_events(again) == trace_events(plan)
    first, second = (rlinit.executors.execute(one, model, x, graph=graph).outputs for one in (plan, again))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
