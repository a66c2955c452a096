"""Costs from measured tables of GPUs, from fitted efficiencies, and for a system left out, against what was measured.

Run as ``python -m benchmarks.components.measured_tables``, with the tables of ``gpu-measurements`` among the published
instances. Five questions, each in relative errors of seconds:

- *held out*: a tenth of the rows of every table is left out, and predicted from the others;
- *fitted*: efficiencies are fitted to one runtime of a system, and predict another (of the A100 there is one);
- *left out*: a system that nobody measured, predicted by efficiencies of the others, by the tables of the nearest one
  scaled with the roofline, and by boosted trees (protocol: docs/learning.md);
- *published*: whole requests of Llama 2 7B by TensorRT-LLM (release 0.6.1, on L40S 0.5; static batches;
  docs/source/performance.md of its repository), and of Mixtral 8x7B by gpt-fast (mixtral-moe/README.md of its
  repository: one sequence, INT8 weights, A100s at 330 W), runtimes that none of the tables is of;
- *regret*: plans of language models by fitted efficiencies, valued by the tables, over plans by the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from benchmarks.record import print_table, save, take_no_options
from rlinit import llm
from rlinit.arrays import FloatArray
from rlinit.costs.tables import MeasuredTables, Samples, ShapeTable, load
from rlinit.datasets.published.location import instances_root
from rlinit.devices.presets import kinds
from rlinit.hardware import Hardware
from rlinit.llm.verification import evaluate, value_of
from rlinit.measurement.roofline_fit import Samples as FitSamples
from rlinit.measurement.table_fit import fit_tables, predicted_over_measured, table_samples
from rlinit.units import parse_quantity

SYSTEMS = {
    "a100_sxm": ("vllm-0.14.0",),
    "h100_sxm": ("vllm-0.14.0", "vllm-0.24.0"),
    "l40s": ("vllm-0.14.0", "vllm-0.24.0"),
}
"""Runtimes of each system; efficiencies are fitted to the first."""

KINDS = ("products", "prompts", "generation", "experts", "collectives")

MODELS: dict[str, dict[str, Any]] = {
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32},
    "70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80},
}
"""Two sizes of Llama 3."""

FLEETS = (
    ("8b", "h100+2xl40s", 8, 512, "pipeline"),
    ("8b", "2xl40s", 32, 2048, "decode"),
    ("70b", "2xh100+4xl40s", 32, 1024, "pipeline"),
    ("70b", "h100+6xl40s", 4, 1024, "pipeline"),
    ("70b", "2xh100+2xl40s", 16, 4096, "prefill"),
)
"""Model, devices, batch, prompt and objective of the plans."""


LLAMA_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}

MIXTRAL = LLAMA_7B | {
    "model_type": "mixtral",
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}

PUBLISHED: tuple[tuple[str, str, dict[str, Any], Any, int, int, int, float], ...] = (
    ("h100_sxm", "h100", LLAMA_7B, "fp8", 768, 128, 128, 19694.0),
    ("h100_sxm", "h100", LLAMA_7B, "fp8", 112, 128, 2048, 6818.0),
    ("h100_sxm", "h100", LLAMA_7B, "fp8", 80, 2048, 128, 2244.0),
    ("h100_sxm", "h100", LLAMA_7B, "fp8", 48, 2048, 2048, 2740.0),
    ("l40s", "l40s", LLAMA_7B, "fp8", 64, 128, 128, 3240.0),
    ("l40s", "l40s", LLAMA_7B, "fp8", 64, 128, 2048, 1622.0),
    ("l40s", "l40s", LLAMA_7B, "fp8", 32, 2048, 128, 581.0),
    ("l40s", "l40s", LLAMA_7B, "fp8", 16, 2048, 2048, 531.0),
    ("a100_sxm", "a100-80g", LLAMA_7B, "fp16", 384, 128, 128, 5586.0),
    ("a100_sxm", "a100-80g", LLAMA_7B, "fp16", 60, 128, 2048, 1928.0),
    ("a100_sxm", "a100-80g", LLAMA_7B, "fp16", 52, 2048, 128, 591.0),
    ("a100_sxm", "a100-80g", MIXTRAL, ("int8", "bf16"), 1, 5, 200, 97.92),
)
"""System, preset, model, type of numbers, sequences, tokens given and made, tokens made a second."""


def errors(ratio: FloatArray) -> dict[str, float]:
    """Return quantiles of predicted over measured, and the shares within 15, 25 and 30%."""
    low, middle, high = (float(one) for one in np.quantile(ratio, [0.1, 0.5, 0.9]))
    near = {f"within {part:.0%}": float(np.mean(np.abs(ratio - 1) <= part)) for part in (0.15, 0.25, 0.3)}
    return {"shapes": len(ratio), "10%": low, "50%": middle, "90%": high, **near}


def held_out(tables: MeasuredTables, kind: str) -> FloatArray:
    """Return predicted over measured of a tenth of the shapes, from the others."""
    ratios, draw = [], np.random.default_rng(0)
    for table in tables.tables(kind).values():
        own = table.samples
        out = draw.random(len(own.seconds)) < 0.1
        if (~out).sum() < 4 or not out.any():
            continue

        def part(chosen: Any, own: Samples = own) -> Samples:
            sizes = {name: column[chosen] for name, column in own.sizes.items()}
            return Samples(sizes, own.flops[chosen], own.moved[chosen], own.seconds[chosen])

        found = ShapeTable(kind, part(~out), table.bits).estimate(part(out).sizes)
        ratios.append(found.seconds / own.seconds[out])
    return np.concatenate(ratios) if ratios else np.zeros(0)


def left_out(system: str, known: Sequence[MeasuredTables], other: MeasuredTables, kind: str) -> dict[str, float]:
    """Return the median relative error on a system left out, by three ways to guess."""
    name = {"products": "matmul", "prompts": "attention", "generation": "generation"}[kind]
    samples = table_samples(other, kind)
    assert samples is not None
    one = fit_tables(known)[name]
    by_roofline = predicted_over_measured(one, samples)
    draw = np.random.default_rng(0)
    rows = {table.device: table_samples(table, kind) for table in known}
    features, targets = [], []
    for device, own in rows.items():
        assert own is not None
        at = draw.permutation(len(own.seconds))[:20000]
        part = FitSamples(*(column[at] for column in own))
        features.append(_features(part, device))
        targets.append(-np.log(predicted_over_measured(one, part)))
    trees = HistGradientBoostingRegressor(max_iter=400, max_leaf_nodes=31, learning_rate=0.05, random_state=0)
    trees.fit(np.concatenate(features), np.concatenate(targets))
    by_trees = by_roofline * np.exp(trees.predict(_features(samples, other.device)))
    near = min(known, key=lambda table: abs(np.log(_bandwidth(table.device) / _bandwidth(other.device))))
    ratios = []
    for labels, table in other.tables(kind).items():
        same = near.tables(kind).get(labels)
        if same is None:
            continue
        shapes = table.samples
        scale = predicted(one, shapes, other.device) / predicted(one, shapes, near.device)
        ratios.append(same.estimate(shapes.sizes).seconds * scale / shapes.seconds)
    by_nearest = np.concatenate(ratios) if ratios else np.zeros(1)
    found = {"roofline": by_roofline, "nearest system": by_nearest, "boosted trees": by_trees}
    return {way: float(np.median(np.abs(ratio - 1))) for way, ratio in found.items()}


def predicted(one: Any, own: Samples, device: str) -> FloatArray:
    """Return the seconds that an efficiency predicts on a device."""
    rate = kinds()[device]["flops_per_s"]["bf16"]
    f, b = one.counted_flops(own.flops) / rate, one.counted_bytes(own.moved) / _bandwidth(device)
    depth = own.sizes.get("k", np.zeros_like(own.seconds))
    return np.asarray(np.maximum(np.maximum(f, b), one.depth_s * depth) + one.launch_s)


def _bandwidth(device: str) -> float:
    return float(parse_quantity(kinds()[device]["bytes_per_s"], "bytes/s"))


def _features(samples: FitSamples, device: str) -> FloatArray:
    """Return logarithms of operations, bytes, their seconds at the peaks, the inner dimension, and the rates."""
    ends = np.log([kinds()[device]["flops_per_s"]["bf16"], _bandwidth(device)])
    columns = [samples.flops, samples.moved, samples.flops_s, samples.moved_s, 1.0 + samples.depth]
    logs = np.stack([np.log(column) for column in columns], axis=1)
    return np.hstack([logs, np.tile(ends, (len(logs), 1)), logs[:, :1] - logs[:, 1:2]])


def regrets(tables: dict[str, MeasuredTables]) -> dict[str, dict[str, float]]:
    """Return how much worse plans by fitted efficiencies are than plans by the tables, both valued by the tables."""
    rows = {}
    base = {"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072}
    for size, fleet, batch, prompt, objective in FLEETS:
        model = llm.load({**base, **MODELS[size]}, batch=batch, prompt=prompt, output=256, dtype="bf16")
        plans = [
            llm.plan(model, fleet, objective=objective, runtime="vllm", costs=costs)  # type: ignore[call-overload]
            for costs in (None, list(tables.values()))
        ]
        hardware, priced = Hardware.preset(fleet), plans[1].model
        names = [device.name for device in hardware.devices]
        ends = np.cumsum([0, *(len(span.units) for span in plans[0].spans)])
        spans = [
            (names.index(one.device), int(a), int(b)) for one, a, b in zip(plans[0].spans, ends, ends[1:], strict=False)
        ]
        value = value_of(evaluate(priced, hardware, plans[0].settings, spans), plans[0].settings)
        rows[f"{size} {objective} on {fleet}"] = {
            "regret": value / plans[1].value - 1,
            "predicted / tables": plans[0].value / value,
        }
    return rows


def published(tables: dict[str, MeasuredTables]) -> dict[str, dict[str, float]]:
    """Return tokens a second that were published and that are predicted, by tables and by efficiencies."""
    rows = {}
    for system, preset, config, dtype, batch, prompt, output, known in PUBLISHED:
        kv_dtype = dtype if dtype == "fp8" else None
        model = llm.load(config, batch=batch, prompt=prompt, output=output, dtype=dtype, kv_dtype=kv_dtype)
        found = [
            llm.plan(model, preset, objective="request", runtime="none", reserve_bytes=0, costs=costs)
            for costs in (tables[system], None)
        ]
        of = {"tables": found[0].tokens_per_s / known, "efficiencies": found[1].tokens_per_s / known}
        rows[f"{config['model_type']} on {preset}, {batch} x {prompt} + {output}"] = {"published": known, **of}
    return rows


def main() -> None:
    """Measure all four, print tables and store them."""
    take_no_options(__doc__ or "")
    root = instances_root()
    if root is None or not (root / "gpu-measurements").is_dir():
        raise SystemExit("the published measurements are not at hand")
    places = {
        (system, runtime): Path(root / "gpu-measurements" / system / runtime)
        for system in SYSTEMS
        for runtime in SYSTEMS[system]
    }
    tables = {key: load(path) for key, path in places.items()}
    held = {
        f"{system} {runtime}, {kind}": errors(ratio)
        for (system, runtime), one in tables.items()
        for kind in KINDS
        if len(ratio := held_out(one, kind))
    }
    fitted = {}
    for system, runtimes in SYSTEMS.items():
        found = fit_tables([tables[system, runtimes[0]]])
        for kind, name in (("products", "matmul"), ("prompts", "attention"), ("generation", "generation")):
            samples = table_samples(tables[system, runtimes[-1]], kind)
            assert samples is not None
            ratio = predicted_over_measured(found[name], samples)
            fitted[f"{system} {runtimes[-1]}, {kind}"] = errors(ratio)
            if kind == "products":
                fitted[f"{system} {runtimes[-1]}, products < 1 GFLOP"] = errors(ratio[samples.flops < 1e9])
    out = {
        f"{system}, {kind}": left_out(
            system,
            [tables[other, SYSTEMS[other][0]] for other in SYSTEMS if other != system],
            tables[system, SYSTEMS[system][0]],
            kind,
        )
        for system in SYSTEMS
        for kind in ("products", "prompts", "generation")
    }
    regret = regrets({system: tables[system, SYSTEMS[system][-1]] for system in ("h100_sxm", "l40s")})
    whole = published({system: tables[system, SYSTEMS[system][-1]] for system in SYSTEMS})
    rows = {"held out": held, "fitted": fitted, "left out": out, "published": whole, "regret": regret}
    for title, part in rows.items():
        columns = list(next(iter(part.values())))
        print_table(title, ["", *columns], [[name, *(row[column] for column in columns)] for name, row in part.items()])
    save("measured_tables", rows)


if __name__ == "__main__":
    main()
