"""Latency on graphs by their descriptions: value, bound and HEFT's value of each, and what was found when.

Run as ``python -m benchmarks.families.placements unrelated|randomly-wired|imported|large|tight``; ``--every K`` takes
every K-th graph only, ``--only TEXT`` those whose name or hardware has the text, ``--transfers exclusive`` lets a link
carry one transfer at a time. ``--processor-time`` keeps limits by the processor time of the process, which other work
on the machine does not lengthen. Imported networks need pytorchcv and transformers, as in `rlinit[bench]`.

=================  ================================================================================
set                graphs
=================  ================================================================================
unrelated          LU, Gauss, FFT and layered graphs of 223 to 334 tasks on 64 unrelated machines
randomly-wired     ten modules of 32 nodes, several channels, strong and weak dependence (DIVIML)
imported           networks of pytorchcv and transformers, by roofline on two preset machines
large              490 to 2,000 ops in cells on four unlike devices
tight              networks on devices with little more memory than a share of the weights and one peak of the model
=================  ================================================================================
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import rlinit
from benchmarks.families.generated_placements import SHAPES, measured_network, unrelated_machines
from benchmarks.papers.diviml import GPUS, ROWS
from benchmarks.record import count_processor_time, print_table, save, timed
from rlinit.datasets.random.randomly_wired import WIRINGS, rwnn
from rlinit.datasets.zoo import imagenet
from rlinit.plan import Transfers

NETWORKS = {
    "transformers": ("Swin-B", "GPT2"),
    "pytorchcv": ("inceptionv4", "inceptionresnetv2", "nasnet_4a1056", "pnasnet5large", "densenet201"),
}
"""Those of transformers first: what stands in for torchvision where that is absent keeps it from being imported."""

TIGHT_NETWORKS = ("ResNet50", "DenseNet121", "InceptionV3", "Xception")
MACHINES = ("moirai-inter", "cpu-t4-a100")
MOMENTS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds at which the value so far is noted."""

NOTABLE = 1e-3
"""Part of a value or bound by which it moves notably."""

Case = tuple[rlinit.Graph, rlinit.Hardware]


def unrelated(seed: int) -> Iterator[Case]:
    """Yield graphs on 64 unrelated machines, layered ones also with a tensor an edge."""
    for shape in SHAPES:
        for ccr in (0.1, 1.0, 10.0):
            yield unrelated_machines(shape, ccr, seed=seed)
    yield unrelated_machines("layered", 1.0, seed=seed, own_tensors=True)


def randomly_wired(seed: int) -> Iterator[Case]:
    """Yield networks of ten modules of 32 nodes, wirings in turn."""
    for at, (channels, dependence) in enumerate(ROWS):
        yield rwnn(WIRINGS[at % 3], seed=seed, channels=channels, dependence=dependence), GPUS  # type: ignore[arg-type]


def imported(_seed: int) -> Iterator[Case]:
    """Yield imported networks on each machine; a folder under the system's temporary one keeps the graphs."""
    from benchmarks.components.importers import hub_model, image_model

    folder = Path(tempfile.gettempdir()) / "rlinit-imported"
    folder.mkdir(exist_ok=True)
    for family, names in NETWORKS.items():
        for name in names:
            path = folder / f"{name}.json"
            if not path.exists():
                model, arguments, keywords = (image_model if family == "pytorchcv" else hub_model)(name)
                rlinit.Graph.from_torch(model.eval(), arguments, keywords, granularity="op", name=name).save(path)
            for machine in MACHINES:
                yield rlinit.load_graph(path), rlinit.Hardware.preset(machine)


def large(seed: int) -> Iterator[Case]:
    """Yield cells with branches on four unlike devices."""
    for num_ops in (490, 1_000, 1_370, 2_000):
        yield measured_network(num_ops, seed=seed)


def tight(_seed: int) -> Iterator[Case]:
    """Yield networks on devices of which every other is twice as fast, and whose memory holds their live tensors."""
    for name in TIGHT_NETWORKS:
        graph = imagenet.load(name, dtype="fp32")
        alone = rlinit.schedule(graph, rlinit.Hardware.pipeline(1, flops_per_s=1e12), objective="latency")
        weights = float(graph.param_bytes.sum())
        peak = alone.devices[0].held_bytes - weights
        for count, times in product((2, 4, 8), (1.05, 1.2, 1.5)):
            room = times * (weights / count + peak)
            devices = [
                rlinit.Device(f"d{i}", flops_per_s=1e12 * (1 + i % 2), bytes_per_s=1e11, memory_bytes=room)
                for i in range(count)
            ]
            yield graph, rlinit.Hardware.mesh(devices, 1e9, name=f"{count} with {times:g} times")


SETS = {
    "unrelated": unrelated,
    "randomly-wired": randomly_wired,
    "imported": imported,
    "large": large,
    "tight": tight,
}


def by_phase(plan: rlinit.Plan) -> dict[str, Any]:
    """Return when value and bound last moved notably, and for each phase its seconds and what both gained in it."""
    phases: dict[str, dict[str, float]] = {
        name: {"seconds": round(seconds, 3), "value": 0.0, "bound": 0.0} for name, seconds in plan.phase_s.items()
    }
    value, bound = float("inf"), 0.0
    row: dict[str, Any] = {"value_moved_s": 0.0, "bound_moved_s": 0.0}
    for entry in plan.history:
        gains = phases.setdefault(entry.phase, {"seconds": 0.0, "value": 0.0, "bound": 0.0})
        if entry.values and entry.values[0] < value:
            gains["value"] += value / plan.value - entry.values[0] / plan.value if value < float("inf") else 0.0
            row["value_moved_s"] = entry.time_s if entry.values[0] < value * (1 - NOTABLE) else row["value_moved_s"]
            value = entry.values[0]
        if entry.bounds and entry.bounds[0] > bound:
            gains["bound"] += (entry.bounds[0] - bound) / plan.value
            row["bound_moved_s"] = entry.time_s if entry.bounds[0] > bound * (1 + NOTABLE) else row["bound_moved_s"]
            bound = entry.bounds[0]
    return row | {"phases": phases}


def measure(
    graph: rlinit.Graph, hardware: rlinit.Hardware, time_limit_s: float, transfers: Transfers
) -> dict[str, Any]:
    """Return what `schedule` finds and proves, beside HEFT's value."""
    heft = rlinit.schedule(graph, hardware, objective="latency", method="heft", transfers=transfers)
    plan, seconds = timed(
        rlinit.schedule, graph, hardware, objective="latency", transfers=transfers, time_limit_s=time_limit_s
    )
    row: dict[str, Any] = {
        "graph": graph.name,
        "hardware": hardware.name,
        "ops": graph.num_ops,
        "heft": heft.value,
        "value": plan.value,
        "bound": plan.bound,
        "under_heft": 1 - plan.value / heft.value,
        "gap": plan.gap,
        "seconds": seconds,
        "proof": plan.bound_source,
        "load": os.getloadavg()[0],
    }
    row |= by_phase(plan)
    found = [(entry.time_s, entry.values[0]) for entry in plan.history if entry.values]
    for moment in MOMENTS:
        so_far = [value for time_s, value in found if time_s <= moment]
        if moment < time_limit_s and so_far:
            row[f"over_at_{moment:g}_s"] = min(so_far) / plan.value - 1
    return row


def main() -> None:
    """Measure one set and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=sorted(SETS))
    parser.add_argument("--time-limit-s", type=float, default=60.0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="take graphs whose name or hardware has this text; stores nothing")
    parser.add_argument("--transfers", choices=("parallel", "exclusive"), default="parallel")
    parser.add_argument("--processor-time", action="store_true", help="count limits in processor time")
    chosen = parser.parse_args()
    if chosen.processor_time:
        count_processor_time()
    rows: list[dict[str, Any]] = []
    for at, (graph, hardware) in enumerate(SETS[chosen.set](chosen.seed)):
        if at % chosen.every == 0 and (chosen.only or "") in f"{graph.name} {hardware.name}":
            if not rows:
                measure(graph, hardware, 5.0, chosen.transfers)  # compiles
            rows.append(measure(graph, hardware, chosen.time_limit_s, chosen.transfers))
            print({key: float(f"{v:.4g}") if isinstance(v, float) else v for key, v in rows[-1].items()}, flush=True)
    if not rows:
        parser.exit(2, f"no graph of {chosen.set!r} taken by --every {chosen.every} has --only {chosen.only!r}\n")
    header = [key for key in rows[0] if key != "phases"]
    print_table(f"{chosen.set}, {chosen.time_limit_s:g} s", header, ([row.get(k, "") for k in header] for row in rows))
    for key in ("under_heft", "gap"):
        values = sorted(row[key] for row in rows)
        print(f"{key}: least {values[0]:.3f}, median {statistics.median(values):.3f}, most {values[-1]:.3f}")
    name = f"placements_{chosen.set}".replace("-", "_") + "_exclusive" * (chosen.transfers == "exclusive")
    limits = {"time_limit_s": chosen.time_limit_s, "processor_time": chosen.processor_time}
    if chosen.only is None:
        save(name, rows, every=chosen.every, seed=chosen.seed, **limits)


if __name__ == "__main__":
    main()
