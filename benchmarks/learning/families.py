"""The problems that searches with and without a learned part are judged on: none was trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, product
from typing import Any

import numpy as np

import rlinit
from benchmarks.components.time_limits import devices, wide_graph
from benchmarks.families.generated_placements import measured_network, unrelated_machines
from benchmarks.families.task_graphs import communication, job_shops, standard
from benchmarks.learning.protocol import JUDGE_SEEDS
from benchmarks.papers.moirai import tightened
from rlinit.datasets.published import alwabp, dnn_partitioning, moirai, pipedream
from rlinit.datasets.published.location import instances_root
from rlinit.datasets.random import regal
from rlinit.datasets.random.placement_problems import FIRST_SEED, ProblemMix, random_problems
from rlinit.datasets.random.randomly_wired import WIRINGS, rwnn
from rlinit.datasets.zoo import imagenet, llm
from rlinit.placements.problem import PlacementProblem

__all__ = ["FAMILIES", "OTHER_RULES", "Case"]


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


def _with_rules(cases: Callable[[], Iterator[Case]]) -> Callable[[], Iterator[Case]]:
    """Return cases whose transfers exclude each other or block devices, by turns."""

    def ruled() -> Iterator[Case]:
        for at, case in enumerate(cases()):
            rule = ("exclusive", "blocking")[at % 2]
            yield Case(case.graph, case.hardware, dict(case.options) | {"transfers": rule})

    return ruled


def _many_machines() -> Iterator[Case]:
    """Yield graphs on 16, 32 or 64 unrelated machines; a transfer takes 3 or 10 times as long as a task."""
    for seed in JUDGE_SEEDS:
        shape = ("small lu", "small gauss", "small fft", "small layered")[seed % 4]
        yield Case(*unrelated_machines(shape, (3.0, 10.0)[seed % 2], seed=seed, machines=(16, 32, 64)[seed % 3]))


def _small_layered() -> Iterator[Case]:
    """Yield layered graphs of 20 to 60 tasks on three to six machines, under each rule of transfers."""
    for seed in JUDGE_SEEDS:
        drawn = unrelated_machines("small layered", (0.3, 1.0, 3.0)[seed % 3], seed=seed, machines=3 + seed % 4)
        yield Case(*drawn, {"transfers": ("parallel", "exclusive", "blocking")[seed % 3]})


def _as_trained(*mix: float) -> Callable[[], Iterator[Case]]:
    """Return problems drawn as a mix of training is, for choices that may not look at families to judge on."""

    def drawn() -> Iterator[Case]:
        rng = np.random.default_rng([FIRST_SEED, 1])
        while True:
            for size in (60, 110, 220, 490):
                yield _case_of(random_problems(rng, size, 1, ProblemMix(*mix))[0])

    return drawn


def _case_of(problem: PlacementProblem) -> Case:
    """Return a problem of whole ops as a graph and devices."""
    n, d = problem.num_ops, problem.num_devices
    devices = [rlinit.Device(f"m{i}", f"m{i}", memory_bytes=float(problem.capacity_bytes[i])) for i in range(d)]
    ops = []
    for v in range(n):
        seconds = {f"m{i}": float(problem.op_time_s[v, i]) for i in range(d)}
        held = float(problem.weight_bytes[v] + problem.shard_bytes[v])
        ops.append((f"o{v}", {"time_s": seconds, "param_bytes": held, "out_bytes": float(problem.tensor_bytes[v])}))
    with np.errstate(divide="ignore"):
        hardware = rlinit.Hardware(tuple(devices), 1.0 / problem.s_per_byte, problem.delay_s, f"{d} devices")
    graph = rlinit.Graph.build(ops, [(f"o{u}", f"o{v}") for u, v in problem.edges.tolist()], name=f"drawn-{n}")
    return Case(graph, hardware, {"resident": "weights", "transfers": problem.transfers})


def assembly_lines(numbers: Iterable[int], *families: str) -> Iterator[Case]:
    """Yield published assembly lines with unlike workers; none where the instances are not at hand.

    Parameters
    ----------
    numbers
        Of the instances, 1 to 80 in each family.
    families
        Names of their folders, which take turns.
    """
    root = instances_root()
    for number, family in product(numbers, families) if root else ():
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
        "assembly lines, unlike workers": partial(assembly_lines, range(4, 80, 8), "wee-mag", "tonge", "roszieg"),
        "wide graphs": _wide,
    },
}
"""By kind of problem and by name; each yields the same problems in the same order every time."""

OTHER_RULES: dict[str, Callable[[], Iterator[Case]]] = {
    "cells, shared links": _with_rules(_cells),
    "LU, Gauss, FFT, layered, shared links": _with_rules(_task_graphs),
    "ImageNet, shared links": _with_rules(_zoo),
    "16 to 64 machines, dear transfers": _many_machines,
    "small layered graphs": _small_layered,
    "as in training, parallel": _as_trained(0.4, 0.4, 0.0),
    "as in training, shared links": _as_trained(0.4, 0.4, 1.0),
}
"""Placements on which the agent, trained on parallel transfers and few devices, was likely to lose.

The last two are not to judge on, but to choose by when it is asked.
"""
