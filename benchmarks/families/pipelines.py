"""Pipelines of wide graphs on equal and on unlike devices: value, bound, gap and seconds of `schedule`.

Run as ``python -m benchmarks.families.pipelines SET``, with ``--seconds S`` a case and ``--stages K ...``. With
``--processor-time`` limits count the processor time of the process, which other work on the machine does not lengthen;
programs of other packages (SCIP, HiGHS) still look at the wall clock.

========  ===============================================================================================
set       what
========  ===============================================================================================
searched  cells found by search and random wirings, on k equal stages: PipeDream's profile of NASNet
          mobile (at ``RLINIT_INSTANCES``), networks of pytorchcv on RTX 3090s, randomly wired ones on T4s
unlike    InceptionV3, EfficientNetB7 and NASNet mobile on eight unlike GPUs
shared    two and three networks of ImageNet that share four devices, Edge TPUs or unlike GPUs, and six
          graphs of 10 random ops each
traced    models of transformers with random weights, a few layers each, on an L4, a T4 and their host
large     50,000 ops with heavy-tailed times and skips: 64 equal stages, and eight unlike devices
========  ===============================================================================================
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import rlinit
from benchmarks.record import count_processor_time, print_table, save, timed
from rlinit.datasets.published import pipedream
from rlinit.datasets.published.location import instances_root
from rlinit.datasets.random.randomly_wired import rwnn
from rlinit.datasets.zoo import imagenet
from rlinit.importers.common.precision import Dtype

SEARCHED = ("nasnet_4a1056", "pnasnet5large", "darts")
"""Names in pytorchcv."""

UNLIKE = "p100+v100+t4+l4+rtx3090+rtx4090+a100+l40s"
"""Eight kinds of GPUs in one host."""

PAIRS = ("ResNet50+MobileNetV2", "ResNet50+ResNet101", "ResNet50+DenseNet121", "InceptionV3+Xception")
TRIPLES = ("ResNet50+ResNet101+MobileNetV2", "ResNet50+DenseNet121+Xception", "InceptionV3+ResNet50+MobileNetV2")
SHARED: tuple[tuple[str, Dtype, tuple[str, ...]], ...] = (
    ("edge-tpu-4", "int8", (*PAIRS, *TRIPLES)),
    ("p100+t4+rtx3090+a100", "fp16", (*PAIRS[:2], "ResNet50+DenseNet121+MobileNetV2")),
)
"""Devices, numbers, and the networks that share them."""

TRACED: tuple[tuple[str, str, dict[str, Any], dict[str, tuple[int, ...]]], ...] = (
    ("T5Model", "T5Config", {"num_layers": 4}, {"input_ids": (32,), "decoder_input_ids": (8,)}),
    (
        "WhisperModel",
        "WhisperConfig",
        {"encoder_layers": 3, "decoder_layers": 3},
        {"input_features": (80, 3000), "decoder_input_ids": (8,)},
    ),
    ("CLIPModel", "CLIPConfig", {}, {"input_ids": (32,), "pixel_values": (3, 224, 224)}),
    (
        "DPTForDepthEstimation",
        "DPTConfig",
        {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]},
        {"pixel_values": (3, 384, 384)},
    ),
    ("Gemma3ForCausalLM", "Gemma3TextConfig", {"num_hidden_layers": 4, "vocab_size": 1000}, {"input_ids": (32,)}),
    ("SwinModel", "SwinConfig", {}, {"pixel_values": (3, 224, 224)}),
    ("MambaModel", "MambaConfig", {"num_hidden_layers": 3}, {"input_ids": (32,)}),
)
"""Model, configuration, what differs from its defaults, and inputs: those of names with ids are tokens."""

Case = tuple[str, rlinit.Graph, rlinit.Hardware]


def network(name: str) -> rlinit.Graph:
    """Return a network of pytorchcv with shapes alone, in FP32 for one image."""
    import torch

    from benchmarks.components.pytorchcv_models import image_network
    from rlinit.importers.torch.export import export_program, from_program

    with torch.device("meta"):
        model, images = image_network(name)
    return from_program(export_program(model.eval(), images, {}), name=name)


def profile() -> rlinit.Graph | None:
    """Return PipeDream's profile of NASNet mobile, None where it is not there."""
    root = instances_root()
    return None if root is None else pipedream.load(root / "pipedream" / "nasnetamobile.txt")


def searched(stages: list[int]) -> Iterator[Case]:
    """Yield networks of searched cells and random wirings on equal stages."""
    measured = profile()
    graphs = [] if measured is None else [("nasnet mobile (profile)", measured, "")]
    if importlib.util.find_spec("pytorchcv") is None:
        print("pytorchcv is not installed: its networks are left out")
    else:
        graphs += [(name, network(name), "rtx3090") for name in SEARCHED]
    graphs += [(f"randomly wired {wiring}", rwnn(wiring, seed=0), "t4") for wiring in ("ws", "ba")]
    for name, graph, device in graphs:
        for k in stages:
            equal = rlinit.Hardware.preset(f"{k}x{device}") if device else rlinit.Hardware.pipeline(k, bandwidth=16e9)
            yield f"{name}, k = {k}", graph, equal


def unlike(_: list[int]) -> Iterator[Case]:
    """Yield networks on eight unlike GPUs."""
    hardware = rlinit.Hardware.preset(UNLIKE)
    for name in ("InceptionV3", "EfficientNetB7"):
        yield name, imagenet.load(name, dtype="fp32"), hardware
    if importlib.util.find_spec("pytorchcv") is not None:
        yield "nasnet_4a1056", network("nasnet_4a1056"), hardware


def heavy_tailed(num_ops: int, unlike: int, seed: int = 0) -> rlinit.Graph:
    """Return ops in 50 strands with skips, whose times have a heavy tail and differ by kind of device.

    Parameters
    ----------
    num_ops, unlike
        Ops, and kinds of devices.
    seed
        Of times and edges.
    """
    rng = np.random.default_rng(seed)
    own = 1e-5 * (1.0 + rng.pareto(1.5, num_ops))
    seconds = own[:, None] * rng.uniform(0.5, 2.0, (num_ops, unlike)) * rng.uniform(0.5, 2.0, unlike)
    edges = {(v - 50, v) for v in range(50, num_ops)}
    ends = rng.integers(51, num_ops, num_ops // 5)
    edges |= {
        (int(v - back), int(v)) for v, back in zip(ends, rng.integers(1, 2_000, len(ends)), strict=True) if v > back
    }
    ops = (
        (
            f"op{v}",
            {
                "time_s": {f"kind{d}": float(seconds[v, d]) for d in range(unlike)},
                "param_bytes": 1e3 * (1 + v % 7),
                "out_bytes": 1e4 * (1 + v % 5),
            },
        )
        for v in range(num_ops)
    )
    return rlinit.Graph.build(ops, ((f"op{u}", f"op{v}") for u, v in sorted(edges)), name=f"heavy-tailed-{num_ops}")


def large(_: list[int]) -> Iterator[Case]:
    """Yield 50,000 ops on 64 equal stages and on eight unlike devices."""
    for k, kinds in ((64, 1), (8, 8)):
        devices = [rlinit.Device(f"dev{i}", f"kind{i % kinds}") for i in range(k)]
        yield f"{k} stages of {kinds} kinds", heavy_tailed(50_000, kinds), rlinit.Hardware.mesh(devices, 1e10)


def drawn(num_ops: int, seed: int) -> rlinit.Graph:
    """Return random ops, each of which reads up to two of the six before it."""
    rng = np.random.default_rng(seed)
    draws = zip(rng.uniform(1e-4, 1e-2, num_ops), *1e4 * rng.integers(1, 100, (2, num_ops)), strict=True)
    ops = ((f"op{v}", {"time_s": t, "param_bytes": w, "out_bytes": o}) for v, (t, w, o) in enumerate(draws))
    edges = {(int(rng.integers(max(0, v - 6), v)), v) for v in range(1, num_ops) for _ in range(2)}
    return rlinit.Graph.build(ops, ((f"op{u}", f"op{v}") for u, v in sorted(edges)), name=f"drawn-{seed}")


def shared(_: list[int]) -> Iterator[Case]:
    """Yield several models on devices that they share, all as often."""
    equal = rlinit.Hardware.pipeline(4, bandwidth=1e9, cache=2e6)
    rlinit.schedule(rlinit.Graph.union({drawn(4, seed): 1.0 for seed in range(2)}), equal)  # loads kernels
    for preset, dtype, unions in SHARED:
        hardware = rlinit.Hardware.preset(preset)
        for names in unions:
            models = {imagenet.load(name, dtype=dtype): 1.0 for name in names.split("+")}
            yield f"{names}, {preset}", rlinit.Graph.union(models, hardware), hardware
    yield "six drawn graphs", rlinit.Graph.union({drawn(10, seed): 1.0 for seed in range(6)}), equal


def traced(_: list[int]) -> Iterator[Case]:
    """Yield models of transformers as torch traces them, on two unlike GPUs and their host."""
    import torch
    import transformers

    hardware = rlinit.Hardware.preset("l4+t4+cpu")
    for name, config, options, shapes in TRACED:
        model = getattr(transformers, name)(getattr(transformers, config)(**options)).eval()
        inputs = {
            key: torch.zeros((1, *shape), dtype=torch.int64 if key.endswith("ids") else torch.float32)
            for key, shape in shapes.items()
        }
        yield name, rlinit.Graph.from_torch(model, (), inputs), hardware


SETS = {"searched": searched, "unlike": unlike, "shared": shared, "traced": traced, "large": large}


def measure(case: Case, seconds: float) -> dict[str, Any]:
    """Return the row of one case."""
    name, graph, hardware = case
    began = time.process_time()
    plan, wall = timed(rlinit.schedule, graph, hardware, time_limit_s=seconds)
    row = {"case": name, "ops": graph.num_ops, "devices": hardware.num_devices, "value": plan.value}
    row |= {"bound": plan.bound, "gap": plan.gap, "source": plan.bound_source, "status": plan.status}
    return row | {"seconds": wall, "cpu_s": time.process_time() - began}


def main() -> None:
    """Measure a set from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set", choices=tuple(SETS))
    parser.add_argument("--stages", type=int, nargs="+", default=[4, 8, 16], help="for searched")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processor-time", action="store_true", help="count limits in processor time")
    arguments = parser.parse_args()
    if arguments.processor_time:
        count_processor_time()
    rows = []
    for case in SETS[arguments.set](arguments.stages):
        rows.append(measure(case, arguments.seconds))
        print(rows[-1], flush=True)
    print_table(f"{arguments.set}, {arguments.seconds:g} s", list(rows[0]), [row.values() for row in rows])
    print(f"largest gap {max(row['gap'] for row in rows):.2%}")
    save(f"pipelines_{arguments.set}", rows, seconds=arguments.seconds, processor_time=arguments.processor_time)


if __name__ == "__main__":
    main()
