"""Curricula: which size a step gets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlinit.train.core.curriculum import CurriculumConfig, batch_seed, request

CONFIG = CurriculumConfig((10, 20, 40), ramp=0.5, newest=0.5, batch_nodes=400)


@given(st.floats(0, 1), st.integers(0, 2**62 - 1))
def test_requests_fit_the_curriculum(progress: float, seed: int) -> None:
    """A request has a size that has joined by then, and batches have at most the nodes they may."""
    asked = request(CONFIG, progress, seed)
    assert asked == request(CONFIG, progress, seed)
    assert asked.size in CONFIG.sizes[: 1 + int(progress / 0.25 + 1e-9)]
    assert asked.size * asked.count <= CONFIG.batch_nodes


def test_all_sizes_are_played_in_the_end() -> None:
    """At the start only the smallest size, at the end all, about half of the batches of the largest."""
    first = {request(CONFIG, 0.0, seed).size for seed in range(50)}
    last = [request(CONFIG, 1.0, seed).size for seed in range(400)]
    assert first == {10}
    assert set(last) == {10, 20, 40}
    assert 0.5 < last.count(40) / len(last) < 0.8


def test_a_size_larger_than_the_batch_still_gets_a_problem() -> None:
    """A batch holds at least one problem."""
    assert request(CurriculumConfig((500,), batch_nodes=400), 0.0, 0).count == 1


def test_seeds_differ_by_purpose_and_step() -> None:
    """Seeds are in range and differ wherever what they are for differs."""
    seeds = [batch_seed(seed, purpose, step) for seed in range(3) for purpose in range(4) for step in range(100)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**62 for seed in seeds)
