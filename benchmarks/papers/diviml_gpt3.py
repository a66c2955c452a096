"""DIVIML Table V: GPT-3 on six nodes of a CPU, two T4 and two A100, and what breaking symmetry is worth.

The graph is `rlinit.datasets.zoo.llm`'s GPT-3 330M with 20 tokens, its layers' heads together, under the roofline model
(the paper's model, times and size are not published). *Single node* schedules a sixth of the layers on one node and
repeats that on the others, one after the other; *multi node* schedules all of it on all 30 devices. The variants of
symmetry breaking are compared where programs still move: two layers on two nodes, the same seconds each.

Run as ``python -m benchmarks.papers.diviml_gpt3 [--seconds S] [--inputs L]``.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import rlinit
from benchmarks.record import print_table, save
from rlinit.budget import Budget
from rlinit.datasets.zoo import llm
from rlinit.exact.placements.milp.base_model import PlacementMilpSettings
from rlinit.exact.placements.milp.solve import solve_placement_milp
from rlinit.placements.lowering import lower_placement

PAPER = {
    "single node, MILP": 4.8,
    "single node, MILP-SPLIT": 5.7,
    "none": 5.0,
    "batches": 5.6,
    "tasks": 6.3,
    "time": 6.3,
}


def first_ops(graph: rlinit.Graph, count: int) -> rlinit.Graph:
    """Return the first ops of a graph in natural order."""
    keep = graph.order[:count].tolist()
    names = {graph.names[v] for v in keep}
    data = graph.to_dict()
    ops = [(row["name"], {k: x for k, x in row.items() if k != "name"}) for row in data["ops"] if row["name"] in names]
    return rlinit.Graph.build(ops, [(u, v) for u, v in data["edges"] if u in names and v in names], name=graph.name)


def nodes(hardware: rlinit.Hardware, count: int) -> rlinit.Hardware:
    """Return the devices of the first nodes."""
    wanted = sorted({device.node for device in hardware.devices})[:count]
    at = [i for i, device in enumerate(hardware.devices) if device.node in wanted]
    devices = tuple(hardware.devices[i] for i in at)
    return rlinit.Hardware(
        devices, hardware.bandwidth[np.ix_(at, at)], hardware.latency_s[np.ix_(at, at)], f"{hardware.name}-{count}"
    )


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--inputs", type=int, default=16)
    arguments = parser.parse_args()
    seconds, inputs = arguments.seconds, arguments.inputs
    graph = llm.build("gpt3-330m", tokens=20, split_heads=False)
    cluster = rlinit.Hardware.preset("gpt3-nodes")
    rows: list[dict[str, Any]] = []

    def put(what: str, makespan_s: float | None, **more: Any) -> None:
        rate = inputs / makespan_s if makespan_s else 0.0
        rows.append({"what": what, "inputs_per_s": rate, "paper": PAPER.get(what, ""), **more})
        print(rows[-1], flush=True)

    def schedule(part: rlinit.Graph, hardware: rlinit.Hardware) -> rlinit.Plan:
        limits: dict[str, Any] = {"resident": "tensors", "time_limit_s": seconds}
        return rlinit.schedule(part, hardware, objective="throughput", inputs=inputs, **limits)

    sixth = schedule(first_ops(graph, -(-graph.num_ops // 6)), nodes(cluster, 1))
    put("single node, a sixth repeated", 6 * sixth.value, gap=sixth.gap)
    whole = schedule(graph, cluster)
    put("multi node", whole.value, gap=whole.gap)
    put("bound", whole.bound)
    two_layers = first_ops(graph, 2 * graph.num_ops // 24)
    pair = nodes(cluster, 2)
    problem = lower_placement(two_layers, pair, "throughput", inputs=inputs).problem
    node_of_device = np.unique([device.node for device in pair.devices], return_inverse=True)[1].astype(np.int64)
    for variant in ("none", "batches", "tasks", "time"):
        settings = PlacementMilpSettings(intra_symmetry=variant, inter_symmetry=variant, node_of_device=node_of_device)
        found = solve_placement_milp(problem, budget=Budget(seconds), settings=settings)
        put(f"{variant}", found.value, bound_s=found.bound, value_s=found.value, ops=two_layers.num_ops)
    save("gpt3", rows, seconds=seconds, inputs=inputs)
    print_table(
        f"GPT-3 330M, {inputs} inputs of 20 tokens, {seconds:g} s each; variants: program on two layers and two nodes",
        ["schedule", "inputs a second", "paper"],
        [[r["what"], r["inputs_per_s"], r["paper"]] for r in rows],
    )


if __name__ == "__main__":
    main()
