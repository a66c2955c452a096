"""What a new user tries first: 7B on meta, layers kept, coarse maps, models of transformers, all devices named."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import rlinit
from rlinit import Graph, Hardware
from rlinit.exporters import to_split_spec
from tests.late import late_imports

with late_imports():
    import torch
    import transformers

SMALL: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.fixture(scope="module")
def ops() -> Graph:
    """Llama 7B in FP16, 13.5 GB; no weights are there."""
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig()).eval()  # type: ignore[no-untyped-call]
        words = torch.zeros(1, 128, dtype=torch.long)
    return Graph.from_torch(model, (words,), dtype="fp16", name="llama")


@pytest.fixture(scope="module")
def llama(ops: Graph) -> Graph:
    """Return it with its layers kept whole."""
    return ops.group("layer")


def test_a_model_that_fits_one_gpu_is_not_spread(llama: Graph) -> None:
    """7B on two GPUs of 24 GB and a processor: one GPU, as nothing is gained by more, with room for live tensors."""
    hardware = Hardware.preset("2xrtx3090+cpu")
    plan = rlinit.schedule(llama, hardware, objective="latency")
    assert plan.status == "optimal"
    assert len(set((plan.assignment or {}).values())) == 1
    assert plan.value <= (plan.baselines["best single device"] or 0.0) * (1 + 1e-9)
    assert 13.4e9 < plan.devices[0].held_bytes < 14.5e9
    assert plan.to_device_map(llama) == {"": "rtx3090-0"}


def test_layers_that_do_not_fit_one_gpu_are_split(llama: Graph) -> None:
    """7B on two GPUs of 8 GB: a map by whole layers, a split specification, and no more than a memory holds."""
    hardware = Hardware.mesh(
        [
            rlinit.Device(f"gpu{at}", memory_bytes=8e9, flops_per_s=7e13, bytes_per_s=9e11, launch_s=5e-6)
            for at in range(2)
        ],
        1.6e10,
        latency_s=1e-5,
    )
    plan = rlinit.schedule(llama, hardware, objective="latency", time_limit_s=2)
    assert plan.status in ("optimal", "feasible")
    mapped = plan.to_device_map(llama)
    layers = Counter(device for path, device in mapped.items() if path.startswith("model.layers."))
    assert sum(layers.values()) == 32
    assert min(layers.values()) >= 12
    assert all(use.held_bytes <= 8e9 for use in plan.devices)
    stages = rlinit.schedule(llama, hardware, objective="pipeline", time_limit_s=10)
    assert list(to_split_spec(stages, llama)) == ["model.layers.16"]


def test_a_vit_stays_on_the_fast_gpu() -> None:
    """Views cost nothing, and links have latencies: little or nothing of a ViT leaves the A100."""
    vit = transformers.ViTForImageClassification(transformers.ViTConfig()).eval()  # type: ignore[no-untyped-call]
    graph = Graph.from_torch(vit, (torch.zeros(1, 3, 224, 224),))
    hardware = Hardware.preset("cpu-t4-a100")
    plan = rlinit.schedule(graph, hardware, objective="latency", time_limit_s=2)
    assert Counter((plan.assignment or {}).values())["a100"] >= graph.num_ops - 2
    assert plan.value <= (plan.baselines["best single device"] or 0.0)


def test_a_throughput_plan_runs_at_its_batch_with_all_devices_named() -> None:
    """Eight images, of which a plan of one image's graph deals some to each device, give what the model gives."""
    vit = transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL)).eval()  # type: ignore[no-untyped-call]
    images = torch.randn(8, 3, 224, 224)
    graph = Graph.from_torch(vit, (images[:1],))
    hardware = Hardware.preset("cpu-t4-a100")
    plan = rlinit.schedule(graph, hardware, objective="throughput", inputs=8, time_limit_s=2)
    places = {device.name: "cpu" for device in hardware.devices}
    with torch.no_grad():
        expected = vit(images).logits
    torch.testing.assert_close(rlinit.run(plan, vit, images, devices=places).logits, expected)
