"""Self-labelling beside REINFORCE: two networks from the shipped weights, equal seconds of the processor for each.

Both learn from one stream of problems, drawn as training draws them, with all rules of transfers and 2 to 64 devices.
Whichever has had less of the processor takes the next step. The one is REINFORCE as it trains the shipped agent; the
other draws more samples, and the best of each problem is a label for cross entropy.

``python -m benchmarks.learning.self_labelling --minutes 30``; then each against the shipped agent:
``python -m benchmarks.learning.strategy latency-agent --rivals none --count 4 --seconds 1 --agent runs/NAME.safetensors``

References
----------
Corsini, Porrello, Calderara, Dell'Amico: Self-labeling the job shop scheduling problem, NeurIPS 2024.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from rlinit.agent.network.checkpoint import shipped
from rlinit.agent.placements.log_prob import choice_lists, log_probabilities
from rlinit.train.core.config import OptimiserConfig, ReinforceConfig
from rlinit.train.core.curriculum import CurriculumConfig, batch_seed, request
from rlinit.train.core.learner import Learner
from rlinit.train.core.machine_info import machine
from rlinit.train.core.reinforce import Reinforce
from rlinit.train.core.run_state import load_weights
from rlinit.train.tasks.placements import PlacementBatch, PlacementPlayed, PlacementTask, PlacementTaskParams
from rlinit.train.validation import score, validate

_SEED = 35
_SAMPLES = {"reinforce": 16, "self_labelling": 32}
"""Of each problem; labels are cheap to learn from, since only the best sample is."""
_VALIDATIONS = 6


class SelfLabelling:
    """Makes the best of the samples of each problem more probable: mean cross entropy of its choices."""

    def __init__(self, task: PlacementTask, learner: Learner, samples: int) -> None:
        self.task, self.learner, self.samples = task, learner, samples

    def learn(self, batch: PlacementBatch, step: int, seed: int) -> dict[str, float]:
        """Take one step from one batch; return what to print."""
        key, pair = self.task.forward(self.learner.network, batch, self.learner.device)
        played = self.task.rollout(
            self.learner.network, batch, (key, pair), samples=self.samples, seed=batch_seed(seed, 1)
        )
        label = best_of(batch, played)
        choices = self.task.choices(self.learner.network, batch, (key, pair), label)
        norm = self.learner.update(-choices.log_prob.mean(), step, seed)
        return {"reward/mean": float(played.reward.mean()), "train/gradient_norm": norm}


def best_of(batch: PlacementBatch, played: PlacementPlayed) -> PlacementPlayed:
    """Return the best sample of each problem, as one sample of all."""
    best = played.value.argmin(axis=1)
    arrays, trace = batch.arrays, played.trace
    op = np.repeat(best, np.diff(arrays.ptr))
    pair = np.repeat(best, np.diff(arrays.pair_ptr))
    ops, pairs = np.arange(len(op)), np.arange(len(pair))
    one = trace._replace(
        value=np.take_along_axis(trace.value, best[None], axis=0),
        **{name: getattr(trace, name)[op, ops][None] for name in ("device", "start", "chosen", "ready")},
        late=trace.late[pair, pairs][None],
    )
    pick = (np.arange(len(best)), best)
    return PlacementPlayed(one, played.value[pick][:, None], played.reward[pick][:, None])


def main() -> None:
    """Train both in turns and write a checkpoint of each at every validation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="of the processor, for each")
    parser.add_argument("--wall-minutes", type=float, default=1e9, help="end sooner by the clock on the wall")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    chosen.out.mkdir(exist_ok=True)
    task = PlacementTask(PlacementTaskParams(other_devices=0.3, layered=0.35, shared_links=0.6))
    optimiser = OptimiserConfig(learning_rate=7e-4)
    curriculum = CurriculumConfig((60, 110, 220), ramp=0.3, newest=0.4, batch_nodes=1320)
    start = shipped("latency")
    assert start is not None
    learners, algorithms = {}, {}
    for name in _SAMPLES:
        network = task.network(0)
        load_weights(start, network)
        learners[name] = Learner(network, optimiser, "float32", "cpu")
    algorithms["reinforce"] = Reinforce(
        task, learners["reinforce"], ReinforceConfig(entropy_weight=0.001), _SAMPLES["reinforce"]
    )
    algorithms["self_labelling"] = SelfLabelling(task, learners["self_labelling"], _SAMPLES["self_labelling"])
    sets = {name: one for name, one in task.validation(small=False).items() if name in task.selection}
    spent, steps, graphs = dict.fromkeys(_SAMPLES, 0.0), dict.fromkeys(_SAMPLES, 0), dict.fromkeys(_SAMPLES, 0)
    checked, best = dict.fromkeys(_SAMPLES, -1), dict.fromkeys(_SAMPLES, -1.0)
    began = time.monotonic()
    while True:
        name = min(spent, key=lambda one: spent[one])
        wall = (time.monotonic() - began) / (60.0 * chosen.wall_minutes)
        progress = min(1.0, max(spent[name] / (60.0 * chosen.minutes), wall))
        if int(progress * _VALIDATIONS) > checked[name]:
            checked[name] = int(progress * _VALIDATIONS)
            measures = validate(task, learners[name], sets, 0, _SEED)
            quality = {one: round(m["reward"], 4) for one, m in measures.items()}
            print(name, steps[name], round(spent[name]), quality, flush=True)
            training = {"steps": steps[name], "graphs": graphs[name], "seconds": spent[name], "machine": machine()}
            card = {"training": training, "quality": measures}
            network = learners[name].evaluated
            task.export(network, chosen.out / f"{name}_last.safetensors", card)
            if score(measures, task.selection) > best[name]:
                best[name] = score(measures, task.selection)
                task.export(network, chosen.out / f"{name}_best.safetensors", card)
        if progress >= 1.0:
            if all(one == _VALIDATIONS for one in checked.values()):
                return
            spent[name] = max(spent[name], 60.0 * chosen.minutes + 1e9 * (checked[name] == _VALIDATIONS))
            continue
        started = time.process_time()
        asked = request(curriculum, progress, batch_seed(_SEED, 1, steps[name]))
        batch = task.generate(asked.seed, asked.size, asked.count)
        learners[name].set_rate(progress)
        scalars = algorithms[name].learn(batch, steps[name], asked.seed)
        if steps[name] == 0:
            started = time.process_time()  # compiled
        spent[name] += time.process_time() - started
        steps[name] += 1
        graphs[name] += len(batch)
        if steps[name] % 50 == 0:
            print(name, steps[name], round(spent[name], 1), round(scalars["reward/mean"], 4), flush=True)


if __name__ == "__main__":
    main()
