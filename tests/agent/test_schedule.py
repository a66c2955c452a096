"""The learned agent in `schedule`: by name, by path, alone, as a start, and where it is not asked."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import rlinit
from rlinit.agent.network.checkpoint import Card, save_checkpoint
from rlinit.cli.main import main
from rlinit.datasets.random import regal
from rlinit.datasets.zoo import imagenet
from rlinit.errors import CheckpointError, RlinitError
from rlinit.kernels.stages.features import NUM_STAGE_FEATURES
from rlinit.plan import Plan
from rlinit.stages.lowering import lower_stages
from rlinit.stages.window import free_nodes
from tests.late import late_imports

with late_imports():
    from tests.agent.networks import random_network


TPUS = rlinit.Hardware.edge_tpus(4)


def xception() -> rlinit.Graph:
    return imagenet.load("Xception")


def test_the_agent_alone_gives_a_checked_plan() -> None:
    """Method "agent" gives a feasible plan with an honest bound, the same each time, and says where it came from."""
    plan, again = (rlinit.schedule(xception(), TPUS, objective="memory", method="agent") for _ in range(2))
    assert plan.assignment == again.assignment
    assert plan.values is not None
    assert plan.bounds is not None
    assert plan.bounds[0] <= plan.values[0]
    assert plan.provenance["start"] == "checkpoint stages, best of 16 orders"
    assert plan.method == "agent"


def test_the_agent_is_a_start_by_name_or_path(tmp_path: Path) -> None:
    """A shipped checkpoint's name, or the path of any, starts the windows."""
    network = random_network(0)
    config = {"problem": "stages", "node_features": NUM_STAGE_FEATURES, "hidden": 16, "layers": 2}
    path = tmp_path / "mine.safetensors"
    save_checkpoint(path, network.arrays(), Card("oneshot", "stages", config))
    for agent in ("stages", str(path)):
        plan = rlinit.schedule(xception(), TPUS, objective="memory", agent=agent, method="warm", window=1)
        assert agent in str(plan.provenance["start"])
        assert any(entry.phase == "agent" for entry in plan.history)


def test_auto_says_what_it_started_from() -> None:
    """Where the ideals prove the optimum at once, the natural order is the start, and provenance says why."""
    plan = rlinit.schedule(xception(), TPUS, objective="memory")
    assert plan.status == "optimal"
    assert str(plan.provenance["start"]).startswith("natural: ")
    assert rlinit.schedule(xception(), TPUS, objective="memory", agent=plan).provenance["start"] == "plan"
    assert rlinit.schedule(xception(), TPUS, objective="memory", method="natural").provenance["start"] == "natural"


def test_where_no_order_fits_the_natural_one_says_so() -> None:
    """Capacities that no order can be sliced within leave no schedule, and provenance says what was tried."""
    graph = xception()
    tight = rlinit.Hardware.pipeline(4, memory=float(graph.param_bytes.sum()) / 4.0)
    plan = rlinit.schedule(graph, tight, objective="memory", method="agent")
    assert plan.status in ("no_solution", "infeasible")
    if plan.status == "no_solution":
        assert "no order of the agent" in str(plan.provenance["start"])


def test_unknown_agents_are_refused(tmp_path: Path) -> None:
    """A name that is neither a heuristic nor a checkpoint is an error that lists both, and heuristics are no agents."""
    with pytest.raises(RlinitError, match=r"unknown agent 'nonsense'; expected auto, natural.*stages"):
        rlinit.schedule(xception(), TPUS, objective="memory", agent="nonsense")
    with pytest.raises(RlinitError, match=r"unknown agent 'latency'; expected (?!.*latency)"):
        rlinit.schedule(xception(), TPUS, objective="memory", agent="latency")
    with pytest.raises(RlinitError, match=r"unknown agent 'stages'; expected .*, latency, or a path"):
        rlinit.schedule(xception(), rlinit.Hardware.preset("cpu-t4-a100"), objective="latency", agent="stages")
    with pytest.raises(CheckpointError, match="cannot read"):
        rlinit.schedule(xception(), TPUS, objective="memory", method="agent", agent=str(tmp_path / "no.safetensors"))
    with pytest.raises(RlinitError, match="needs a learned agent, and 'brkga' is a heuristic"):
        rlinit.schedule(xception(), TPUS, objective="memory", method="agent", agent="brkga")


def test_the_command_line_takes_agents(tmp_path: Path) -> None:
    """`rlinit schedule --agent stages --method agent` writes a plan."""
    xception().save(tmp_path / "model.json")
    out = tmp_path / "plan.json"
    arguments = ["schedule", str(tmp_path / "model.json"), "--hw", "edge-tpu-4", "--objective", "memory"]
    assert main([*arguments, "--agent", "stages", "--method", "agent", "--out", str(out)]) == 0
    assert Plan.load(out).method == "agent"


def test_scheduling_with_the_agent_needs_no_torch() -> None:
    """The product's inference does not import torch."""
    import subprocess

    code = (
        "import sys, rlinit; from rlinit.datasets import imagenet; "
        "rlinit.schedule(imagenet.load('Xception'), rlinit.Hardware.edge_tpus(4), objective='memory', method='agent'); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_doubt_widens_the_window() -> None:
    """A node in doubt is free from up to twice as far, others from no farther; gamma = 0 still frees nothing."""
    problem = lower_stages(xception(), TPUS, "memory").problem
    stage = np.minimum(problem.level * 4 // (problem.level.max() + 1), 3)
    doubt = np.where(np.arange(problem.num_nodes) % 2 == 0, 1.0, 0.0)
    narrow, mixed, wide = (
        free_nodes(problem, stage, gamma, d) for gamma, d in ((2.0, None), (2.0, doubt), (4.0, None))
    )
    assert (mixed[doubt == 1.0] == wide[doubt == 1.0]).all()
    assert (mixed[doubt == 0.0] == narrow[doubt == 0.0]).all()
    assert narrow.sum() < mixed.sum() < wide.sum()
    assert not free_nodes(problem, stage, 0.0, doubt).any()


def test_auto_leaves_stages_to_the_search() -> None:
    """Where ideals are too many, search follows the natural order, and no agent is asked."""
    graph = regal.generate(900)
    plan = rlinit.schedule(graph, rlinit.Hardware.pipeline(3, bandwidth=1.0), time_limit_s=1.0)
    assert str(plan.provenance["start"]).startswith("natural: ")


def test_the_windows_start_from_the_agent_on_graphs_like_networks() -> None:
    """Method "warm" takes the agent by itself where it was measured to help."""
    plan = rlinit.schedule(xception(), TPUS, objective="memory", method="warm", window=1)
    assert str(plan.provenance["start"]).startswith("checkpoint stages")
