"""Equal inputs and seeds give the plans and bounds that were recorded, without a time limit.

``python -m tests.regression.recorded_plans --record`` writes the record again; do that only where a change of
plans is meant, and say so in the changelog. Numbers are kept in full and compared within 1e-12 (values) and 1e-9
(bounds); what does what, and when, is kept as hashes, with times to 12 significant digits.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit

# Where data sets are found; no other line of this file knows of a module inside the package.
from rlinit.datasets import dnn_partitioning, imagenet, moirai, pipedream
from rlinit.datasets.random.randomly_wired import rwnn
from rlinit.datasets.random.synthetic import batches

RECORD = Path(__file__).with_name("recorded_plans.json")
INSTANCES = Path(os.environ.get("RLINIT_INSTANCES") or Path(__file__).resolve().parents[3] / "shared" / "instances")

IMAGENET = (
    "Xception",
    "ResNet50",
    "ResNet101",
    "ResNet152",
    "DenseNet121",
    "ResNet101V2",
    "ResNet152V2",
    "DenseNet169",
    "DenseNet201",
    "InceptionResNetV2",
)
STAGE_HEURISTICS = ("natural", "random", "brkga", "anneal")
PLACEMENT_HEURISTICS = (
    "best-device",
    "met",
    "greedy",
    "heft",
    "m-topo",
    "m-etf",
    "m-sct",
    "getf",
    "sa",
    "ea",
    "segments",
)
PIPELINE_BOUNDS = (
    "auto",
    "simple",
    "anchored-cut",
    "spectral",
    "lp-root",
    "three-superblock",
    "guess",
    "ideals",
)
MEMORY_BOUNDS = ("auto", "simple", "ideals")
PLACEMENT_BOUNDS = ("auto", "path", "load", "around", "relaxation", "chain", "joined")


@dataclass(frozen=True, slots=True)
class Case:
    """One call to `rlinit.schedule` or `rlinit.bound`, and the published file it reads, if any."""

    name: str
    run: Callable[[], rlinit.Plan | rlinit.ProvenBound]
    needs: str = ""


# -- graphs and devices ----------------------------------------------------------------------------------------


@cache
def zoo(name: str) -> rlinit.Graph:
    """Return an ImageNet network."""
    return imagenet.load(name)


@cache
def wired(wiring: Any, seed: int, modules: int, nodes: int, channels: int = 1, sizes: int = 1) -> rlinit.Graph:
    """Return a randomly wired network with times for batches of up to `sizes` inputs."""
    return rwnn(
        wiring,
        seed=seed,
        num_modules=modules,
        nodes_per_module=nodes,
        channels=channels,
        dependence="strong" if channels == 1 else "weak",
        batch_sizes=range(1, sizes + 1),
    )


@cache
def like_network(seed: int, num_ops: int) -> rlinit.Graph:
    """Return a synthetic graph with the distributions of real networks."""
    return next(batches(seed, 1, num_nodes=num_ops)).graph(0)


@cache
def dag(
    seed: int, num_ops: int, *, reach: int = 6, tied: float = 0.1, ties: bool = False, shards: int = 1
) -> rlinit.Graph:
    """Return a random graph on devices of kinds a and b.

    A part `tied` of the ops share a device, some others are kept off a kind; edges span at most `reach` ops; with
    `ties` costs are small integers.
    """
    rng = np.random.default_rng([seed, num_ops])

    def draw() -> float:
        return float(rng.integers(0, 5)) if ties else float(rng.random() + 0.05)

    ops: list[tuple[str, dict[str, Any]]] = []
    for v in range(num_ops):
        base, slower = draw(), float(rng.integers(1, 4))
        times = {
            kind: {c: base * speed * (0.5 + 0.5 * c) for c in range(1, shards + 1)}
            for kind, speed in (("a", 1.0), ("b", slower if ties else slower * (0.5 + rng.random())))
        }
        row: dict[str, Any] = {"time_s": times, "out_bytes": draw(), "param_bytes": draw()}
        kind, together = str(rng.choice(["a", "b"])), bool(rng.random() < tied)
        if together:
            row["colocate"] = "together"
        elif rng.random() < 0.1:
            row["forbidden"] = [kind]
        ops.append((f"op{v}", row))
    pairs = [(u, v) for u, v in itertools.combinations(range(num_ops), 2) if v - u <= reach]
    return rlinit.Graph.build(ops, [(f"op{u}", f"op{v}") for u, v in pairs if rng.random() < 0.35], name=f"dag-{seed}")


@cache
def wide(seed: int, num_ops: int) -> rlinit.Graph:
    """Return a random graph with times that hold on every device and no ties between ops: it has many ideals."""
    rng = np.random.default_rng([seed, num_ops, 1])
    ops = [
        (f"op{v}", {"time_s": float(t), "out_bytes": float(out), "param_bytes": float(param)})
        for v, (t, out, param) in enumerate(zip(*(rng.random((3, num_ops)) + 0.05), strict=True))
    ]
    pairs = [(u, v) for u, v in itertools.combinations(range(num_ops), 2) if rng.random() < 3.0 / num_ops]
    return rlinit.Graph.build(ops, [(f"op{u}", f"op{v}") for u, v in pairs], name=f"wide-{seed}")


@cache
def three(memory: float = float("inf"), sizes: tuple[int, ...] | None = None) -> rlinit.Hardware:
    """Return two devices of kind a and one of kind b over slow links."""
    kinds = {"a0": "a", "a1": "a", "b0": "b"}
    listed = [rlinit.Device(name, kind, memory, batch_sizes=sizes) for name, kind in kinds.items()]
    return rlinit.Hardware.mesh(listed, 2.0, latency_s=0.25)


@cache
def unequal(memory: float = float("inf"), cache_bytes: float = 2.0) -> rlinit.Hardware:
    """Return four stages of two kinds, with caches that overflow."""
    listed = [
        rlinit.Device(name, kind, memory, cache_bytes * factor, bytes_per_s=4.0 * factor, io_bandwidth=rate)
        for name, kind, factor, rate in (
            ("a0", "a", 1, 8.0),
            ("a1", "a", 1, 8.0),
            ("b0", "b", 2, 4.0),
            ("b1", "b", 2, 4.0),
        )
    ]
    return rlinit.Hardware.mesh(listed, 8.0)


def stages(k: int) -> rlinit.Hardware:
    """Return k equal stages with little memory on the chip."""
    return rlinit.Hardware.pipeline(k, bandwidth=8.0, cache=2.5, bytes_per_s=4.0)


def server() -> rlinit.Hardware:
    """Return a CPU and two GPUs."""
    return rlinit.Hardware.preset("cpu-t4-a100")


# -- cases -----------------------------------------------------------------------------------------------------


def real_networks() -> Iterator[Case]:
    """Ten networks on Edge TPUs are solved by default; one is placed."""
    for name in IMAGENET:
        for objective, k in (("memory", 4), ("memory", 6), ("pipeline", 4), ("pipeline", 8)):
            yield case(f"zoo {name} {objective} k={k}", partial(zoo, name), tpus(k), objective=objective)
    for method in ("natural", "random", "anneal", "agent"):
        yield case(
            f"zoo DenseNet121 memory k=6 {method}", partial(zoo, "DenseNet121"), tpus(6), "memory", method=method
        )
    for method in ("heft", "m-sct", "agent", "segments"):
        yield case(f"zoo InceptionV3 latency {method}", partial(zoo, "InceptionV3"), server, "latency", method=method)
    yield case(
        "zoo MobileNetV2 latency coarsen", partial(zoo, "MobileNetV2"), moirais, "latency", method="heft", coarsen=True
    )
    yield case("zoo ResNet50 throughput heft", partial(zoo, "ResNet50"), server, "throughput", method="heft", inputs=8)


def stage_heuristics() -> Iterator[Case]:
    """Every heuristic and the agent on equal and unequal devices."""
    for method in (*STAGE_HEURISTICS, "agent"):
        for objective in ("pipeline", "memory"):
            yield case(f"wide-40 {objective} {method}", wide40, partial(stages, 5), objective, method=method, seed=4)
        yield case(f"unequal-30 pipeline {method}", loose30, unequal, method=method, seed=5)
    for method in ("natural", "anneal", "agent"):
        yield case(f"like-network-60 pipeline {method}", partial(like_network, 5, 60), tpus(8), method=method, seed=3)
    yield case("unequal-30 memory anneal", loose30, unequal, "memory", method="anneal", seed=5)
    yield case("unequal-30 pipeline anneal, tight memory", loose30, partial(unequal, 5.5), method="anneal", seed=5)
    yield case("unequal-30 pipeline anneal, ops tied", dag30, unequal, method="anneal", seed=5)
    yield case("wide-40 pipeline anneal, two side by side", wide40, partial(stages, 5), method="anneal", seed=4, jobs=2)


def stage_programs() -> Iterator[Case]:
    """Prove optima of stage problems by each method that can, and vary the options of the windows."""
    for objective in ("pipeline", "memory"):
        for method in ("auto", "milp", "warm", "ideals"):
            yield case(f"like-network-12 {objective} {method}", network12, tpus(3), objective, method=method)
            yield case(f"unequal-12 {objective} {method}", dag12, unequal, objective, method=method)
    yield case("wide-40 pipeline auto k=2", wide40, partial(stages, 2))
    yield case("wide-28 pipeline auto k=3, gap 0.002", partial(wide, 3, 28), partial(stages, 3), gap=0.002)
    yield case("wide-34 memory auto k=4", partial(wide, 5, 34), partial(stages, 4), "memory")
    yield case("dag-12 ties pipeline auto", ties12, unequal)
    yield case("unequal-12 pipeline infeasible", dag12, partial(unequal, 1.5))
    yield case("unequal-12 pipeline tight memory", dag12, partial(unequal, 3.5))
    yield case("wide-16 pipeline, stages given", wide16, partial(stages, 1), stages=3)
    yield case("wide-16 pipeline warm, agent stages", wide16, partial(stages, 3), method="warm", agent="stages")
    yield case("wide-16 pipeline warm, window 2", wide16, partial(stages, 3), method="warm", window=2, agent="natural")
    yield case("wide-16 pipeline warm, window None", wide16, partial(stages, 3), method="warm", window=None)
    yield case("wide-16 pipeline warm, gap 0.3", wide16, partial(stages, 3), method="warm", gap=0.3)
    yield Case("wide-16 pipeline, a plan refined", refined_stages)
    for method in ("auto", "natural", "anneal", "warm", "agent"):
        yield case(
            f"wide-16 pipeline activations {method}", wide16, partial(stages, 3), method=method, activations=True
        )


def placement_heuristics() -> Iterator[Case]:
    """Every heuristic, local search and the agent, for one input and for several."""
    for method in (*PLACEMENT_HEURISTICS, "sweep", "agent"):
        yield case(f"er-2x32 latency {method}", er2x32, server, "latency", method=method, seed=3)
        yield case(f"ws-2x16 two channels latency {method}", ws2x16, server, "latency", method=method, seed=4)
        yield case(
            f"dag-30 tight memory latency {method}", dag30, partial(three, 25.0), "latency", method=method, seed=5
        )
        if method != "agent":
            options: dict[str, Any] = {"method": method, "inputs": 4, "seed": 6}
            yield case(f"ws-2x12 throughput {method}", ws2x12, server, "throughput", **options)
    for method in ("heft", "m-sct", "ea", "sweep"):
        for transfers in ("exclusive", "blocking"):
            options = {"method": method, "transfers": transfers, "seed": 7}
            yield case(f"dag-30 {transfers} latency {method}", dag30, three, "latency", **options)
            yield case(f"ws-2x12 {transfers} throughput {method}", ws2x12, server, "throughput", inputs=4, **options)
        options = {"method": method, "resident": "weights", "seed": 8}
        yield case(f"dag-30 resident weights latency {method}", dag30, partial(three, 7.0), "latency", **options)
    yield case("er-2x32 latency sweep, two side by side", er2x32, server, "latency", method="sweep", jobs=2)
    yield case("er-2x8 latency sweep, coarse", er2x8, server, "latency", method="sweep", coarsen=True)
    yield case("er-2x32 latency sweep, from sa", er2x32, server, "latency", method="sweep", agent="sa", seed=9)
    yield case("er-2x32 latency agent by name", er2x32, server, "latency", method="agent", agent="latency", seed=9)


def placement_programs() -> Iterator[Case]:
    """Prove optima of placements by each method that can, under every rule of transfers and of memory."""
    for n in (8, 12, 16, 20):
        yield case(f"dag-{n} latency auto", partial(dag, 11, n), three, "latency")
        yield case(f"dag-{n} ties latency auto", partial(dag, 12, n, ties=True), three, "latency")
    for method in ("milp", "split"):
        yield case(f"dag-10 latency {method}", dag10, three, "latency", method=method)
    for method in ("split", "auto"):
        yield case(f"er-2x8 latency {method}", er2x8, server, "latency", method=method)
    yield case("er-2x8 latency split, two side by side", er2x8, server, "latency", method="split", jobs=2)
    yield case("ws-2x8 two channels latency split", ws2x8, server, "latency", method="split")
    for transfers in ("parallel", "exclusive", "blocking"):
        yield case(f"dag-8 {transfers} latency auto", dag8, partial(three, 9.0), "latency", transfers=transfers)
        yield case(f"dag-8 {transfers} latency milp", dag8, three, "latency", transfers=transfers, method="milp")
    for transfers in ("exclusive", "blocking"):
        yield case(f"er-2x8 {transfers} latency auto", er2x8, server, "latency", transfers=transfers)
    yield case("dag-16 tight memory latency auto", dag16, partial(three, 14.0), "latency")
    for resident in ("tensors", "weights"):
        yield case(f"dag-8 resident {resident} latency auto", dag8, partial(three, 6.0), "latency", resident=resident)
    yield case("dag-8 latency infeasible", dag8, partial(three, 0.5), "latency")
    yield case("dag-10 latency coarsen", dag10, three, "latency", coarsen=True)
    for method in ("auto", "milp", "split"):
        yield case(f"dag-4 throughput {method}", dag4, halves, "throughput", inputs=2, method=method)
    yield case("er-1x8 throughput auto", partial(wired, "er", 1, 1, 8, 1, 2), server, "throughput", inputs=2)
    yield case("dag-6 throughput auto tight memory", dag6, partial(three, 9.0, (1, 2)), "throughput", inputs=2)
    yield Case("er-2x32 latency sweep, a plan refined", refined_placement)


def bounds() -> Iterator[Case]:
    """Every bound by name on two graphs an objective."""
    for name in PIPELINE_BOUNDS:
        yield bounded(f"like-network pipeline bound {name}", network30, tpus(4), "pipeline", method=name)
        yield bounded(f"unequal-12 pipeline bound {name}", dag12, unequal, "pipeline", method=name)
    for name in MEMORY_BOUNDS:
        yield bounded(f"like-network memory bound {name}", network30, tpus(4), "memory", method=name)
        yield bounded(f"wide-16 memory bound {name}", wide16, partial(stages, 3), "memory", method=name)
    for name in PLACEMENT_BOUNDS:
        yield bounded(f"er-2x8 latency bound {name}", er2x8, server, "latency", method=name)
        if name != "auto":  # all of them take 3 s here
            tight = partial(three, 14.0)
            yield bounded(f"dag-16 tight memory latency bound {name}", dag16, tight, "latency", method=name)
        yield bounded(f"ba-1x12 throughput bound {name}", ba1x12, server, "throughput", method=name, inputs=4)
        yield bounded(f"dag-6 throughput bound {name}", dag6, halves, "throughput", method=name, inputs=2)


def published() -> Iterator[Case]:
    """Instances of other authors, read where they are."""
    for name in ("layer-bert24", "layer-gnmt", "layer-resnet50", "layer-inceptionv3", "op-bert_l-3", "op-bert_l-6"):
        path = f"dnn-partitioning/throughput/{name}_inference.json"
        yield Case(f"dnn-partitioning {name} pipeline", partial(split_workload, path), path)
    for name, k in (("densenet121", 4), ("densenet121", 8), ("gnmt", 4), ("gnmt", 8), ("inception_v3", 4)):
        path = f"pipedream/{name}.txt"
        yield Case(f"pipedream {name} pipeline k={k}", partial(split_profile, path, k), path)
    for name, method in itertools.product(("GoogLeNet", "yolov5x"), ("heft", "m-sct", "agent")):
        path = f"moirai/{name}.xls"
        yield Case(f"moirai {name} latency {method}", partial(place_instance, path, method), path)


def case(
    name: str,
    graph: Callable[[], rlinit.Graph],
    hardware: Callable[[], rlinit.Hardware],
    objective: Any = "pipeline",
    **options: Any,
) -> Case:
    """Return a call to `rlinit.schedule`."""
    options = _memory_rule(objective) | options
    return Case(name, lambda: rlinit.schedule(graph(), hardware(), objective=objective, **options))


def bounded(
    name: str,
    graph: Callable[[], rlinit.Graph],
    hardware: Callable[[], rlinit.Hardware],
    objective: Any,
    **options: Any,
) -> Case:
    """Return a call to `rlinit.bound`."""
    options = _memory_rule(objective) | options
    return Case(name, lambda: rlinit.bound(graph(), hardware(), objective, **options))


def _memory_rule(objective: str) -> dict[str, Any]:
    """Return the rule under which placements were recorded where a case names none."""
    return {"resident": "tensors"} if objective in ("latency", "throughput") else {}


def refined_stages() -> rlinit.Plan:
    """Return what windows make of a heuristic's plan."""
    graph, hardware = wide16(), stages(3)
    return rlinit.schedule(graph, hardware, method="warm", agent=rlinit.schedule(graph, hardware, method="natural"))


def refined_placement() -> rlinit.Plan:
    """Return what local search makes of a heuristic's plan."""
    graph, hardware = er2x32(), server()
    first = rlinit.schedule(graph, hardware, objective="latency", method="getf", resident="tensors")
    options: dict[str, Any] = {"method": "sweep", "agent": first, "seed": 10, "resident": "tensors"}
    return rlinit.schedule(graph, hardware, objective="latency", **options)


def split_workload(path: str) -> rlinit.Plan:
    """Return the plan of a workload of dnn-partitioning."""
    graph, hardware = dnn_partitioning.load(INSTANCES / path)
    return rlinit.schedule(graph, hardware, objective="pipeline")


def split_profile(path: str, k: int) -> rlinit.Plan:
    """Return the plan of a profile of PipeDream on k stages."""
    hardware = rlinit.Hardware.pipeline(k, bandwidth=16e9)
    return rlinit.schedule(pipedream.load(INSTANCES / path), hardware, objective="pipeline")


def place_instance(path: str, method: str) -> rlinit.Plan:
    """Return the placement of an instance of Moirai."""
    pytest.importorskip("xlrd", reason="reading .xls needs xlrd")
    graph, hardware = moirai.load(INSTANCES / path)
    return rlinit.schedule(graph, hardware, objective="latency", method=method, resident="tensors")


def tpus(k: int) -> Callable[[], rlinit.Hardware]:
    """Return what makes k Edge TPUs."""
    return partial(rlinit.Hardware.edge_tpus, k)


moirais = partial(rlinit.Hardware.preset, "moirai-inter")
halves = partial(three, float("inf"), (1, 2))
network12, network30 = partial(like_network, 1, 12), partial(like_network, 2, 30)
wide16, wide40 = partial(wide, 1, 16), partial(wide, 2, 40)
dag4, dag6 = partial(dag, 21, 4, shards=2), partial(dag, 22, 6, shards=2)
dag8, dag10, dag12 = partial(dag, 13, 8), partial(dag, 14, 10), partial(dag, 15, 12)
dag16, dag30, ties12 = partial(dag, 16, 16), partial(dag, 17, 30), partial(dag, 18, 12, ties=True)
loose30 = partial(dag, 19, 30, tied=0.0)
er2x8, er2x32 = partial(wired, "er", 1, 2, 8), partial(wired, "er", 2, 2, 32)
ws2x8, ws2x16 = partial(wired, "ws", 3, 2, 8, 2), partial(wired, "ws", 4, 2, 16, 2)
ba1x12, ws2x12 = partial(wired, "ba", 5, 1, 12, 1, 4), partial(wired, "ws", 5, 2, 12, 1, 4)

GROUPS = (
    real_networks,
    stage_heuristics,
    stage_programs,
    placement_heuristics,
    placement_programs,
    bounds,
    published,
)
CASES = {one.name: one for group in GROUPS for one in group()}

LOOSE_BOUNDS = {"spectral": 0.1}
"""Relative tolerance on bounds by methods that magnify the last bit: eigenvectors differ between processors."""


# -- what is kept of a result ----------------------------------------------------------------------------------


def digest(content: object) -> str:
    """Return the SHA-256 of the canonical JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def rounded(seconds: float) -> str:
    """Return 12 significant digits."""
    return f"{seconds + 0.0:.12g}"


def summary(result: rlinit.Plan | rlinit.ProvenBound) -> dict[str, Any]:
    """Return what a record holds: status, values, bounds, and hashes of who does what and when."""
    if isinstance(result, rlinit.ProvenBound):
        return {"bounds": list(result.bounds)}
    kept: dict[str, Any] = {
        "graph": result.graph_fingerprint[:16],
        "status": result.status,
        "values": None if result.values is None else list(result.values),
        "bounds": None if result.bounds is None else list(result.bounds),
    }
    if result.assignment is not None:
        kept["assignment"] = digest(dict(result.assignment))
    if result.stages:
        kept["stage_devices"] = digest([use.device for use in result.stages])
    if result.stage_orders:
        kept["stage_orders"] = digest(result.stage_orders)
    if result.start_s is not None:
        kept["start_s"] = digest({op: rounded(start) for op, start in result.start_s.items()})
        kept["batches"] = digest(
            sorted([one.op, one.device, one.shards, rounded(one.start_s), rounded(one.end_s)] for one in result.batches)
        )
    return kept


@cache
def recorded() -> dict[str, dict[str, Any]]:
    """Return the record by name of the case."""
    rows = json.loads(RECORD.read_text(encoding="utf-8"))
    return {row.pop("name"): row for row in rows}


def names(*groups: Callable[[], Iterator[Case]]) -> list[str]:
    """Return the names of the cases of some groups."""
    return [one.name for group in groups for one in group()]


def check(name: str) -> None:
    """Hold one case against its record; skips where a published file is not there."""
    needs = CASES[name].needs
    if needs and not (INSTANCES / needs).is_file():
        pytest.skip(f"published instance absent: {INSTANCES / needs}")
    kept, expected = summary(CASES[name].run()), dict(recorded()[name])
    for key, tolerance in (("values", 1e-12), ("bounds", LOOSE_BOUNDS.get(name.rpartition(" ")[2], 1e-9))):
        now, then = kept.pop(key, None), expected.pop(key, None)
        assert now == (then if then is None else pytest.approx(then, rel=tolerance, abs=0.0)), key
    assert kept == expected


def write_record() -> None:
    """Run every case, print the seconds each takes, and write the record, a line a case."""
    rows = []
    for one in CASES.values():
        started = time.perf_counter()
        rows.append({"name": one.name, **summary(one.run())})
        print(f"{time.perf_counter() - started:7.3f}  {rows[-1].get('status', 'bound'):10}  {one.name}", flush=True)
    lines = ",\n".join(json.dumps(row, allow_nan=False) for row in rows)
    RECORD.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", required=True, help="write the record anew")
    parser.parse_args()
    write_record()
