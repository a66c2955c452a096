"""Shares of work among ways to get on."""

from __future__ import annotations

from rlinit.budget import WorkShares


def test_each_way_gets_its_least_share_and_the_best_the_rest() -> None:
    """Of two ways of which one gains, the other one gets about its least share of all work."""
    shares, work = WorkShares(2, 0.2), [0.0, 0.0]
    for _ in range(200):
        way = shares.choose()
        work[way] += 1.0
        shares.reward(way, float(way == 1), 1.0)
    assert 0.19 <= work[0] / sum(work) <= 0.22


def test_what_stopped_gaining_is_left() -> None:
    """With a short memory the work goes to the way that gains now."""
    shares, last = WorkShares(2, 0.1, 0.7), []
    for turn in range(100):
        way = shares.choose()
        shares.reward(way, float(way == (0 if turn < 50 else 1)), 1.0)
        last.append(way)
    assert sum(last[-20:]) >= 16
