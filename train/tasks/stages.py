"""The stage task: one-shot agents learn orders whose optimal slicing has a small bottleneck or peak.

The reference is the sliced natural order, which the untrained agent equals when it is greedy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rlinit.agent.network.config import OneShotConfig
from rlinit.agent.network.graph_features import GraphFeatures
from rlinit.agent.stages.features import featurise, slice_orders
from rlinit.arrays import FloatArray, IntArray
from rlinit.checker.stages import stage_uses
from rlinit.datasets.random.stage_problems import ProblemParams, draw_problems
from rlinit.graph import ANY_DEVICE, Graph
from rlinit.hardware import Hardware
from rlinit.heuristics.stages.annealing import anneal
from rlinit.heuristics.stages.orders import natural
from rlinit.kernels.orders import kahn
from rlinit.kernels.stages.features import NUM_STAGE_FEATURES
from rlinit.plan import Objective, Plan
from rlinit.stages.batch import StageBatch
from rlinit.train.tasks.fields import require
from rlinit.train.tasks.protocol import Choices, Labels, budgets_by_work, unpadded

if TYPE_CHECKING:
    import torch

    from rlinit.agent.network.oneshot_torch import OneShot

_VALIDATION_SEED = 1 << 62
"""Validation problems are of this seed and the next ones; training seeds are smaller."""

_FIRST_MOVES = 500
"""Moves of the rival's first run of annealing, 1 to 2 ms; twice as many in each further one."""

_IDEAL_CAP = 50_000
"""Problems of more ideals than this have no known optimum."""


@dataclass(frozen=True)
class StageParams:
    """Problems and network of the stage task."""

    draw: ProblemParams = field(default_factory=lambda: ProblemParams(draws=3))
    hidden: int = 64
    """Width of the network's node states."""
    layers: int = 6
    """Rounds of message passing."""
    least_reward: float = -0.3
    """Rewards below this count as this: of orders that are bad, how bad they are teaches little and drowns the rest.
    Orders that cannot be sliced within the capacities have it, too."""
    real_models: bool = True
    """Validate on the ten ImageNet graphs as well (they are never trained on, nor chosen by)."""

    def __post_init__(self) -> None:
        for name in ("hidden", "layers"):
            require(getattr(self, name) >= 1, f"problem.{name}", getattr(self, name), "at least 1")
        require(self.least_reward < 0, "problem.least_reward", self.least_reward, "less than 0")


@dataclass(frozen=True, slots=True, eq=False)
class StageProblems:
    """A batch of B stage problems: arrays, features, and values (B,) known of each; NaN where unknown."""

    problems: StageBatch
    features: GraphFeatures
    reference: FloatArray
    optimum: FloatArray
    bound: FloatArray
    names: tuple[str, ...] = ()

    @property
    def num_nodes(self) -> int:
        """Nodes of all problems together."""
        return self.problems.num_nodes

    def __len__(self) -> int:
        """Return B."""
        return len(self.problems)


@dataclass(frozen=True, slots=True, eq=False)
class StageTrajectories:
    """S orders of each of B problems: `orders` (S, N), stages' `ends` (S, K), `value` and `reward` (B, S)."""

    orders: IntArray
    ends: IntArray
    value: FloatArray
    reward: FloatArray


def greedy_orders(keys: FloatArray, batch: StageBatch) -> IntArray:
    """Return (1, N) the order of each graph that always takes the ready node of greatest key (N,), smallest first.

    Parameters
    ----------
    keys
        (N,) finite numbers.
    batch
        Problems of N nodes together.
    """
    orders = np.empty((1, batch.num_nodes), np.int64)
    for first, stop in zip(batch.node_ptr[:-1], batch.node_ptr[1:], strict=True):
        indptr = slice(first, stop + 1)
        orders[0, first:stop] = kahn(
            np.ascontiguousarray(keys[first:stop]), batch.succ_indptr[indptr], batch.succ, batch.pred_indptr[indptr]
        )
    return orders


def optimal_values(batch: StageBatch) -> FloatArray:
    """Return (B,) optimal values on the first level by dynamic programming over ideals; NaN beyond the cap."""
    from rlinit.exact.stages.ideals.solve import solve_ideals

    found = np.full(len(batch), np.nan)
    for g in range(len(batch)):
        result = solve_ideals(batch.problem(g), _IDEAL_CAP)
        if result is not None and result.value is not None:
            found[g] = result.value[0]
    return found


class StageTask:
    """See `rlinit.train.tasks.protocol.Task`."""

    params_class: ClassVar[type] = StageParams
    selection: ClassVar[tuple[str, ...]] = ("pipeline-30", "memory-60", "mixed-150", "wide-60")

    def __init__(self, params: StageParams) -> None:
        self.params = params

    def generate(self, seed: int, size: int, count: int) -> StageProblems:
        """Return training problems with features and reference values.

        See `Task.generate`.
        """
        return _with_values(draw_problems(self.params.draw, seed, size, count), exact=False)

    def validation(self, *, small: bool) -> Mapping[str, StageProblems]:
        """Return 30-op `pipeline`, 60-op `memory`, 150-op mixed, 60-op wide problems, and ImageNet at k = 4, 5, 6."""
        share = 8 if small else 1
        draw = dataclasses.replace
        params = draw(self.params.draw, draws=1, wide_share=0.0, shuffled_share=0.0)
        sets = {}
        recipes = (
            ("pipeline-30", draw(params, memory_share=0.0, cache_share=0.0, least_power=1.0), 30, 400),
            ("memory-60", draw(params, memory_share=1.0), 60, 160),
            ("mixed-150", params, 150, 64),
            ("wide-60", draw(params, wide_share=1.0), 60, 160),
        )
        for i, (name, drawn, size, count) in enumerate(recipes):
            batch = draw_problems(drawn, _VALIDATION_SEED + i, size, count // share)
            sets[name] = _with_values(batch, exact=name in ("pipeline-30", "memory-60"))
        if self.params.real_models:
            sets["imagenet-memory"] = _imagenet(2 if small else 10, (4,) if small else (4, 5, 6))
        return sets

    def label(self, batch: StageProblems) -> Labels:
        """Return orders (B, n) whose slicing is optimal, or the best known: natural or of 64 drawn evenly.

        Where the natural order is optimal it is the label, so that imitation teaches no change for its own sake.
        """
        from rlinit.exact.stages.ideals.solve import solve_ideals
        from rlinit.kernels.stages.rollouts import sample_orders

        problems = batch.problems
        drawn = np.empty((64, problems.num_nodes), np.int64)
        graph = (problems.node_ptr, problems.succ_indptr, problems.succ, problems.pred_indptr)
        sample_orders(batch.features.base_key, *graph, len(drawn), 0, drawn)
        values = slice_orders(problems, drawn, batch.reference)[0]
        best = values.argmin(axis=1)
        rows = []
        for g in range(len(problems)):
            first, stop = problems.node_ptr[g], problems.node_ptr[g + 1]
            problem = problems.problem(g)
            result = solve_ideals(problem, _IDEAL_CAP)
            exact = result is not None and result.assignment is not None and result.value is not None
            least = result.value[0] if exact else values[g, best[g]]  # type: ignore[index,union-attr]
            if batch.reference[g] <= least * (1.0 + 1e-9):
                rows.append(problem.order)
            elif exact:
                rank = np.empty(problem.num_nodes)
                rank[problem.order] = np.arange(problem.num_nodes)
                stage = result.assignment.stage  # type: ignore[union-attr]
                key = -(stage * problem.num_nodes + rank)
                rows.append(kahn(key, problem.succ_indptr, problem.succ, problem.pred_indptr))
            else:
                rows.append(drawn[best[g], first:stop])
        order = np.full((len(rows), max(map(len, rows))), -1, np.int32)
        for row, found in zip(order, rows, strict=True):
            row[: len(found)] = found
        return {"order": order}

    def rival(self, batch: StageProblems, seconds: float) -> FloatArray:
        """Return what annealing from the sliced natural order reaches.

        See `Task.rival`.
        """
        found = batch.reference.copy()
        for g, budget in enumerate(budgets_by_work(seconds, batch.problems.node_ptr)):
            problem = batch.problems.problem(g)
            best, moves = natural(problem), _FIRST_MOVES
            while best is not None and not budget.expired:
                best = min(best, anneal(problem, seed=moves, evaluations=moves) or best, key=lambda one: one[1])
                moves *= 2
            if best is not None:
                found[g] = best[1][0]
        return found

    def network(self, seed: int) -> OneShot:
        """Return a fresh network."""
        import torch

        from rlinit.agent.network.oneshot_torch import OneShot

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return OneShot(self._config())

    def _config(self) -> OneShotConfig:
        return OneShotConfig(
            "stages", node_features=NUM_STAGE_FEATURES, hidden=self.params.hidden, layers=self.params.layers
        )

    def forward(self, network: torch.nn.Module, batch: StageProblems, device: torch.device) -> torch.Tensor:
        """Return the keys (N,).

        See `Task.forward`.
        """
        from rlinit.agent.network.encoder import FeatureTensors

        keys: torch.Tensor = network(FeatureTensors.of(batch.features, device))[0]
        return keys.float()

    def rollout(
        self,
        network: torch.nn.Module,
        batch: StageProblems,
        outputs: torch.Tensor,
        *,
        samples: int,
        seed: int,
        greedy: bool = False,
    ) -> StageTrajectories:
        """Return sliced orders drawn by the keys.

        See `Task.rollout`.
        """
        from rlinit.agent.stages.log_prob import draw_orders

        if greedy:
            orders = greedy_orders(outputs.detach().cpu().numpy().astype(np.float64), batch.problems)
        else:
            orders = draw_orders(outputs, batch.problems, samples, seed)
        value, ends = slice_orders(batch.problems, orders, batch.reference * (1.0 + 1e-9))
        reference = batch.reference[:, None]
        ratio = np.divide(value, reference, out=np.ones_like(value), where=reference > 0)
        reward = np.maximum(1.0 - ratio, self.params.least_reward)
        return StageTrajectories(orders, ends, value, reward)

    def choices(
        self, network: torch.nn.Module, batch: StageProblems, outputs: torch.Tensor, played: StageTrajectories
    ) -> Choices:
        """Return log-probability and entropy of every choice among two or more ready nodes.

        See `Task.choices`.
        """
        import torch

        from rlinit.agent.stages.log_prob import order_terms

        log_prob, entropy, num_ready = order_terms(outputs, batch.problems, played.orders)
        samples = len(played.orders)
        graph = torch.from_numpy(batch.problems.graph_of_node).to(outputs.device)
        trajectory = graph[None, :] * samples + torch.arange(samples, device=outputs.device)[:, None]
        free = num_ready > 1
        return Choices(log_prob[free], entropy[free], trajectory[free])

    def imitation_loss(
        self, network: torch.nn.Module, batch: StageProblems, outputs: torch.Tensor, labels: Labels
    ) -> torch.Tensor:
        """Return the mean negative log-probability of the labelled orders.

        See `Task.imitation_loss`.
        """
        from rlinit.agent.stages.log_prob import order_terms

        orders = unpadded(labels["order"], batch.problems.node_ptr)[None, :]
        return -order_terms(outputs, batch.problems, orders)[0].sum() / len(batch)

    def plan(self, batch: StageProblems, played: StageTrajectories, problem: int, sample: int) -> Plan:
        """Return one schedule as a Plan on a pipeline of equal stages.

        See `Task.plan`.
        """
        problems = batch.problems
        first, stop = problems.node_ptr[problem], problems.node_ptr[problem + 1]
        k = int(problems.num_stages[problem])
        before = int(problems.num_stages[:problem].sum())
        ends = played.ends[sample, before : before + k]
        stage = np.empty(stop - first, np.int64)
        stage[played.orders[sample, first:stop]] = np.searchsorted(ends, np.arange(stop - first), side="right")
        graph, hardware = _as_graph(problems, problem)
        name = batch.names[problem] if batch.names else graph.name
        assignment: dict[str, int | str] = dict(zip(graph.names, stage.tolist(), strict=True))
        devices = [device.name for device in hardware.devices]
        objective: Objective = "memory" if problems.memory[problem] else "pipeline"
        uses = stage_uses(assignment, graph, hardware, devices, objective)
        value = float(played.value[problem, sample])
        rest = (0.0, 0.0) if objective == "memory" else ()
        return Plan(
            objective=objective,
            status="feasible",
            values=(value, *rest),
            bounds=(max(0.0, float(np.nan_to_num(batch.bound[problem]))), *rest),
            bound_source="ideals" if np.isfinite(batch.optimum[problem]) else "",
            method="agent",
            assignment=assignment,
            stages=uses,
            history=(),
            phase_s={},
            graph=name,
            graph_fingerprint=graph.fingerprint(),
            hardware=hardware.name,
            hardware_fingerprint=hardware.fingerprint(),
            provenance={},
            message="",
        )

    def embeddings(self, batch: StageProblems, outputs: torch.Tensor) -> tuple[FloatArray, list[str]] | None:
        """Return the features of nodes: what the network tells apart.

        See `Task.embeddings`.
        """
        return batch.features.node, [str(v) for v in range(batch.num_nodes)]

    def export(self, network: torch.nn.Module, path: Path, card: Mapping[str, Any]) -> None:
        """Write the product's checkpoint.

        See `Task.export`.

        Raises
        ------
        TypeError
            The network is not of the kind that this task trains.
        """
        from rlinit.agent.network.checkpoint import Card, save_checkpoint
        from rlinit.agent.network.oneshot_torch import OneShot

        if not isinstance(network, OneShot):
            raise TypeError(f"expected a one-shot agent to export, got {type(network).__name__}")
        config = dataclasses.asdict(network.config)
        save_checkpoint(path, network.arrays(), Card("oneshot", "stages", config, card["training"], card["quality"]))


def _with_values(batch: StageBatch, *, exact: bool, names: tuple[str, ...] = ()) -> StageProblems:
    """Return problems with features and what is known of their values."""
    features, reference = featurise(batch)
    total = np.bincount(batch.graph_of_node, weights=batch.load, minlength=len(batch))
    bound = np.maximum(total / batch.num_stages, np.maximum.reduceat(batch.load, batch.node_ptr[:-1]))
    optimum = optimal_values(batch) if exact else np.full(len(batch), np.nan)
    bound = np.where(np.isfinite(optimum), optimum, bound)
    return StageProblems(batch, features, reference, optimum, bound, names)


def _imagenet(count: int, stages: tuple[int, ...]) -> StageProblems:
    """Return the first ImageNet graphs of Inc-ILP's Table II as `memory` problems."""
    from rlinit.datasets.zoo import imagenet
    from rlinit.stages.lowering import lower_stages

    problems, names = [], []
    for k in stages:
        for name in imagenet.TABLE_II[:count]:
            lowered = lower_stages(imagenet.load(name), Hardware.edge_tpus(k), "memory")
            problems.append(StageBatch.of_problem(lowered.problem))
            names.append(f"{name} k={k}")
    return _with_values(StageBatch.join(problems), exact=True, names=tuple(names))


def _as_graph(batch: StageBatch, g: int) -> tuple[Graph, Hardware]:
    """Return one problem as a graph with times and a pipeline of equal stages, for pictures and the verifier."""
    problem = batch.problem(g)
    n, memory = problem.num_nodes, problem.objective == "memory"
    edges = np.stack([np.repeat(np.arange(n), np.diff(problem.succ_indptr)), problem.succ], axis=1)
    out_bytes = np.zeros(n)
    out_bytes[problem.tensor_src] = problem.tensor_bytes
    times: NDArray[np.float64] = problem.work_s[0]
    moving = problem.tensor_bytes[problem.in_s[0] > 0]
    seconds = problem.in_s[0][problem.in_s[0] > 0]
    bandwidth = float(moving.sum() / seconds.sum()) if len(seconds) and not memory else np.inf
    graph = Graph(
        names=tuple(map(str, range(n))),
        kinds=("",) * n,
        edges=edges,
        param_bytes=problem.param_bytes,
        out_bytes=out_bytes,
        flops=np.zeros(n),
        times={(ANY_DEVICE, 1): times},
        name=f"graph {g}",
    )
    hardware = Hardware.pipeline(
        problem.num_stages,
        bandwidth=bandwidth,
        memory=float(problem.memory_bytes[0]),
        cache=float(problem.cache_bytes[0]),
    )
    return graph, hardware
