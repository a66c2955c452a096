"""Layouts that serve: how far they are from their bounds, and rate against latency.

    python -m benchmarks.families.serving fleets
    python -m benchmarks.families.serving models

``fleets``: the published ones that are at hand, and made-up machines of three to eight kinds, one network or two that
slow links join (so many tokens a second as 5% of what all machines could serve, a pair). ``models``: three language
models on three sets of machines from the cost model, tokens a second of decoding and requests a second with their
prompts, against the rules of exo and Petals, replicas, one machine, and one pool for prompts and answers; the picture
has the fronts of decoding. Limits and seconds are the processor's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.record import RESULTS, count_processor_time, measure_part, save_figure, timed
from rlinit import llm
from rlinit.datasets.published.location import instances_root
from rlinit.hardware import Hardware

MADE_UP = (
    (80, 3, 24, 1), (80, 4, 24, 1), (80, 7, 42, 1), (80, 7, 42, 2), (80, 7, 42, 2), (80, 8, 100, 1), (80, 8, 100, 1),
    (80, 8, 100, 2), (32, 3, 10, 1), (48, 5, 30, 1), (60, 5, 30, 2), (61, 6, 60, 1),
)  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama-3-70b": {
        "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
        "num_attention_heads": 128, "vocab_size": 129280, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    },
    "gpt-oss-120b": {
        "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
        "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
    },
}  # fmt: skip
FLEETS = ("4xa100-80g+8xl4+12xt4", "8xa100-80g+8xl40s", "4xh100+8xa100-80g+8xrtx4090")


def made_up(seed: int, layers: int, kinds: int, devices: int, networks: int, slow: float = 0.05) -> llm.Fleet:
    """Return machines whose rates fall faster than by the layers that they hold: their batches shrink."""
    rng = np.random.default_rng(seed)
    most = np.sort(rng.integers(3, 25, kinds))
    work = np.exp(rng.uniform(math.log(4000), math.log(60000), kinds))
    table = np.zeros((kinds, layers + 1))
    for kind, (held, speed) in enumerate(zip(most, work, strict=True)):
        j, loss = np.arange(1, min(held, layers) + 1), rng.uniform(0.3, 0.6)
        rates = speed / j * (1 - loss * (j - 1) / held) * rng.uniform(0.96, 1, len(j))
        table[kind, j] = np.minimum.accumulate(rates)
    of = np.repeat(np.arange(kinds), 1 + rng.multinomial(devices - kinds, rng.dirichlet(np.full(kinds, 2.0))))
    rng.shuffle(of)
    names, network = tuple(f"d{at}" for at in range(devices)), rng.integers(networks, size=devices)
    fair = float(work[of].sum()) * 0.7 / layers
    links = {("source", name): 100 * fair for name in names} | {(name, "sink"): 100 * fair for name in names}
    for a, one in enumerate(names):
        for b, two in enumerate(names):
            if a != b:
                links[one, two] = 10 * fair if network[a] == network[b] else slow * fair
    return llm.Fleet(layers, names, table[of], links)


def measure_fleets() -> list[dict[str, Any]]:
    """Return a row for each fleet."""
    rows = []
    llm.serve(made_up(0, 4, 2, 4, 1))
    files = sorted(((instances_root() or RESULTS) / "serving").glob("*.json"))
    fleets = [(path.stem, llm.load_fleet(path)) for path in files]
    fleets += [(f"made up {seed}", made_up(seed, *shape)) for seed, shape in enumerate(MADE_UP)]
    for name, fleet in fleets:
        limit, kinds = 30.0 if len(fleet.devices) >= 100 else 10.0, fleet.kinds()
        plan, seconds = timed(llm.serve, fleet, time_limit_s=limit)
        rows.append(
            {
                "fleet": name, "layers": fleet.layers, "kinds": len({rates.tobytes() for rates in fleet.rates}),
                "machines": len(fleet.devices), "networks": int(kinds.networks.max()) + 1, "status": plan.status,
                "tokens_per_s": plan.tokens_per_s, "bound": plan.bound, "gap": plan.bound / plan.tokens_per_s - 1,
                "seconds": round(seconds, 2),
            }
        )  # fmt: skip
    return rows


def measure_models() -> list[dict[str, Any]]:
    """Return a row for each model and fleet, and draw the fronts."""
    from matplotlib.figure import Figure

    rows: list[dict[str, Any]] = []
    planned: Callable[..., llm.ServingPlan] = llm.plan
    figure = Figure(figsize=(12, 4), layout="constrained")
    llm.serve(made_up(0, 4, 2, 4, 1))
    for axes, (name, config) in zip(figure.subplots(1, len(MODELS)), MODELS.items(), strict=True):
        model = llm.load(config, prompt=512, output=128, dtype="int4/fp16" if name != "llama-3-70b" else "fp16")
        for fleet in FLEETS:
            front, front_s = timed(llm.frontier, model, fleet)
            for objective, unit in (("throughput", 1.0), ("requests", float(model.workload.decode_steps))):
                plan, seconds = timed(planned, model, Hardware.preset(fleet), objective=objective)
                rules = {rule: value for rule, value in plan.baselines.items() if rule != "two pools"}
                best = max(rules, key=lambda rule: rules[rule]) if rules else ""
                rows.append(
                    {
                        "model": name, "fleet": fleet, "objective": objective, "pools": 2 if plan.prompt_layers else 1,
                        "value": plan.tokens_per_s / unit, "bound": plan.bound / unit,
                        "gap": plan.bound / plan.tokens_per_s - 1 if plan.tokens_per_s else math.inf,
                        "best rule": best, "its value": rules.get(best, 0.0) / unit, "seconds": round(seconds, 2),
                        "front_s": round(front_s, 2), "points": len(front),
                    }
                )  # fmt: skip
            axes.plot([one.latency_s for one in front], [one.tokens_per_s for one in front], "o-", label=fleet)
        axes.set(title=name, xlabel="seconds of a pass", ylabel="tokens a second", xscale="log", yscale="log")
        axes.legend(fontsize=7)
    save_figure("serving_models", figure)
    return rows


def main() -> None:
    """Measure the part that the command line names."""
    count_processor_time()
    parts = {"fleets": ("made-up fleets", measure_fleets), "models": ("language models", measure_models)}
    measure_part("serving", parts)


if __name__ == "__main__":
    main()
