"""What the latency agent buys on randomly wired networks: against heuristics and searches, and as a start for search.

Run as ``python -m benchmarks.components.agent_latency [--parts inference placement]``. Values are makespans over
HEFT's, geometric means, all of the same run. None of the networks is part of training: those of the tables have seeds
from 0 on. The part ``inference`` is what the agent's steps take on generated graphs of cells on four devices, in
milliseconds of the processor, the median and the least of 40 calls.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import rlinit
from benchmarks.families.generated_placements import measured_network
from benchmarks.learning.protocol import processor_time
from benchmarks.record import RESULTS, geometric_mean, print_table, save, save_figure, timed
from rlinit.agent.latency_selection import load_latency_agent
from rlinit.agent.network.checkpoint import Checkpoint, load_checkpoint
from rlinit.agent.placements.agent import FAR, NEAR, LatencyAgent, Lookahead, decode_placement
from rlinit.agent.placements.features import Observation, observe
from rlinit.agent.placements.lookahead import play_ahead
from rlinit.agent.selection import find_checkpoint
from rlinit.budget import Budget
from rlinit.datasets.random.randomly_wired import WIRINGS, rwnn
from rlinit.heuristics.placements import PLACEMENT_HEURISTICS
from rlinit.heuristics.placements.local_search.search import sweep_placements
from rlinit.kernels.placements.rollout_arrays import Policy
from rlinit.kernels.placements.timeline import PARALLEL
from rlinit.placements.lowering import lower_placement
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan

SECONDS = (0.1, 0.3, 1.0, 2.0)

_PLACED_PER_S = 80e6
"""Ops that annealing and evolution place in a second here."""

_CALLS = 40
"""Of each step of the agent that is timed."""

INFERENCE_OPS = (200, 490, 1_000, 2_000)
"""Ops of the graphs that steps are timed on, about."""

SIZES = ((1, 32), (3, 32), (10, 32), (30, 32), (150, 64))
"""Modules and nodes a module, from graphs as small as those of training to 10,000 ops."""


def networks(seeds: int) -> Iterator[tuple[str, PlacementProblem]]:
    """Yield networks of DIVIML's size: every wiring, one to four channels, strong and weak."""
    hardware = rlinit.Hardware.preset("cpu-t4-a100")
    for seed in range(seeds):
        for wiring in WIRINGS:
            for channels, dependence in ((1, "strong"), (2, "weak"), (3, "strong"), (4, "weak")):
                graph = rwnn(
                    wiring,  # type: ignore[arg-type]
                    seed=seed,
                    channels=channels,
                    dependence=dependence,  # type: ignore[arg-type]
                )
                yield graph.name, lower_placement(graph, hardware, "latency").problem


def heft_value(problem: PlacementProblem) -> float:
    """Return HEFT's makespan."""
    found = PLACEMENT_HEURISTICS["heft"](problem, seed=0)
    if found is None:
        raise SystemExit("HEFT places nothing on a device without memory limit")
    return makespan(problem, found)


def value_of(problem: PlacementProblem, found: Placement | None) -> float:
    """Return the makespan of what was found; a method that finds nothing ends the benchmark."""
    if found is None:
        raise SystemExit("a method found no placement where there is no limit")
    return makespan(problem, found)


def decoded(agent: LatencyAgent, problem: PlacementProblem) -> Placement:
    """Return the agent's placement."""
    found = decode_placement(agent, problem)
    if found is None:
        raise SystemExit("the agent placed nothing where there is no limit")
    return found


def polished(problem: PlacementProblem, start: Placement | None, moves: int) -> Placement | None:
    """Return a start (None: HEFT's) after so many moves an op of local search in windows."""
    first = PLACEMENT_HEURISTICS["heft"](problem, seed=0) if start is None else start
    return sweep_placements(problem, seed=0, evaluations=moves * problem.num_ops, start=first)


def proposals(
    agent: LatencyAgent, untrained: LatencyAgent, problems: list[PlacementProblem]
) -> list[dict[str, object]]:
    """Compare the agent, without what it learned as well, with other quick methods."""
    methods: dict[str, Callable[[PlacementProblem], Placement | None]] = {
        "heft": lambda p: PLACEMENT_HEURISTICS["heft"](p, seed=0),
        "m-etf": lambda p: PLACEMENT_HEURISTICS["m-etf"](p, seed=0),
        "agent": lambda p: decoded(agent, p),
        "untrained": lambda p: decoded(untrained, p),
    }
    for moves in (25, 100, 400):
        methods[f"heft, then {moves} moves an op"] = lambda p, m=moves: polished(p, None, m)  # type: ignore[misc]
        methods[f"agent, then {moves} moves an op"] = lambda p, m=moves: polished(p, decoded(agent, p), m)  # type: ignore[misc]
    rows: list[dict[str, object]] = []
    for name, method in methods.items():
        method(problems[0])
        ratios, seconds = [], []
        for problem in problems:
            found, spent = timed(lambda p=problem, call=method: call(p))  # type: ignore[misc]
            ratios.append(value_of(problem, found) / heft_value(problem))
            seconds.append(spent)
        rows.append({"method": name, "over_heft": geometric_mean(ratios), "ms": 1e3 * float(np.mean(seconds))})
    return rows


def at_equal_time(agent: LatencyAgent, problems: list[PlacementProblem]) -> list[dict[str, object]]:
    """Compare searches that all have the same seconds, starts included."""

    def from_agent(problem: PlacementProblem, budget: Budget) -> Placement | None:
        return sweep_placements(problem, seed=0, budget=budget, start=decoded(agent, problem))

    def from_heft(problem: PlacementProblem, budget: Budget) -> Placement | None:
        start = PLACEMENT_HEURISTICS["heft"](problem, seed=0)
        return sweep_placements(problem, seed=0, budget=budget, start=start)

    def named(name: str) -> Callable[[PlacementProblem, Budget], Placement | None]:
        # As many changes as fit into the time, so that annealing has cooled down when it is over.
        return lambda problem, budget: PLACEMENT_HEURISTICS[name](
            problem, seed=0, budget=budget, evaluations=int(budget.remaining_s * _PLACED_PER_S / problem.num_ops)
        )

    methods = {
        "agent, then windows": from_agent,
        "heft, then windows": from_heft,
        "annealing": named("sa"),
        "evolution": named("ea"),
    }
    rows: list[dict[str, object]] = []
    for name, method in methods.items():
        method(problems[0], Budget(0.1))
        for limit in SECONDS:
            ratios, seconds = [], []
            for problem in problems:
                found, spent = timed(lambda p=problem, call=method, t=limit: call(p, Budget(t)))  # type: ignore[misc]
                ratios.append(value_of(problem, found) / heft_value(problem))
                seconds.append(spent)
            mean_s = float(np.mean(seconds))
            rows.append({"method": name, "limit_s": limit, "spent_s": mean_s, "over_heft": geometric_mean(ratios)})
    return rows


def by_size(agent: LatencyAgent, seeds: int) -> list[dict[str, object]]:
    """Show how the agent, trained on 110 to 340 ops, does on other sizes."""
    hardware = rlinit.Hardware.preset("cpu-t4-a100")
    rows: list[dict[str, object]] = []
    for modules, nodes in SIZES:
        graphs = [
            rwnn(wiring, seed=seed, num_modules=modules, nodes_per_module=nodes, channels=2, dependence="weak")  # type: ignore[arg-type]
            for wiring in WIRINGS
            for seed in range(seeds if modules < 100 else 1)
        ]
        problems = [lower_placement(graph, hardware, "latency").problem for graph in graphs]
        ratios, seconds = [], []
        for problem in problems:
            found, spent = timed(lambda p=problem: decoded(agent, p))  # type: ignore[misc]
            ratios.append(makespan(problem, found) / heft_value(problem))
            seconds.append(spent)
        ops = int(np.mean([problem.num_ops for problem in problems]))
        row = {"ops": ops, "method": "agent", "over_heft": geometric_mean(ratios), "seconds": float(np.mean(seconds))}
        rows.append(row)
    return rows


def inference(agent: LatencyAgent) -> list[dict[str, object]]:
    """Return milliseconds of each step of the agent, by size: median and least."""
    rows: list[dict[str, object]] = []
    for size in INFERENCE_OPS:
        problem = lower_placement(*measured_network(size, seed=1), "latency").problem
        observed = observe(problem)
        policy = agent.logits(observed)

        def ahead(how: Lookahead, seen: Observation = observed, says: Policy = policy) -> object:
            return play_ahead(seen.arrays, says, seen.cost_to_go, how.steps, how.rivals, 1.0, PARALLEL)

        steps: dict[str, Callable[[], object]] = {
            "features": lambda p=problem: observe(p),  # type: ignore[misc]
            "network": lambda seen=observed: agent.logits(seen),  # type: ignore[misc]
            "look far": lambda call=ahead: call(FAR),  # type: ignore[misc]
            "look near": lambda call=ahead: call(NEAR),  # type: ignore[misc]
        }
        row: dict[str, object] = {"ops": problem.num_ops, "devices": problem.num_devices}
        for name, step in steps.items():
            step()
            spent = [1e3 * processor_time(step)[1] for _ in range(_CALLS)]
            row |= {f"{name} ms": float(np.median(spent)), f"{name} least ms": min(spent)}
        rows.append(row)
    return rows


def silenced(path: Path) -> LatencyAgent:
    """Return a checkpoint's agent with its last layers set to zero: what an untrained one proposes."""
    checkpoint = load_checkpoint(path)
    last = ("key_out.weight", "devices.out.weight", "devices.out.bias")
    arrays = {name: array * np.float32(name not in last) for name, array in checkpoint.arrays.items()}
    return LatencyAgent(Checkpoint(arrays, checkpoint.card))


QUICK_MARKS = {"agent": "^"}
"""Marks of proposals, alone and followed by moves; what is not a proposal of the agent is not drawn."""


def draw(quick: list[dict[str, object]], timed_rows: list[dict[str, object]], sizes: list[dict[str, object]]) -> None:
    """Draw the searches over time, and the agent over sizes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in dict.fromkeys(row["method"] for row in timed_rows):
        mine = [row for row in timed_rows if row["method"] == name]
        left.plot([row["spent_s"] for row in mine], [row["over_heft"] for row in mine], marker="o", label=name)
    for name, mark in QUICK_MARKS.items():
        # A proposal alone, then after more and more moves of local search, as they were recorded.
        mine = [row for row in quick if str(row["method"]).split(", then ")[0] == name]
        seconds = [float(str(row["ms"])) / 1e3 for row in mine]
        over = [row["over_heft"] for row in mine]
        left.plot(seconds, over, f"k:{mark}", markersize=5, label=f"{name}, then 0, 25, 100, 400 moves an op")
    left.set(xscale="log", xlabel="seconds", ylabel="makespan / HEFT's", title="networks of 10 modules of 32 nodes")
    left.legend(fontsize=7)
    for name in dict.fromkeys(row["method"] for row in sizes):
        mine = [row for row in sizes if row["method"] == name]
        right.plot([row["ops"] for row in mine], [row["over_heft"] for row in mine], marker="o", label=name)
    right.set(xscale="log", xlabel="ops", title="trained on 110 to 340 ops")
    right.legend(fontsize=7)
    save_figure("agent_placement", figure)


def redraw() -> None:
    """Draw the recorded data again."""
    rows = json.loads((RESULTS / "agent_placement.json").read_text(encoding="utf-8"))["rows"]
    draw(rows["quick"], rows["equal_time"], rows["sizes"])


def main() -> None:
    """Run all parts, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", default="latency", help="name or path")
    parser.add_argument("--seeds", type=int, default=2, help="networks of each kind")
    parser.add_argument("--parts", nargs="+", choices=("inference", "placement"), default=("inference", "placement"))
    parser.add_argument("--redraw", action="store_true", help="only draw the recorded data again")
    arguments = parser.parse_args()
    if arguments.redraw:
        redraw()
        return
    path = find_checkpoint(arguments.checkpoint)
    if path is None:
        raise SystemExit(f"there is no checkpoint {arguments.checkpoint!r}")
    agent = load_latency_agent(path)
    if "inference" in arguments.parts:
        times = inference(agent)
        print_table("milliseconds of the processor", list(times[0]), (row.values() for row in times))
        save("agent_inference", times, checkpoint=arguments.checkpoint, calls=_CALLS)
    if "placement" not in arguments.parts:
        return
    problems = [problem for _, problem in networks(arguments.seeds)]
    quick = proposals(agent, silenced(path), problems)
    print_table("quick methods", ["method", "over HEFT", "ms"], (row.values() for row in quick))
    searches = at_equal_time(agent, problems[:: 1 if arguments.seeds == 1 else 2])
    print_table("equal time", ["method", "limit s", "spent s", "over HEFT"], (row.values() for row in searches))
    sizes = by_size(agent, arguments.seeds)
    print_table("sizes", ["ops", "method", "over HEFT", "seconds"], (row.values() for row in sizes))
    settings = {"checkpoint": arguments.checkpoint, "networks": arguments.seeds}
    save("agent_placement", {"quick": quick, "equal_time": searches, "sizes": sizes}, **settings)
    draw(quick, searches, sizes)


if __name__ == "__main__":
    main()
