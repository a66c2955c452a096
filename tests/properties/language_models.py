"""Small language models against every walk of their units over devices, and over hosts that weights are read from."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

from rlinit import llm
from rlinit.devices.runtimes import RuntimeName
from rlinit.hardware import Device, Hardware
from rlinit.llm.lowering import Granularity, Objective, Settings, streams_of
from rlinit.llm.model import LanguageModel
from rlinit.llm.verification import evaluate, memory_of, overfull, value_of
from tests.llm.test_planning import GEMMA, LLAMA, MIXTRAL, every_split, random_hardware

MOST_WALKS = 4000
"""Walks that are tried; larger problems lose layers."""

Spans = tuple[tuple[int, int, int], ...]


def attack_language_model(number: int, seed: int = 0) -> str:
    """Plan a small language model drawn from its number; return what is wrong with the plan, or "".

    Parameters
    ----------
    number, seed
        Which model, hardware and settings.
    """
    draw = random.Random(f"language model {seed} {number}")
    objective: Objective = draw.choice(get_args(Objective))
    granularity: Granularity = draw.choice(get_args(Granularity))
    runtime = draw.choice(get_args(RuntimeName))
    contiguous = objective == "pipeline" or draw.random() < 0.4
    asked: dict[str, Any] = {
        "objective": objective, "granularity": granularity, "contiguous": contiguous, "runtime": runtime,
        "stream": not contiguous and draw.random() < 0.6, "micro_batch": draw.choice([None, 1, 4]),
        "flash_attention": runtime != "llama.cpp" or draw.random() < 0.5,
        "first": ("d0",) if contiguous and draw.random() < 0.3 else (), "reserve_bytes": draw.choice([None, 0.0, 50.0]),
    }  # fmt: skip
    config, settings = draw.choice([LLAMA, MIXTRAL, GEMMA]), Settings(**asked)
    sizes: dict[str, Any] = {"prompt": draw.choice([1, 7]), "output": draw.choice([1, 5]), "batch": draw.choice([1, 3])}
    dtype = draw.choice(["int4/fp16", "fp16", "fp8/fp16"])
    share = draw.choice([1.0, 1.0, 3.0])
    for layers in (4, 3, 2, 1):
        model = llm.load(config | {"num_hidden_layers": layers}, dtype=dtype, **sizes)
        whole = sum(model.weight_bytes(part) + model.kv_bytes(part) for part in model.architecture.parts)
        hardware = random_hardware(draw, draw.choice([1, 2, 3]), share * whole)
        if settings.stream:
            host = replace(hardware.devices[0], name="host", kind="cpu")
            devices = (*hardware.devices[:2], host, Device("nvme", "nvme", bytes_per_s=1e6))
            hardware = Hardware.mesh(devices, 10 ** draw.uniform(5, 8), latency_s=1e-4)
        if len(list(itertools.islice(walks(model, hardware, settings), MOST_WALKS))) < MOST_WALKS:
            break
    plan = llm.plan(model, hardware, **asked)
    best = best_walk(model, hardware, settings)
    wrong = ""
    if plan.status != ("optimal" if math.isfinite(best) else "infeasible"):
        wrong = f"{plan.status} at {plan.value}, {plan.bound}; the optimum is {best}"
    elif best < math.inf and not best * (1 - 1e-9) <= plan.value <= best * (1 + 2e-6):
        wrong = f"the value is {plan.value}; the optimum is {best}"
    elif best < math.inf and plan.bound > best * (1 + 1e-9):
        wrong = f"the bound is {plan.bound}; the optimum is {best}"
    return f"{asked}, {config['model_type']}, {layers} layers, {sizes}, {dtype}: {wrong}" if wrong else ""


def walks(model: LanguageModel, hardware: Hardware, settings: Settings) -> Iterator[Spans]:
    """Yield all splits that settings allow, as (place, first unit, end).

    Parameters
    ----------
    model, hardware, settings
        The problem.
    """
    num_units, computing = len(model.units(settings.granularity)), range(hardware.num_devices)
    if settings.contiguous:
        yield from every_split(num_units, hardware.num_devices)
        return
    places = [d for d in computing if hardware.devices[d].flops_per_s is not None]
    places += range(hardware.num_devices, hardware.num_devices + len(streams_of(hardware, settings)))
    for walk in itertools.product(places, repeat=num_units):
        yield tuple((place, at, at + 1) for at, place in enumerate(walk))


def best_walk(model: LanguageModel, hardware: Hardware, settings: Settings) -> float:
    """Return the least value of all walks that fit; inf where none does.

    Parameters
    ----------
    model, hardware, settings
        The problem.
    """
    best = math.inf
    for split in walks(model, hardware, settings):
        spans = evaluate(model, hardware, settings, split)
        late = any(span.device in settings.first for span in spans[1:])
        if not late and not overfull(memory_of(model, hardware, settings, spans)):
            best = min(best, value_of(spans, settings))
    return best
