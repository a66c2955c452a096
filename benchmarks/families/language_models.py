"""Language models over unlike devices: the proven best split against the rules of other tools, under one cost model.

Equal layers, in proportion to memory (exo's rule), in proportion to bandwidth, and greedy whole layers (llama.cpp's
fit) are judged by the same seconds and the same memory; where a rule's split does not fit, the row says so.

    python -m benchmarks.families.language_models
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from benchmarks.record import print_table, save
from rlinit import llm

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "llama-8b fp16": (LLAMA_8B, "fp16"),
    "llama-70b int4": (
        LLAMA_8B | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
        | {"num_attention_heads": 64},
        "int4/fp16",
    ),
    "mixtral-8x7b int8": ({"model_type": "mixtral"}, "int8/fp16"),
    "gemma2-27b fp16": (
        {
            "model_type": "gemma2", "hidden_size": 4608, "intermediate_size": 36864, "num_hidden_layers": 46,
            "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
        },
        "fp16",
    ),
}  # fmt: skip
CLUSTERS = (
    "2xrtx3090+cpu", "rtx4090+t4+cpu-128g", "a100-80g+l4+t4+cpu-128g", "m3-max/rtx4090+cpu/10gbe",
    "4xt4+2xl4+cpu-128g", "h100+a100+l40s+rtx4090+rtx3090+l4+t4+cpu-128g",
)  # fmt: skip


def measure(context: int) -> list[dict[str, Any]]:
    """Return a row for each model, cluster and objective."""
    rows = []
    for name, (config, dtype) in MODELS.items():
        model = llm.load(config, context=context, output=256, dtype=dtype, name=name)
        for cluster in CLUSTERS:
            for objective in ("decode", "prefill", "request", "pipeline"):
                plan = llm.plan(model, cluster, objective=objective)
                value = plan.value if math.isfinite(plan.value) else None
                rows.append(
                    {
                        "model": name, "cluster": cluster, "objective": objective, "status": plan.status,
                        "value_s": value,
                        "devices": len(plan.spans), "solve_s": round(plan.solve_s, 4), "message": plan.message,
                        "others": dict(plan.others),
                    }
                )  # fmt: skip
    return rows


def shown(row: dict[str, Any], rule: str) -> str:
    """Return how many times as long a rule's split takes, or that it does not fit."""
    value = row["others"].get(rule)
    if not row["others"]:
        return "-"
    return f"{value / row['value_s']:.2f}" if isinstance(value, float) else "no"


def main() -> None:
    """Print the table and write ``results/language_models.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=4096)
    context = parser.parse_args().context
    rows = measure(context)
    rules = next(list(row["others"]) for row in rows if row["others"])
    headings = ["model", "cluster", "objective", "value (s)", "devices", "proof (s)", *rules]
    print_table(
        "seconds, and how many times as long the rules' splits take ('no': does not fit)",
        headings,
        [
            [
                row["model"], row["cluster"], row["objective"],
                f"{row['value_s']:.4g}" if row["value_s"] else row["status"],
                str(row["devices"]), f"{row['solve_s']:.3f}", *(shown(row, rule) for rule in rules),
            ]
            for row in rows
        ],
    )  # fmt: skip
    save("language_models", rows, context=context)


if __name__ == "__main__":
    main()
