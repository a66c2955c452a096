"""The problems that searches with and without a learned part are judged on: none was trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any

import rlinit
from benchmarks.components.time_limits import devices, wide_graph
from benchmarks.families.generated_placements import measured_network, unrelated_machines
from benchmarks.families.task_graphs import communication, job_shops, standard
from benchmarks.learning.protocol import JUDGE_SEEDS
from benchmarks.papers.moirai import tightened
from rlinit.datasets.published import alwabp, dnn_partitioning, moirai, pipedream
from rlinit.datasets.published.location import instances_root
from rlinit.datasets.random import regal
from rlinit.datasets.random.randomly_wired import WIRINGS, rwnn
from rlinit.datasets.zoo import imagenet, llm

__all__ = ["FAMILIES", "Case"]


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One problem: a graph, devices, and what else `rlinit.schedule` is told."""

    graph: rlinit.Graph
    hardware: rlinit.Hardware
    options: Mapping[str, Any] = field(default_factory=dict)


def _cells() -> Iterator[Case]:
    for seed in JUDGE_SEEDS:
        yield Case(*measured_network((200, 490, 1_000)[seed % 3], seed=seed))


def _task_graphs() -> Iterator[Case]:
    for seed in JUDGE_SEEDS:
        shape = ("lu", "gauss", "fft", "layered")[seed % 4]
        yield Case(*unrelated_machines(shape, (0.1, 1.0)[seed % 2], seed=seed, machines=(8, 16)[seed // 2 % 2]))


def _randomly_wired() -> Iterator[Case]:
    hardware = rlinit.Hardware.preset("cpu-t4-a100")
    for seed in JUDGE_SEEDS:
        wired = rwnn(WIRINGS[seed % 3], seed=seed, channels=1 + seed % 4, dependence=("weak", "strong")[seed % 2])  # type: ignore[arg-type]
        yield Case(wired, hardware)


def _zoo() -> Iterator[Case]:
    names = ("densenet121", "inceptionv3", "xception", "inceptionresnetv2", "resnet50", "densenet201")
    for hardware, name in product(("moirai-inter", "cpu-t4-a100"), names):
        yield Case(imagenet.load(name, dtype="fp32"), rlinit.Hardware.preset(hardware))


def _language_models() -> Iterator[Case]:
    for name, hardware in product(("gpt3-330m", "swin-1.8b"), ("moirai-inter", "moirai-intra", "2xt4")):
        yield Case(llm.build(name), rlinit.Hardware.preset(hardware), {"resident": "weights"})


def _published() -> Iterator[Case]:
    root = instances_root()
    for name in ("GoogLeNet", "yolov5x") if root else ():
        assert root is not None
        graph, hardware = moirai.load(root / "moirai" / f"{name}.xls")
        yield Case(graph, hardware, {"resident": "tensors"})
        yield Case(graph, hardware, {"resident": "tensors", "transfers": "exclusive"})
        yield Case(graph, tightened(graph, hardware, 0.4), {"resident": "tensors"})


def _instances() -> Iterator[Case]:
    root = instances_root()
    if root is None:
        return
    for read, every in ((job_shops, 3), (standard, 5), (communication, 12)):
        for one in islice(read(root), 0, None, every):
            yield Case(one.graph, one.hardware)


def _lines() -> Iterator[Case]:
    root = instances_root()
    for number, family in product(range(4, 80, 8), ("wee-mag", "tonge", "roszieg")) if root else ():
        assert root is not None
        yield Case(*alwabp.load(root / "assembly-line" / "alwabp" / family / str(number)))


def _pipelines() -> Iterator[Case]:
    """Yield networks of the zoo, published profiles and wired networks on pipelines, of equal and of unlike devices."""
    root = instances_root()
    unlike = rlinit.Hardware.preset("moirai-inter")
    for name, stages in (("inceptionresnetv2", 8), ("inceptionv3", 8), ("densenet201", 16), ("efficientnetb7", 8)):
        yield Case(imagenet.load(name), rlinit.Hardware.edge_tpus(stages))
        yield Case(imagenet.load(name, dtype="fp32"), unlike)
    if root is not None:
        nasnet = pipedream.load(root / "pipedream" / "nasnetamobile.txt")
        yield from (Case(nasnet, rlinit.Hardware.pipeline(k, bandwidth=1e10)) for k in (4, 8))
        for path in sorted((root / "dnn-partitioning" / "throughput").rglob("*.json"))[::3]:
            yield Case(*dnn_partitioning.load(path))


def _wired_pipelines() -> Iterator[Case]:
    """Yield randomly wired networks whose modules are joined by several channels, on equal and on unlike devices."""
    for seed in JUDGE_SEEDS:
        wired = rwnn(WIRINGS[seed % 3], seed=seed, channels=2 + seed % 3, dependence="weak")  # type: ignore[arg-type]
        yield Case(wired, rlinit.Hardware.preset("cpu-t4-a100"))
        yield Case(wired, rlinit.Hardware.edge_tpus(4 + seed % 5))
        yield Case(wired, rlinit.Hardware.edge_tpus(4 + seed % 5), {"objective": "memory"})


def _memories() -> Iterator[Case]:
    """Yield networks on Edge TPUs for peak memory, the agent's own objective."""
    for name, stages in product(("inceptionresnetv2", "inceptionv3", "efficientnetb7"), (6, 12)):
        yield Case(imagenet.load(name), rlinit.Hardware.edge_tpus(stages), {"objective": "memory"})


def _wide() -> Iterator[Case]:
    """Yield random graphs that are wide, in pipelines."""
    for seed in islice(JUDGE_SEEDS, 4):
        yield Case(wide_graph(200 + 100 * seed, 3, seed=seed), devices(8, 3))
        yield Case(regal.generate(0, index=seed), rlinit.Hardware.pipeline((8, 16)[seed % 2], bandwidth=1.0))


FAMILIES: dict[str, dict[str, Callable[[], Iterator[Case]]]] = {
    "latency": {
        "cells, four unlike devices": _cells,
        "LU, Gauss, FFT, layered": _task_graphs,
        "DIVIML's networks": _randomly_wired,
        "ImageNet": _zoo,
        "language models": _language_models,
        "Moirai's instances": _published,
        "job shops, STG, communication": _instances,
    },
    "stages": {
        "networks in pipelines": _pipelines,
        "wired networks in pipelines": _wired_pipelines,
        "networks, peak memory": _memories,
        "assembly lines, unlike workers": _lines,
        "wide graphs": _wide,
    },
}
"""By kind of problem and by name; each yields the same problems in the same order every time."""
