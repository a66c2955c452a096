"""The latency task for the autoregressive agent, which points at an op and then at its device, step by step.

Problems, references, labels and pictures are those of the one-shot agent's task. Two things differ: an op goes behind
the last one on its device, never into a gap before it, and both choices see all that was chosen before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.errors import InvalidConfig
from rlinit.kernels.policy.rollouts import RolloutTrace
from rlinit.plan import Plan
from rlinit.train.tasks.placements import (
    PlacementBatch,
    PlacementPlayed,
    PlacementTask,
    PlacementTaskParams,
    credits_of,
    plan_of,
    rewarded,
)
from rlinit.train.tasks.protocol import Choices, Labels

if TYPE_CHECKING:
    import torch

    from rlinit.agent.sequential.autoregressive import (
        AutoregressiveNetwork,
        EncodedPlacements,
        PlacedRows,
        PlacementDecoding,
    )
    from rlinit.agent.sequential.rollouts import PlacementRollouts

__all__ = ["AutoregressivePlacementParams", "AutoregressivePlacementTask", "StepwisePlacements"]


@dataclass(frozen=True)
class AutoregressivePlacementParams:
    """Problems and network of the autoregressive agent's latency task."""

    hidden: int = 64
    """Width of node states and of the decoder."""
    layers: int = 4
    """Rounds of message passing."""
    other_devices: float = 0.15
    """Share of problems that are networks on two to five devices of random speeds."""
    layered: float = 0.1
    """Share of problems that are layered graphs with random costs."""
    label_evaluations: int = 2000
    """Evaluations an op that the search behind a label may spend."""
    horizon: int = 36
    """Ops after a choice in which its consequences are looked for; 0: the whole makespan counts for every choice."""

    def __post_init__(self) -> None:
        for name in ("hidden", "layers"):
            if getattr(self, name) < 1:
                raise InvalidConfig(f"problem.{name} is {getattr(self, name)}; expected at least 1")
        _problems_of(self)


def _problems_of(params: AutoregressivePlacementParams) -> PlacementTaskParams:
    """Return the parameters of the one-shot agent's task with the same problems."""
    return PlacementTaskParams(
        other_devices=params.other_devices,
        layered=params.layered,
        label_evaluations=params.label_evaluations,
        horizon=params.horizon,
    )


@dataclass(frozen=True, slots=True, eq=False)
class StepwisePlacements(PlacementPlayed):
    """Schedules that were played, and the rows they were played in: those of a problem after one another."""

    rollouts: PlacementRollouts
    rows: PlacedRows


class AutoregressivePlacementTask:
    """Trains `rlinit.agent.sequential.autoregressive.AutoregressiveNetwork` on placements; see
    `rlinit.train.tasks.protocol.Task`.
    """

    params_class: ClassVar[type] = AutoregressivePlacementParams
    selection: ClassVar[tuple[str, ...]] = PlacementTask.selection

    def __init__(self, params: AutoregressivePlacementParams) -> None:
        self.params = params
        self.placements = PlacementTask(_problems_of(params))

    def generate(self, seed: int, size: int, count: int) -> PlacementBatch:
        """Return the one-shot agent's problems; their references are HEFT's."""
        return self.placements.generate(seed, size, count)

    def validation(self, *, small: bool) -> Mapping[str, PlacementBatch]:
        """Return the one-shot agent's validation sets."""
        return self.placements.validation(small=small)

    def label(self, batch: PlacementBatch) -> Labels:
        """Return the schedules that the one-shot agent imitates."""
        return self.placements.label(batch)

    def network(self, seed: int) -> torch.nn.Module:
        """Return a fresh network."""
        import torch

        from rlinit.agent.network.config import OneShotConfig
        from rlinit.agent.placements.features import DEVICE_FEATURES, NODE_FEATURES, PAIR_FEATURES
        from rlinit.agent.sequential.autoregressive import AutoregressiveNetwork

        shape = {"hidden": self.params.hidden, "layers": self.params.layers}
        config = OneShotConfig("latency", NODE_FEATURES, DEVICE_FEATURES, PAIR_FEATURES, **shape)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return AutoregressiveNetwork(config)

    def forward(self, network: torch.nn.Module, batch: PlacementBatch, device: torch.device) -> EncodedPlacements:
        """Return the encoded graphs and devices."""
        from rlinit.agent.network.encoder import FeatureTensors

        encoded: EncodedPlacements = network(FeatureTensors.of(batch.features, device))
        return encoded.single()

    def rollout(
        self,
        network: torch.nn.Module,
        batch: PlacementBatch,
        outputs: EncodedPlacements,
        *,
        samples: int,
        seed: int,
        greedy: bool = False,
    ) -> StepwisePlacements:
        """Return schedules that the network points out."""
        import torch

        from rlinit.agent.sequential import decoding as sequential

        with torch.no_grad():
            decoding = _start(network, batch, outputs, 1 if greedy else samples)
            if greedy:
                sequential.greedy(decoding)
            else:
                sequential.sample(decoding, torch.Generator().manual_seed(seed))
        return _played(batch, decoding)

    def choices(
        self,
        network: torch.nn.Module,
        batch: PlacementBatch,
        outputs: EncodedPlacements,
        played: StepwisePlacements,
    ) -> Choices:
        """Return log-probability and entropy of every choice, of ops first and then of devices.

        Schedules in which some op fits nowhere have none.
        """
        import torch

        rows = played.rows
        log_prob, entropy, trajectory = _bare(network).placement_choices(outputs, played.rollouts, rows)
        samples = played.value.shape[1]
        credit = None
        if self.params.horizon and samples > 1:
            row, step = (rows.orders >= 0).nonzero(as_tuple=True)
            op = rows.orders[row, step].cpu().numpy() + batch.arrays.ptr[row.cpu().numpy() // samples]
            by_op = credits_of(batch, played.trace, self.params.horizon)
            credit = torch.from_numpy(by_op[trajectory.cpu().numpy() % samples, np.concatenate([op, op])])
        return Choices(log_prob, entropy, trajectory, credit)

    def imitation_loss(
        self, network: torch.nn.Module, batch: PlacementBatch, outputs: EncodedPlacements, labels: Labels
    ) -> torch.Tensor:
        """Return the mean over choices of minus the log-probability of the labels; without any, 0."""
        import torch

        with torch.no_grad():
            decoding = _start(network, batch, outputs, 1)
            _follow(decoding, labels)
        log_prob, _, _ = _bare(network).placement_choices(outputs, decoding.placing, decoding.played())
        return -log_prob.sum() / max(1, len(log_prob))

    def plan(self, batch: PlacementBatch, played: StepwisePlacements, problem: int, sample: int) -> Plan:
        """Return one schedule as a plan of a graph without names."""
        from rlinit.agent.sequential.rollouts import placements

        row = played.rollouts.select(
            played.rollouts.graph_of_row.new_tensor([problem * played.value.shape[1] + sample])
        )
        found = placements(batch.problems, row)[0]
        if found is None:
            raise ValueError(
                f"schedule {sample} of problem {problem} has an op that fits nowhere: there is no plan of it"
            )
        return plan_of(batch.problems[problem], found)

    def embeddings(self, batch: PlacementBatch, outputs: EncodedPlacements) -> tuple[FloatArray, list[str]] | None:
        """Return what the decoder points at, for each op."""
        latent = outputs.nodes.latent.detach().cpu().numpy()
        sizes = np.diff(batch.arrays.ptr)
        return latent[np.arange(latent.shape[1]) < sizes[:, None]], [str(v) for v in range(batch.num_nodes)]

    def export(self, network: torch.nn.Module, path: Path, card: Mapping[str, Any]) -> None:
        """Write the product's checkpoint."""
        from rlinit.agent.network.checkpoint import Card, save_checkpoint
        from rlinit.agent.sequential.stage_agent import card_config

        arrays = {name: weight.detach().cpu().numpy() for name, weight in network.state_dict().items()}
        about = Card("autoregressive", "latency", card_config(_bare(network)), card["training"], card["quality"])
        save_checkpoint(path, arrays, about)


def _bare(network: torch.nn.Module) -> AutoregressiveNetwork:
    """Return the network itself where it is wrapped for several processes."""
    from rlinit.agent.sequential.autoregressive import AutoregressiveNetwork
    from rlinit.train.tasks.common import unwrap

    bare = unwrap(network)
    if not isinstance(bare, AutoregressiveNetwork):
        raise TypeError(f"expected an autoregressive network, got {type(bare).__name__}")
    return bare


def _start(
    network: torch.nn.Module, batch: PlacementBatch, outputs: EncodedPlacements, copies: int
) -> PlacementDecoding:
    """Return empty schedules, `copies` of each problem."""
    import torch

    from rlinit.agent.sequential.autoregressive import PlacementDecoding
    from rlinit.agent.sequential.rollouts import PlacementRollouts

    device = outputs.device_keys.device
    scale = torch.from_numpy(batch.arrays.scale).to(device)
    return PlacementDecoding(_bare(network), outputs, PlacementRollouts(batch.problems, copies, device), scale)


def _follow(decoding: PlacementDecoding, labels: Labels) -> None:
    """Choose what the labels say, to the end; problems without a label are left out."""
    import torch

    rollouts = decoding.placing
    device, place = (torch.from_numpy(labels[name].astype(np.int64)) for name in ("device", "place"))
    unlabelled = (place < 0).all(dim=1)
    rollouts.abandon(unlabelled.to(rollouts.ready.device))
    order = torch.where(place < 0, torch.iinfo(torch.int64).max, place).argsort(dim=1, stable=True)
    order, device = order.to(rollouts.ready.device), device.to(rollouts.ready.device)
    for step in range(rollouts.num_steps):
        op = order[:, step]
        decoding.choose(op)
        decoding.choose(device.gather(1, op[:, None])[:, 0])


def _played(batch: PlacementBatch, decoding: PlacementDecoding) -> StepwisePlacements:
    """Return finished schedules with values and rewards."""
    rollouts, rows = decoding.placing, decoding.played()
    trace = _trace(batch, rollouts, rows)
    value, reward = rewarded(batch, trace)
    return StepwisePlacements(trace, value, reward, rollouts, rows)


def _trace(batch: PlacementBatch, rollouts: PlacementRollouts, rows: PlacedRows) -> RolloutTrace:
    """Return finished schedules as the compiled rollouts give theirs, (S, N) ops and (S, P) pairs."""
    from rlinit.agent.sequential.rollouts import ready_steps

    graphs, problems = len(batch), batch.problems
    ptr, pair_ptr = batch.arrays.ptr, batch.arrays.pair_ptr
    orders, lateness = rows.orders.cpu().numpy(), rows.lateness.cpu().numpy()
    device, end = rollouts.device_of_op.cpu().numpy(), rollouts.end_s.cpu().numpy()
    ready = ready_steps(rollouts.graphs, rollouts.graph_of_row, rows.orders).cpu().numpy()
    samples = len(orders) // graphs
    failed = (orders[:, 0] < 0).reshape(graphs, samples).T
    value = np.where(failed, np.inf, rollouts.makespan_s.cpu().numpy().reshape(graphs, samples).T)
    ops, pairs = (samples, batch.num_nodes), (samples, int(pair_ptr[-1]))
    trace = RolloutTrace(
        value=value,
        device=np.zeros(ops, np.int64),
        start=np.zeros(ops),
        chosen=np.zeros(ops, np.int64),
        ready=np.zeros(ops, np.int64),
        late=np.zeros(pairs),
    )
    for row, order in enumerate(orders):
        g, s = divmod(row, samples)
        if failed[s, g]:
            continue
        n, d = problems[g].num_ops, problems[g].num_devices
        mine = slice(int(ptr[g]), int(ptr[g + 1]))
        where: IntArray = device[row, :n]
        trace.device[s, mine] = where
        trace.start[s, mine] = end[row, :n] - problems[g].op_time_s[np.arange(n), where]
        trace.chosen[s, mine][order[:n]] = np.arange(n)
        trace.ready[s, mine] = ready[row, :n]
        late = trace.late[s, int(pair_ptr[g]) : int(pair_ptr[g + 1])].reshape(n, d)
        late[order[:n]] = lateness[row, :n, :d]
    return trace
