"""Device programs: what they must hold whatever the plan, and the code that is made of them."""

from __future__ import annotations

import operator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

import rlinit.executors
from rlinit.exporters.perfetto import trace_events
from rlinit.plan import Plan
from tests.draws import draws
from tests.executors.plans import random_hardware, random_plan
from tests.late import late_imports

with late_imports():
    import torch

    from rlinit.executors.lowering.codegen import device_code
    from rlinit.executors.lowering.device_programs import DeviceProgram, DevicePrograms, lower_devices
    from rlinit.executors.lowering.torch_program import torch_program
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


def meetings(program: DeviceProgram) -> list[tuple[str, int]]:
    """Return in order what a program sends and receives: "send" or "recv", and the cell."""
    calls = [node.args for node in program.graph.nodes if node.target is operator.call]
    return [(str(what), int(args[0])) for what, *args in calls if str(what) in ("send", "recv")]


@pytest.mark.parametrize(("seed", "inputs"), CASES)
def test_every_cell_is_sent_and_received_once(seed: int, inputs: int) -> None:
    """Each cell is sent by the program and received by the program that it says, once."""
    plan, programs = programs_of(seed, inputs)
    met = [(what, cell, rank) for rank, one in enumerate(programs.programs) for what, cell in meetings(one)]
    for at, name in enumerate(("send", "recv")):
        assert sorted((cell, rank) for what, cell, rank in met if what == name) == [
            (cell, ends[at]) for cell, ends in enumerate(programs.cells)
        ]
    assert len(programs.tasks) == len(plan.batches)


@pytest.mark.parametrize(("seed", "inputs"), CASES)
def test_no_lane_waits_for_ever(seed: int, inputs: int) -> None:
    """Programs that run call by call, in any order, come to their ends."""
    _, programs = programs_of(seed, inputs)
    left = [meetings(one) for one in programs.programs]
    full: set[int] = set()
    moved = True
    while moved:
        moved = False
        for met in left:
            while met and (met[0][0] == "send" or met[0][1] in full):
                full.add(met.pop(0)[1])
                moved = True
    assert not any(left)


def test_code_of_a_lane() -> None:
    """Code is a statement a call; what text the model gives stays text, and devices are those of the program."""
    hostile = "__import__('os').system('false')"

    def target(x: torch.Tensor, text: str, device: torch.device) -> torch.Tensor:
        assert text == hostile
        assert device.type == "cpu"
        return x + 1

    program = DeviceProgram()
    (node,) = [n for n in torch.fx.symbolic_trace(torch.nn.Identity()).graph.nodes if n.op == "placeholder"]
    program.op = "op"
    made = program.call(target, (program.constant(node), hostile, program.graph.get_attr("device")))
    program.use("send", 0, made)
    program.graph.output(())
    code = device_code("x", program, SimpleNamespace(device=torch.device("cpu"), constant_0=torch.ones(1)))
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
