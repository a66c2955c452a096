"""What potentials of (op, device) could gain inside the beam over unlike devices, if they were known.

They say where an op lies in the line, and on which device; they take part in priorities of filling, and price what is
left by the devices that ops are expected on. Here they are those of the best plan of a long search, blurred.
Run as ``python -m benchmarks.learning.potentials``; seconds are of the processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.components.time_limits import devices, wide_graph
from benchmarks.learning.protocol import Comparison, compare, print_comparisons
from benchmarks.record import count_processor_time, save, take_no_options
from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.datasets.published import alwabp
from rlinit.datasets.published.location import instances_root
from rlinit.heuristics.stages.beam import Beam
from rlinit.heuristics.stages.filling import bisect_from
from rlinit.kernels.stages.beam import BeamGuide
from rlinit.stages.lowering import lower_stages
from rlinit.stages.problem import StageAssignment, StageProblem

_LINES = {"wee-mag": (4, 20, 36, 60, 76), "tonge": (4, 20, 36, 60, 76), "heskia": (20, 68), "roszieg": (20, 68)}
_LOADS = (100, 400)
"""Loads looked at, for each op and class."""

_LONG_S = 3.0
_BLURS = ((0.0, 1.0), (0.1, 0.7), (0.2, 0.4), (0.25, 0.2))
"""Deviation of places, and how often the right device is named first."""


class Potentials(NamedTuple):
    """(n,) places in the line from 0 to 1, and (c, n) how likely each class is for an op."""

    place: FloatArray
    share: FloatArray


def line(seed: int, most: int) -> StageProblem:
    """Return a line of unlike workers, one of each class; some with penalties on tensors."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(20, most + 1))
    k = int(np.clip(round(n / rng.uniform(3, 8)), 3, 20))
    base = 10.0 * np.exp(rng.uniform(0.3, 1.0) * rng.standard_normal(n))
    if rng.random() < 0.6:
        work = base * rng.uniform(1, rng.uniform(1.5, 4.0), (k, n))
    else:
        speed = np.exp(rng.uniform(0, 0.4) * rng.standard_normal((k, 1)))
        work = base * np.exp(rng.uniform(0.1, 0.8) * rng.standard_normal((k, n))) * speed
    if rng.random() < 0.7:
        work = np.maximum(1.0, np.round(work))
    forbidden = rng.random((k, n)) < rng.choice((0.0, 0.1, 0.2))
    forbidden[rng.integers(k, size=n), np.arange(n)] = False
    work[forbidden] = np.inf
    reach = int(rng.integers(2, max(3, n // 2)))
    penalty = rng.uniform(0.02, 0.5) * base.mean() if rng.random() < 0.3 else 0.0
    return random_problem(rng, work, np.arange(k, dtype=np.int64), reach, 3, penalty)


def wide(seed: int, most: int) -> StageProblem:
    """Return a wide graph on devices of two to four kinds."""
    rng = np.random.default_rng(seed)
    n, c = int(rng.integers(40, most + 1)), int(rng.integers(2, 5))
    k = int(rng.integers(max(c, 4), 13))
    work = (0.05 + rng.random((c, n))) * np.exp(rng.uniform(0, 0.5) * rng.standard_normal((c, 1)))
    return random_problem(
        rng, work, np.arange(k, dtype=np.int64) % c, int(rng.integers(5, 60)), 3, rng.uniform(0, 0.05)
    )


def random_problem(
    rng: np.random.Generator, work: FloatArray, kinds: IntArray, reach: int, degree: int, penalty: float
) -> StageProblem:
    """Return a problem whose ops each read up to `degree` of the `reach` before."""
    c, n = work.shape
    readers: dict[int, list[int]] = {}
    for v in range(1, n):
        low = max(0, v - reach)
        for u in (low + rng.permutation(v - low)[: rng.integers(1, degree + 1)]).tolist():
            readers.setdefault(u, []).append(v)
    src = sorted(readers)
    size = rng.uniform(0.2, 1.8, len(src))
    move = np.repeat((size * penalty)[None], c, axis=0)
    return StageProblem(
        objective="pipeline",
        work_s=np.ascontiguousarray(work),
        param_bytes=np.zeros(n),
        tensor_src=np.array(src, np.int64),
        tensor_indptr=np.cumsum([0, *(len(readers[u]) for u in src)]).astype(np.int64),
        tensor_dst=np.array([v for u in src for v in readers[u]], np.int64),
        tensor_bytes=size,
        in_s=move,
        out_s=move.copy(),
        stage_class=kinds,
        memory_bytes=np.full(c, np.inf),
        cache_bytes=np.full(c, np.inf),
        overflow_s_per_byte=np.zeros(c),
        order=np.arange(n, dtype=np.int64),
    )


class PotentialBeam(Beam):
    """A beam of which half the fillings go by potentials too, and half the searches price what is left by them."""

    def __init__(self, potentials: Potentials, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.potentials = potentials

    def _urgencies(self, forward: bool) -> FloatArray:
        urgency, rng = super()._urgencies(forward), self.rng
        early = 1.0 - self.potentials.place if forward else self.potentials.place
        logit = np.log(np.maximum(self.potentials.share, 1e-4))
        logit -= logit.mean(axis=0)
        for i in np.flatnonzero(rng.random(urgency.shape[1]) < 0.5).tolist():
            told = rng.choice((1.0, 2.0, 4.0, 8.0)) * early + rng.choice((0.0, 0.25, 0.5, 1.0)) * logit
            urgency[:, i] = rng.random() * urgency[:, i] + told
        return urgency

    def _guide(self, threshold: float, forward: bool) -> BeamGuide:
        guide = super()._guide(threshold, forward)
        if guide.blend < 0 or self.rng.random() < 0.5:
            return guide
        share = self.potentials.share ** self.rng.choice((0.5, 1.0, 2.0))
        work = np.minimum(self.settings.arrays.work, threshold)
        price = (share * work).sum(axis=0) / share.sum(axis=0)
        return BeamGuide(guide.urgency, -1.0, price, np.full(len(work), max(threshold, 1e-300)))


@dataclass(frozen=True, slots=True)
class Judged:
    """A problem to judge on, and its family."""

    family: str
    problem: StageProblem


def judged() -> Iterator[Judged]:
    """Yield published lines, generated lines and wide graphs that nothing is trained on."""
    root = instances_root()
    if root is not None:
        for family, numbers in _LINES.items():
            for number in numbers:
                case = alwabp.load(root / "assembly-line" / "alwabp" / family / str(number))
                yield Judged(f"ALWABP {family}", lower_stages(*case, "pipeline").problem)
    yield from (Judged("generated lines", line(seed, 80)) for seed in range(5))
    yield from (Judged("wide graphs", wide(seed, 240)) for seed in range(3))
    for seed in range(2):
        case = wide_graph(200 + 100 * seed, 3, seed=seed), devices(8, 3)
        yield Judged("wide graphs", lower_stages(*case, "pipeline").problem)


def reached(
    problem: StageProblem,
    told: Potentials | None,
    loads: int = 10**12,
    seed: int = 0,
    budget: Budget | None = None,
) -> tuple[float, StageAssignment]:
    """Return the bottleneck and the plan of a beam, by potentials or without, from no start."""
    searcher = Beam if told is None else partial(PotentialBeam, told)
    found = bisect_from(searcher, problem, None, seed=seed, loads=loads, budget=budget)
    assert found is not None
    return found[1][0], found[0]


def blurred(
    problem: StageProblem, plan: StageAssignment, spread: float, hit: float, rng: np.random.Generator
) -> Potentials:
    """Return what a plan says of places and devices, blurred."""
    n = problem.num_nodes
    place = np.clip((plan.stage + 0.5) / problem.num_stages + spread * rng.standard_normal(n), 0.0, 1.0)
    allowed = np.isfinite(problem.work_s)
    named = [
        plan.classes[plan.stage[v]] if rng.random() <= hit else rng.choice(np.flatnonzero(allowed[:, v]))
        for v in range(n)
    ]
    share = np.where(allowed, (1.0 - hit) / np.maximum(1, allowed.sum(axis=0) - 1), 1e-3)
    share[named, np.arange(n)] = max(hit, 0.3)
    return Potentials(place, share / share.sum(axis=0))


def at_fixed_work(cases: Sequence[Judged], told: Sequence[Potentials], title: str) -> list[Comparison]:
    """Return what beams by potentials reach over what beams without reach."""
    found = []
    for loads in _LOADS:
        seeds = range(2 if loads == _LOADS[0] else 1)
        ours: list[float] = []
        theirs: list[float] = []
        for case, potentials in zip(cases, told, strict=True):
            work = loads * case.problem.work_s.size
            for side, given in ((ours, potentials), (theirs, None)):
                values = [reached(case.problem, given, work, seed)[0] for seed in seeds]
                side.append(float(np.exp(np.mean(np.log(values)))))
        found += by_family(cases, f"{title}, {loads} loads", ours, theirs)
    return found


def by_family(
    cases: Sequence[Judged], measure: str, ours: Sequence[float], theirs: Sequence[float]
) -> list[Comparison]:
    """Return the comparisons of each family and of all."""
    rows = []
    for family in [*dict.fromkeys(case.family for case in cases), "all"]:
        mine = [at for at, case in enumerate(cases) if family in (case.family, "all")]
        rows.append(compare(family, measure, [ours[at] for at in mine], [theirs[at] for at in mine]))
    return rows


def oracle(cases: Sequence[Judged]) -> list[Comparison]:
    """Return what is gained by knowing the plan of a long search, more or less exactly."""
    plans = [reached(case.problem, None, seed=1, budget=Budget(_LONG_S))[1] for case in cases]
    found = []
    for spread, hit in _BLURS:
        pairs = zip(cases, plans, strict=True)
        told = [
            blurred(case.problem, plan, spread, hit, np.random.default_rng(at)) for at, (case, plan) in enumerate(pairs)
        ]
        found += at_fixed_work(cases, told, f"places +-{spread:g}, {hit:.0%} of devices")
    return found


def main() -> None:
    """Ask, print and write."""
    take_no_options(__doc__)
    count_processor_time()
    found = oracle(list(judged()))
    print_comparisons("beam by blurred potentials over beam", found)
    save("learning_potentials", [asdict(one) for one in found], loads=_LOADS, seconds=_LONG_S, blurs=_BLURS)


if __name__ == "__main__":
    main()
