"""Memory over time of plans, against what torch's allocator sees while the local executor runs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.executors import execute
from rlinit.hardware import Device, Hardware
from rlinit.plan import Plan
from rlinit.simulation.memory_profile import memory_profile
from tests.late import late_imports

with late_imports():
    import torch

    from rlinit.executors.local import LocalProgram
    from tests.executors.models import Wired


ROWS, WIDTH = 512, 64
HARDWARE = Hardware.mesh([Device("one", "cpu", flops_per_s=1e10, bytes_per_s=1e10)], 1e9)


def allocated_peak(plan: Plan, graph: rlinit.Graph, model: torch.nn.Module, x: torch.Tensor) -> float:
    """Return the most bytes that torch's allocator has handed out while the one device of a plan runs."""
    seen: list[float] = []
    serve = LocalProgram._serve

    def watched(self: LocalProgram, lane: int, run: object) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
            serve(self, lane, run)  # type: ignore[arg-type]
        events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
        changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
        seen.append(float(np.cumsum(changes).max()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlinit.executors.local.LocalProgram._serve", watched)
        execute(plan, model, x, graph=graph, devices={"one": "cpu"})
    return max(seen)


@pytest.mark.parametrize("seed", range(6))
def test_the_peak_is_what_the_allocator_sees(seed: int) -> None:
    """Tensors take as much at their peak as the profile says, but for the input, which the caller holds."""
    model, x = Wired(seed).eval(), torch.randn(ROWS, WIDTH)
    graph = rlinit.Graph.from_torch(model, (x,))
    plan = rlinit.schedule(graph, HARDWARE, objective="latency", method="heft")
    profile = memory_profile(plan, graph, HARDWARE)["one"]
    tensors = profile.peak_bytes - profile.param_bytes
    assert tensors - x.nbytes <= allocated_peak(plan, graph, model, x) <= tensors


@pytest.mark.parametrize("kind", ["Bert", "GPT2", "Llama", "ViT", "ResNet", "ConvNext"])
def test_plans_of_models_hold_what_the_allocator_sees(kind: str) -> None:
    """Weights and the peak of live tensors are `held_bytes`; scratch memory of kernels is for the reserve."""
    transformers = pytest.importorskip("transformers")
    text = {"vocab_size": 500, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    sizes = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 512}
    settings: dict[str, dict[str, Any]] = {
        "Bert": text | sizes,
        "GPT2": text | {"n_layer": 3, "n_embd": 128, "n_head": 4},
        "Llama": text | sizes | {"num_key_value_heads": 2},
        "ViT": sizes | {"image_size": 96, "patch_size": 8},
        "ResNet": {"embedding_size": 32, "depths": [1, 1], "hidden_sizes": [32, 64], "layer_type": "basic"},
        "ConvNext": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
    }
    config = getattr(transformers, f"{kind}Config")(**settings[kind])
    model = getattr(transformers, f"{kind}Model")(config).eval()
    x = torch.randint(0, 500, (4, 128)) if "vocab_size" in settings[kind] else torch.randn(2, 3, 96, 96)
    graph = rlinit.Graph.from_torch(model, (x,))
    plan = rlinit.schedule(graph, HARDWARE, objective="latency", method="heft")
    tensors = plan.devices[0].held_bytes - float(np.nan_to_num(graph.param_bytes).sum())
    assert tensors - x.nbytes <= allocated_peak(plan, graph, model, x) <= tensors + 4096
