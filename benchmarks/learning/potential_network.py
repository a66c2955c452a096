"""A graph network whose potentials guide the beam of `auto` over unlike devices, trained here and judged here.

It imitates the best plans of two searches on each of 800 generated lines and wide graphs: the class of each op (cross
entropy) and its place in the line (squares). Messages pass along edges and between the pairs of an op and a class; it
has 6,642 weights and sees ratios of times alone. Then `auto` is run with and without it, its time included. Run as
``python -m benchmarks.learning.potential_network``: seven minutes of one core to train, twenty to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from benchmarks.components.time_limits import devices, wide_graph
from benchmarks.learning.potentials import Judged, PotentialBeam, Potentials, by_family, judged, line, wide
from benchmarks.learning.protocol import Comparison, print_comparisons
from benchmarks.record import count_processor_time, save, take_no_options
from rlinit.budget import Budget
from rlinit.heuristics.stages.beam import Beam
from rlinit.heuristics.stages.filling import FillSettings, bisect_from
from rlinit.kernels.stages.priorities import balance_prices, longest_tails, reach_sums
from rlinit.solving import stage_phases
from rlinit.solving.incumbent import for_stages
from rlinit.solving.options import SolveOptions
from rlinit.solving.phases import follow
from rlinit.solving.stages import stage_strategy
from rlinit.stages.lowering import lower_stages
from rlinit.stages.problem import StageAssignment, StageProblem

_FIRST_SEED, _PROBLEMS, _LABEL_LOADS = 1_000_000, 800, 300
"""Problems to train on, one in ten held out, and loads of their searches for each op and class."""

_STEPS, _BATCH, _RATE, _PLACES = 2_000, 12, 3e-3, 30.0
"""Steps, problems of each, the first learning rate, and what squares of places count beside the cross entropy."""

_WIDTH, _LAYERS, _PAIR, _OP, _CLASS = 16, 3, 4, 7, 3
_SECONDS, _SEEDS = (1.0, 10.0), (0, 1)


class Inputs(NamedTuple):
    """A problem of n ops and c classes as the network sees it, with labels, zeros where there are none."""

    pair: torch.Tensor  # (n, c, 4) times over the mean and the trial, prices over the least, whether it may be
    op: torch.Tensor  # (n, 7) time; work behind, before; longest path behind, before; readers, makers
    kind: torch.Tensor  # (c, 3) price, devices of the class, stages
    readers: torch.Tensor  # (n, n) shares
    makers: torch.Tensor
    share: torch.Tensor  # (n, c)
    place: torch.Tensor  # (n,)

    def turned(self) -> Inputs:
        """Return the same line from its other end."""
        op = self.op[:, [0, 2, 1, 4, 3, 6, 5]]
        return Inputs(self.pair, op, self.kind, self.makers, self.readers, self.share, 1.0 - self.place)


def inputs(p: StageProblem, plans: list[StageAssignment]) -> Inputs:
    """Return what the network sees of a problem, with labels from plans where there are some."""
    n, work, count, allowed = p.num_nodes, p.work_s, p.class_count[:, None], np.isfinite(p.work_s)
    finite = np.where(allowed, work, 0.0)
    mean = (finite * count).sum(axis=0) / np.maximum((allowed * count).sum(axis=0), 1)
    price = balance_prices(np.ascontiguousarray(work), p.class_count, 60)
    least = (price[:, None] * work).min(axis=0)
    trial = least.sum() / float(p.class_count @ price)
    tiny = 1e-9 * trial
    ends = (p.order, p.succ_indptr, p.succ), (np.ascontiguousarray(p.order[::-1]), p.pred_indptr, p.pred)
    (behind, before), (tail, head) = ([way(*end, mean) for end in ends] for way in (reach_sums, longest_tails))
    share_of_all = (behind / mean.sum(), before / mean.sum(), tail / tail.max(), head / head.max())
    op = (np.log(mean / trial + 1e-3), *share_of_all, np.diff(p.succ_indptr) / 4, np.diff(p.pred_indptr) / 4)
    slower = np.where(allowed, np.log((finite + tiny) / (mean + tiny)), 2.0)
    dearer = np.log((least + tiny) / (np.where(allowed, price[:, None] * finite, 1e30) + tiny))
    edges = np.zeros((n, n))
    edges[np.repeat(np.arange(n), np.diff(p.succ_indptr)), p.succ] = 1.0
    share, place = np.zeros((n, len(work))), np.zeros(n)
    for plan in plans:
        used = np.unique(plan.stage)
        share[np.arange(n), plan.classes[plan.stage]] += 1.0 / len(plans)
        place += (np.searchsorted(used, plan.stage) + 0.5) / len(used) / len(plans)
    columns = (
        np.stack([slower, np.clip(dearer, -4, 0), np.minimum(finite / trial, 3), allowed * 1.0], -1).swapaxes(0, 1),
        np.column_stack(op),
        np.column_stack([np.log(price), np.log(p.class_count), np.full(len(work), np.log(p.num_stages))]),
        edges / np.maximum(1.0, edges.sum(axis=1, keepdims=True)),
        edges.T / np.maximum(1.0, edges.sum(axis=0)[:, None]),
        share,
        place,
    )
    return Inputs(*(torch.from_numpy(np.ascontiguousarray(column, np.float32)) for column in columns))


class PotentialNetwork(nn.Module):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        d = _WIDTH
        self.start = nn.Linear(_PAIR + _OP + _CLASS, d)
        layers = [nn.Sequential(nn.Linear(6 * d, d), nn.SiLU(), nn.Linear(d, d)) for _ in range(_LAYERS)]
        self.layers, self.norms = nn.ModuleList(layers), nn.ModuleList(nn.LayerNorm(d) for _ in layers)
        self.share = nn.Sequential(nn.Linear(2 * d, d), nn.SiLU(), nn.Linear(d, 1))
        self.place = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1))

    def forward(self, given: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits of classes (n, c) and of places (n,)."""
        n, c, _ = given.pair.shape
        may = given.pair[:, :, 3:]
        x = [given.pair, given.op[:, None].expand(n, c, -1), given.kind[None].expand(n, c, -1)]
        h = self.start(torch.cat(x, -1)) * may
        for layer, norm in zip(self.layers, self.norms, strict=True):
            ops = h.sum(1, keepdim=True) / may.sum(1, keepdim=True)
            kinds = h.sum(0, keepdim=True) / may.sum(0, keepdim=True).clamp(min=1)
            near = [(edges @ h.flatten(1)).view_as(h) for edges in (given.makers, given.readers)]
            told = [ops.expand_as(h), kinds.expand_as(h), ops.mean(0, keepdim=True).expand_as(h)]
            h = norm(h + layer(torch.cat([h, *near, *told], -1))) * may
        ops = h.sum(1) / may.sum(1)
        logit = self.share(torch.cat([h, ops[:, None].expand_as(h)], -1))[..., 0]
        logit = logit + 2.0 * given.pair[..., 1] + given.kind[None, :, 1]
        before = given.op[:, 2] / (given.op[:, 1] + given.op[:, 2]).clamp(min=1e-6)
        place = torch.logit(before.clamp(0.02, 0.98)) + self.place(ops)[:, 0]
        return logit.masked_fill(may[..., 0] < 0.5, -1e9), place


def _labelled(seed: int) -> Inputs:
    """Return a problem to train on, labelled by those of two searches that end within 2% of each other."""
    problem = wide(seed, 120) if seed % 4 == 3 else line(seed, 60)
    loads = _LABEL_LOADS * problem.work_s.size
    found = [bisect_from(Beam, problem, None, seed=at, loads=loads) for at in range(2)]
    ended = [one for one in found if one is not None]
    return inputs(problem, [plan for plan, value in ended if value[0] <= 1.02 * min(v[0] for _, v in ended)])


def _losses(network: PotentialNetwork, one: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    logit, place = network(one)
    entropy = -(one.share * torch.log_softmax(logit, -1).clamp(min=-30)).sum(-1).mean()
    return entropy, ((torch.sigmoid(place) - one.place) ** 2).mean()


def trained() -> PotentialNetwork:
    """Return a network trained on plans of generated problems; print what it makes of those held out."""
    data = [_labelled(_FIRST_SEED + at) for at in range(_PROBLEMS)]
    held, data = data[::10], [one for at, one in enumerate(data) if at % 10]
    torch.manual_seed(0)
    rng, network = np.random.default_rng(0), PotentialNetwork()
    optimiser = torch.optim.Adam(network.parameters(), _RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, _STEPS)
    for step in range(_STEPS + 1):
        if step % (_STEPS // 5) == 0:
            with torch.no_grad():
                entropy, square = np.mean([[float(x) for x in _losses(network, one)] for one in held], axis=0)
                right = [(one.share.gather(1, network(one)[0].argmax(1)[:, None]) > 0).float().mean() for one in held]
            print(f"step {step}: entropy {entropy:.3f}, places {square**0.5:.3f}, devices {np.mean(right):.3f}")
        chosen = rng.choice(len(data), _BATCH, replace=False).tolist()
        pairs = [_losses(network, data[at] if rng.random() < 0.5 else data[at].turned()) for at in chosen]
        optimiser.zero_grad()
        torch.stack([entropy + _PLACES * square for entropy, square in pairs]).mean().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return network


@torch.no_grad()
def potentials_of(network: PotentialNetwork, problem: StageProblem) -> Potentials:
    """Return what a network says of a problem."""
    logit, place = network(inputs(problem, []))
    share = torch.softmax(logit, -1).numpy().astype(np.float64).T
    return Potentials(torch.sigmoid(place).numpy().astype(np.float64), np.ascontiguousarray(share))


def guided_by(network: PotentialNetwork) -> Callable[..., Beam]:
    """Return what makes a beam that goes by a network, which is asked each time."""

    def guided(settings: FillSettings, *given: object, **named: object) -> Beam:
        return PotentialBeam(potentials_of(network, settings.problem), settings, *given, **named)

    return guided


def silent() -> PotentialNetwork:
    """Return a network whose last layers are zero: the share of work before an op, and prices of devices, remain."""
    network = PotentialNetwork()
    for head in (network.share, network.place):
        for weights in head[-1].parameters():
            nn.init.zeros_(weights)
    return network


def cases() -> Iterator[Judged]:
    """Yield what potentials are judged on, and more wide graphs, with tensors that cost time, for 5 to 16 devices."""
    yield from judged()
    for seed, (ops, stages, kinds) in enumerate(((100, 5, 2), (150, 12, 4), (250, 16, 3), (300, 6, 2)), 10):
        case = wide_graph(ops, kinds, seed=seed), devices(stages, kinds)
        yield Judged("wide graphs", lower_stages(*case, "pipeline").problem)


def auto_value(problem: StageProblem, seconds: float, seed: int, beam: Callable[..., Beam]) -> float:
    """Return the value of `auto` with a beam in place of its own."""
    options = SolveOptions(time_limit_s=seconds, seed=seed)
    search = stage_phases.StageSearch.of(for_stages(problem, Budget(seconds), 0.0, None), options, None)
    with patch.object(stage_phases, "Beam", beam):
        follow(stage_strategy("auto"), search)
    assert search.incumbent.values is not None
    return search.incumbent.values[0]


def main() -> None:
    """Train, judge, print and write."""
    take_no_options(__doc__)
    count_processor_time()
    torch.set_num_threads(1)
    network = trained()

    known = list(cases())
    sides = {"trained": guided_by(network), "untrained": guided_by(silent()), "none": Beam}
    for warm in (known[0], known[-1]):  # compiles
        auto_value(warm.problem, 3.0, 0, sides["trained"])
    found: list[Comparison] = []
    ended: dict[tuple[float, str], list[float]] = {}
    for seconds in _SECONDS:
        reached: dict[str, list[float]] = {name: [] for name in sides if name != "untrained" or seconds == _SECONDS[0]}
        for case in known:
            for name, values in reached.items():
                one = [np.log(auto_value(case.problem, seconds, seed, sides[name])) for seed in _SEEDS]
                values.append(float(np.exp(np.mean(one))))
            print(case.family, f"{seconds:g} s", {name: values[-1] for name, values in reached.items()}, flush=True)
        ended |= {(seconds, name): values for name, values in reached.items()}
        for ours, theirs in (("trained", "none"), ("untrained", "none"), ("trained", "untrained")):
            if {ours, theirs} <= reached.keys():
                measure = f"value after {seconds:g} s, {ours} / {theirs}"
                found += by_family(known, measure, reached[ours], reached[theirs])
    best = np.min([*ended.values()], axis=0)
    for (seconds, name), values in ended.items():
        print(f"mean gap to the best of all after {seconds:g} s, {name}: {np.mean(values / best - 1.0):.2%}")
    print_comparisons("auto with the network's potentials over auto", found)
    save("learning_potential_network", [asdict(one) for one in found], seconds=_SECONDS, seeds=_SEEDS)


if __name__ == "__main__":
    main()
