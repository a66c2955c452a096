"""Language models over unlike devices: the proven best split against the rules of other tools, under one cost model.

The rules of `rlinit.llm.simple_splits` (layers in proportion to memory, as exo's, or bandwidth, equal layers on the
GPUs, llama.cpp's fit and others) are judged by the same seconds and the same memory; where a rule's split does not fit,
the row says so. So is accelerate's ``infer_auto_device_map``, given the largest share of the memories with which its
map fits beside caches.

    python -m benchmarks.families.language_models

With ``--any-device`` instead: 100 layers on eight unlike devices, each unit on any of them, whole layers and parts; the
seconds of each plan to its end, its proof among them, on the processor's clock.
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
import time
from typing import Any, get_args

from benchmarks.record import print_table, save
from rlinit import llm
from rlinit.hardware import Hardware
from rlinit.llm.lowering import Granularity, Settings
from rlinit.llm.verification import evaluate, memory_of, overfull, value_of

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
QWEN_32B = {
    "model_type": "qwen2", "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64,
    "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA2_27B = {
    "model_type": "gemma2", "hidden_size": 4608, "intermediate_size": 36864, "num_hidden_layers": 46,
    "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
}  # fmt: skip
QWEN_MOE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "vocab_size": 151936,
}  # fmt: skip
LLAMA_70B = LLAMA_8B | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
LLAMA_70B |= {"num_attention_heads": 64}
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "llama-8b fp16": (LLAMA_8B, "fp16"),
    "llama-70b fp16": (LLAMA_70B, "fp16"),
    "llama-70b int4": (LLAMA_70B, "int4/fp16"),
    "mistral-7b int8": ({"model_type": "mistral"}, "int8/fp16"),
    "mixtral-8x7b int8": ({"model_type": "mixtral"}, "int8/fp16"),
    "qwen2-32b fp16": (QWEN_32B, "fp16"),
    "qwen3-30b-a3b int4": (QWEN_MOE, "int4/fp16"),
    "gemma2-27b fp16": (GEMMA2_27B, "fp16"),
}
CLUSTERS = (
    "2xrtx3090+cpu", "rtx4090+t4+cpu-128g", "a100-80g+l4+t4+cpu-128g", "m3-max/rtx4090+cpu/10gbe",
    "4xt4+2xl4+cpu-128g", "h100+a100+l40s+rtx4090+rtx3090+l4+t4+cpu-128g", "rtx4090+cpu-64g", "2xrtx4090+cpu-128g",
    "4xl4+cpu-128g", "4xa100+nvlink", "m3-max/m3-max-64g/10gbe", "2xv100+2xp100+cpu-256g",
)  # fmt: skip
HUNDRED: dict[str, dict[str, Any]] = {
    "dense": LLAMA_70B | {"num_hidden_layers": 100},
    "mixture": {"model_type": "mixtral", "num_hidden_layers": 100},
    "windows": GEMMA2_27B | {"num_hidden_layers": 100, "sliding_window": 4096},
}
UNLIKE = (
    "a100-80g+l40s+rtx4090+rtx3090+l4+v100-32g+t4+cpu-128g", "h100+a100+l40s+rtx4090+rtx3090+l4+t4+cpu-256g",
    "a100+l40s/rtx4090+rtx3090+v100+cpu-128g/l4+t4/10gbe",
)  # fmt: skip
ACCELERATE = "accelerate"
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)


def accelerate_splits(config: dict[str, Any], model: llm.LanguageModel, hardware: Hardware) -> dict[str, float | str]:
    """Return by objective the value of accelerate's map: GPUs in turn, the processor last."""
    import torch
    from accelerate import infer_auto_device_map
    from accelerate.utils import CustomDtype
    from transformers import AutoConfig, AutoModelForCausalLM

    causal: Any = AutoModelForCausalLM
    logging.getLogger("accelerate").setLevel(logging.ERROR)  # which misses the GPUs
    with torch.device("meta"):
        module = causal.from_config(AutoConfig.for_model(**config), dtype=torch.float16)
    module.tie_weights()
    dtype = {"int4": CustomDtype.INT4, "int8": torch.int8}.get(model.weights, torch.float16)
    names = {"cpu" if one.kind == "cpu" else at: at for at, one in enumerate(hardware.devices)}
    found: dict[str, float | str] = {}
    for share in _SHARES:
        memory = {name: int(share * hardware.devices[at].memory_bytes) for name, at in names.items()}
        order = {name: memory[name] for name in sorted(memory, key=str)}
        mapped = infer_auto_device_map(module, order, module._no_split_modules, dtype=dtype)
        spans = _spans(mapped, model, names)
        if spans is None:
            continue
        for objective in ("decode", "prefill", "request", "pipeline"):
            settings = Settings(objective)
            places = evaluate(model, hardware, settings, spans)
            again = objective == "pipeline" and len({one.device for one in places}) < len(places)
            if objective not in found and not again and not overfull(memory_of(model, hardware, settings, places)):
                found[objective] = value_of(places, settings)
    return found


def _spans(mapped: dict[str, Any], model: llm.LanguageModel, names: dict[Any, int]) -> tuple[Any, ...] | None:
    """Return a map as spans of units; None where something is on the disk or a layer is cut."""

    def place(path: str) -> int | None:
        while path not in mapped and path:
            path = path.rpartition(".")[0]
        return names.get(mapped.get(path, "disk"))

    paths = [f"model.layers.{at}" for at in range(model.architecture.num_layers)]
    where = [place(path) for path in ("model.embed_tokens", *paths, "lm_head")]
    if None in where:
        return None
    starts = [0, *(at for at in range(1, len(where)) if where[at] != where[at - 1])]
    return tuple((where[a], a, b) for a, b in zip(starts, [*starts[1:], len(where)], strict=True))


def measure(context: int) -> list[dict[str, Any]]:
    """Return a row for each model, cluster and objective."""
    rows = []
    for name, (config, dtype) in MODELS.items():
        model = llm.load(config, context=context, output=256, dtype=dtype, name=name)
        for cluster in CLUSTERS:
            theirs = accelerate_splits(config, model, Hardware.preset(cluster))
            for objective in ("decode", "prefill", "request", "pipeline"):
                plan = llm.plan(model, cluster, objective=objective)
                value = plan.value if math.isfinite(plan.value) else None
                rows.append(
                    {
                        "model": name, "cluster": cluster, "objective": objective, "status": plan.status,
                        "value_s": value,
                        "devices": len(plan.spans), "solve_s": round(plan.solve_s, 4), "message": plan.message,
                        "baselines": dict(plan.baselines) | {ACCELERATE: theirs.get(objective, "no map fits")},
                    }
                )  # fmt: skip
    return rows


def measure_any_device() -> list[dict[str, Any]]:
    """Return a row for each granularity, model of 100 layers, cluster of eight unlike devices and objective."""
    rows: list[dict[str, Any]] = []
    for granularity in get_args(Granularity):
        for name, config in HUNDRED.items():
            model = llm.load(config, context=8192, dtype="bf16", name=name)
            for cluster in UNLIKE:
                for objective in ("decode", "prefill", "request"):
                    if not rows:  # compile first
                        llm.plan(model, cluster, objective=objective, granularity=granularity, contiguous=False)
                    started = time.process_time()
                    plan = llm.plan(model, cluster, objective=objective, granularity=granularity, contiguous=False)
                    rows.append(
                        {
                            "granularity": granularity, "model": name, "cluster": cluster, "objective": objective,
                            "status": plan.status, "bound_source": plan.bound_source, "value_s": plan.value,
                            "bound_s": plan.bound, "spans": len(plan.spans),
                            "processor_s": round(time.process_time() - started, 3),
                        }
                    )  # fmt: skip
    return rows


def show_any_device(rows: list[dict[str, Any]]) -> None:
    """Print how many are proven, how soon, and a row for each."""
    for granularity in get_args(Granularity):
        seconds = [row["processor_s"] for row in rows if row["granularity"] == granularity]
        proven = [row["status"] == "optimal" for row in rows if row["granularity"] == granularity]
        print(
            f"{granularity}: {sum(proven)} of {len(proven)} proven; processor seconds: median "
            f"{statistics.median(seconds):.2f}, worst {max(seconds):.2f}"
        )
    headings = ["granularity", "model", "cluster", "objective", "value (s)", "spans", "status", "processor s"]
    print_table(
        "100 layers on eight unlike devices, each unit on any of them",
        headings,
        [
            [
                row["granularity"], row["model"], row["cluster"], row["objective"], f"{row['value_s']:.5g}",
                str(row["spans"]), row["status"], f"{row['processor_s']:.2f}",
            ]
            for row in rows
        ],
    )  # fmt: skip


def shown(row: dict[str, Any], rule: str) -> str:
    """Return how many times as long a rule's split takes, or that it does not fit."""
    value = row["baselines"].get(rule)
    if not row["baselines"]:
        return "-"
    return f"{value / row['value_s']:.2f}" if isinstance(value, float) else "no"


def main() -> None:
    """Print the table and write ``results/language_models.json``, or that of plans on any device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--any-device", action="store_true", help="proofs of plans whose devices may come back")
    asked = parser.parse_args()
    if asked.any_device:
        found = measure_any_device()
        show_any_device(found)
        save("language_models_any_device", found)
        return
    context = asked.context
    rows = measure(context)
    beaten = [row for row in rows for value in row["baselines"].values() if isinstance(value, float)
              and (row["value_s"] is None or value < row["value_s"] * (1 - 1e-9))]  # fmt: skip
    print(f"{len(rows)} problems; rules beat the plan, or fit where it says that nothing does: {len(beaten)}")
    rules = max((list(row["baselines"]) for row in rows), key=len)
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
