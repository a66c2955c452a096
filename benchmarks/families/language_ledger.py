"""Language models for the ledger: problems that no other benchmark has, with and without each mechanism that ran.

No planner of language models tells of its progress, so that all is unknown until it ends: the primal-dual integral is 1
up to there, and the gap from there to the limit. Fleets and models that are served are searched for as long as the
limit allows; models whose parts may be on any device end by themselves, at a fixed amount of work at the latest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.families.language_models import MODELS
from benchmarks.families.serving import made_up
from benchmarks.learning.protocol import primal_dual_integral
from benchmarks.portfolio import LEAST_GAP, LEAST_INTEGRAL, Earned, Reached, Side, judge
from rlinit import llm
from rlinit.hardware import Hardware
from rlinit.llm import throughput
from rlinit.llm.search.counts import Counts
from rlinit.llm.serving import bounds, layouts

__all__ = ["LANGUAGE_MODELS", "MECHANISMS", "LanguageCase", "fleet_gap", "judge_language_case", "serving_gap"]


class LanguageCase(NamedTuple):
    """A problem.

    Parameters
    ----------
    name, layers
        For the rows.
    gap
        Takes seconds, plans within them, and gives the gap between 0 and 1.
    """

    name: str
    layers: int
    gap: Callable[[float], float]


def _missing(plan: llm.ServingPlan) -> float:
    """Return the part of the bound that a layout does not serve."""
    return 1.0 - plan.tokens_per_s / plan.bound if plan.tokens_per_s > 0 else 1.0


_SHAPES = (
    (40, 4, 16, 1), (64, 5, 40, 2), (80, 6, 36, 1), (96, 4, 30, 2), (60, 3, 20, 2), (48, 6, 48, 1), (72, 5, 60, 2),
    (80, 5, 28, 1),
)  # fmt: skip
"""Layers, kinds of machines, machines and networks of fleets."""

_SEVERAL_NETWORKS = (
    (48, 3, 20, 2), (64, 4, 24, 3), (40, 5, 30, 2), (80, 3, 36, 3), (56, 4, 18, 2), (72, 5, 45, 3),
)  # fmt: skip
"""The same, all in several networks."""


def fleet_gap(fleet: llm.Fleet, seconds: float) -> float:
    """Return the part of the bound that no layout found in so many seconds serves."""
    return _missing(llm.serve(fleet, time_limit_s=seconds))


def _fleets(shapes: tuple[tuple[int, int, int, int], ...], first_seed: int) -> Iterator[LanguageCase]:
    for seed, shape in enumerate(shapes, first_seed):
        yield LanguageCase(f"fleet {seed}", shape[0], partial(fleet_gap, made_up(seed, *shape)))


def _model(name: str) -> llm.LanguageModel:
    config, dtype = MODELS[name]
    return llm.load(config, prompt=384, output=160, dtype=dtype, name=name)


def serving_gap(model: llm.LanguageModel, hardware: Hardware, mix: tuple[()] | None, seconds: float) -> float:
    """Return the same of a model on some hardware: in tokens a second, or requests where `mix` is empty."""
    return _missing(throughput.plan_serving(model, hardware, mix=mix, time_limit_s=seconds))


def _models_served() -> Iterator[LanguageCase]:
    """Yield models on machines of several kinds: the tokens that they make a second, and the requests they answer."""
    machines = ("4xl4+4xt4+2xa100-80g", "8xrtx3090+4xl4", "2xh100+6xl40s")
    asked: dict[str, tuple[()] | None] = {"tokens": None, "requests": ()}
    for name, machine, what in product(("qwen2-32b fp16", "llama-70b int4"), machines, asked):
        model = _model(name)
        gap = partial(serving_gap, model, Hardware.preset(machine), asked[what])
        yield LanguageCase(f"{name}, {machine}, {what}", model.architecture.num_layers, gap)


def _placed_gap(model: llm.LanguageModel, machine: str, objective: Literal["decode", "prefill"], _: float) -> float:
    plan = llm.plan(model, machine, objective=objective, granularity="part", contiguous=False)
    return 1.0 if plan.status == "infeasible" else 1.0 - plan.bound / plan.value


def _any_device() -> Iterator[LanguageCase]:
    """Yield models whose parts may be on any of several unlike devices."""
    cases = (
        ("qwen2-32b fp16", "2xl4+2xt4+rtx4090+cpu-128g"),
        ("gemma2-27b fp16", "rtx3090+rtx4090+l4+2xt4+cpu-128g"),
        ("mixtral-8x7b int8", "a100-80g+2xl4+cpu-128g"),
    )
    objectives: tuple[Literal["decode", "prefill"], ...] = ("decode", "prefill")
    for (name, machine), objective in product(cases, objectives):
        model = _model(name)
        gap = partial(_placed_gap, model, machine, objective)
        yield LanguageCase(f"{name}, {machine}, {objective}", model.architecture.num_layers, gap)


LANGUAGE_MODELS: Mapping[str, Callable[[], Iterator[LanguageCase]]] = {
    "machines that serve": partial(_fleets, _SHAPES, 100),
    "machines in several networks": partial(_fleets, _SEVERAL_NETWORKS, 200),
    "models served": _models_served,
    "parts on any device": _any_device,
}
"""By name; each yields the same problems in the same order every time."""

MECHANISMS: Mapping[str, tuple[Any, str, Callable[..., Any]]] = {
    "networks apart": (layouts, "_apart", lambda *_: layouts.Layout({}, 0.0, {})),
    "networks joined": (layouts, "_joined", lambda _fleet, best, *_: best),
    "parts side by side": (
        throughput,
        "_side_by_side",
        lambda parts, _latencies: list(parts[0, max(end for _, end in parts)]),
    ),
    "bound by prices": (
        bounds,
        "priced_bound",
        lambda _fleet, kinds, other, fine=True: (other, np.full(len(kinds.counts), 1.0 / kinds.counts.sum())),
    ),
    "bound by passes": (bounds, "by_passes", lambda _fleet, _kinds, high, _seconds: (high, {})),
    "facets of packings": (Counts, "facets", lambda *_: []),
    "rows of connections": (Counts, "connections", lambda *_: []),
}
"""By name: where it is, and what stands in its place when it is left out."""


@contextmanager
def _noting_calls(earned: Earned) -> Iterator[None]:
    """Note the seconds of each mechanism that is called while the body runs."""
    with ExitStack() as noted:
        for name, (owner, attribute, _) in MECHANISMS.items():
            run = getattr(owner, attribute)

            def call(*args: Any, name: str = name, run: Callable[..., Any] = run, **options: Any) -> Any:
                began = time.process_time()
                found = run(*args, **options)
                row = earned.setdefault(name, {"seconds": 0.0})
                row["seconds"] += time.process_time() - began
                return found

            noted.enter_context(patch.object(owner, attribute, call))
        yield


def _solved(case: LanguageCase, seconds: float) -> Reached:
    """Return the integral, the gap and whether it was proven of one problem."""
    began = time.process_time()
    gap = max(LEAST_GAP, case.gap(seconds))
    integral = primal_dual_integral([(time.process_time() - began, 1.0, 1.0 - gap)], seconds)
    return {"integral": max(LEAST_INTEGRAL, integral), "gap": gap, "proven": float(gap <= LEAST_GAP)}


def judge_language_case(case: LanguageCase, seconds: float, only: Sequence[str]) -> dict[str, Any]:
    """Return what is reached on a problem with and without each mechanism that ran, and the seconds these took.

    Parameters
    ----------
    case
        The problem.
    seconds
        The limit, and where the integral ends.
    only
        Mechanisms to leave out; empty: all.
    """

    def sides(ran: Sequence[str]) -> dict[str, Side]:
        return {name: partial(patch.object, *MECHANISMS[name]) for name in MECHANISMS if name in ran}

    return {"graph": case.name, "ops": case.layers} | judge(partial(_solved, case, seconds), _noting_calls, sides, only)
