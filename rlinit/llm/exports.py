"""Plans of language models in the words of other tools: accelerate, llama.cpp, vLLM."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import NamedTuple

from rlinit.devices.runtimes import MICRO_BATCH
from rlinit.errors import InvalidPlan
from rlinit.llm.result import LlmPlan
from rlinit.llm.serving.servers import HOST, llama_cpp_layers, thread_flags

_EXPERTS = "ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Tensors of routed experts: llama.cpp's own pattern behind ``--n-cpu-moe`` (``common/common.h``); neither router
(``ffn_gate_inp``) nor shared experts (``_shexp``) nor norms."""

_FEED_FORWARD = r"ffn_(up|down|gate)\."
"""Matrices of a layer without experts, without its norms."""


class DeviceMap(NamedTuple):
    """What ``accelerate.dispatch_model`` and ``from_pretrained`` take.

    Parameters
    ----------
    device_map
        Module path -> device.
    max_memory
        Device -> bytes of weights that the plan puts there.
    """

    device_map: dict[str, str]
    max_memory: dict[str, int]


def to_device_map(plan: LlmPlan, devices: Mapping[str, str] | None = None) -> DeviceMap:
    """Return the device map of a plan for the modules of transformers.

    Modules whose weights are streamed are on the host or disk that has them: accelerate runs these on its main device.

    Parameters
    ----------
    plan
        Of a model read from a configuration.
    devices
        Name in the plan -> what the map shall say, such as "cuda:0"; the plan's names where not given.

    Raises
    ------
    InvalidPlan
        There is no split, it cuts inside a layer, or the model came from a GGUF file.
    """
    layers = _whole_layers(plan)
    if plan.model.weights == "as in the file":
        raise InvalidPlan("the plan is of a GGUF file, whose modules have no paths; plan the model's config.json")
    names = devices or {}
    gpt2 = plan.model.architecture.family == "gpt2"
    root = "transformer" if gpt2 else "model"
    before = ("wte", "wpe", "drop") if gpt2 else ("embed_tokens", "rotary_emb")
    first, last = (span.weights_on or span.device for span in (plan.spans[0], plan.spans[-1]))
    found = {f"{root}.{module}": first for module in before}
    found |= {f"{root}.{'h' if gpt2 else 'layers'}.{at}": device for at, device in enumerate(layers)}
    found |= {f"{root}.{'ln_f' if gpt2 else 'norm'}": last, "lm_head": last}
    held: dict[str, int] = {}
    for span in plan.spans:
        home = span.weights_on or span.device
        name = names.get(home, home)
        held[name] = held.get(name, 0) + ceil(span.weight_bytes)
    return DeviceMap({path: names.get(device, device) for path, device in found.items()}, held)


def to_vllm(plan: LlmPlan) -> dict[str, str]:
    """Return vLLM's environment variable and size of the pipeline: decoder layers of each rank, in order.

    Ranks are the plan's spans in order; vLLM keeps the embedding with the first and the head with the last of them.
    The longest sequence is said too; of plans with ``runtime="vllm"`` also the tokens of a pass, and the share of the
    memory that the reserves leave on each device, rounded down.

    Raises
    ------
    InvalidPlan
        There is no split, it cuts inside a layer, or a device has the embedding or the head alone.
    """
    _refuse_streams(plan, "vLLM")
    layers = _whole_layers(plan)
    if len({span.device for span in plan.spans}) < len(plan.spans):
        raise InvalidPlan("a device comes back in the plan, which ranks of vLLM cannot; plan with contiguous=True")
    counts = {span.device: layers.count(span.device) for span in plan.spans}
    for device, count in counts.items():
        if count == 0:
            raise InvalidPlan(f"device {device!r} has no decoder layer, which a rank of vLLM has to have")
    partition = ",".join(str(count) for count in counts.values())
    flags = {"VLLM_PP_LAYER_PARTITION": partition, "--pipeline-parallel-size": str(len(counts))}
    flags["--max-model-len"] = str(plan.model.workload.context)
    if plan.settings.runtime == "vllm":
        flags["--max-num-batched-tokens"] = str(plan.settings.micro_batch or MICRO_BATCH["vllm"])
        share = min(1 - one.reserve_bytes / one.memory_bytes for one in plan.memory)
        flags["--gpu-memory-utilization"] = f"{floor(100 * share) / 100:.2f}"
    return flags


def to_llama_cpp(plan: LlmPlan, devices: Mapping[str, str], *, threads: int | None = None) -> list[str]:
    """Return the flags of llama.cpp: ``--device``, ``-ngl``, ``-ts``, and where they do not suffice what moves tensors.

    llama.cpp puts the first layers on the host, the last ones on its devices in turn, and always keeps the token
    embedding on the host; plan with ``first=("cpu",)`` to get splits that it can say without ``-ot``. Experts of the
    first layers that stay on the host are ``--n-cpu-moe``; others, and other parts, are patterns of ``-ot``, which are
    searched for in the names of tensors. What these move leaves its cache on the device that the layer belongs to.
    Context and micro-batch, which the plan's memory goes by, are ``-c`` (of all sequences), ``-ub`` and ``-fa``.

    Parameters
    ----------
    plan
        With a split.
    devices
        Name in the plan -> llama.cpp's, such as "CUDA0" (``llama-cli --list-devices``); "CPU" for the host.
    threads
        That the host computes with (``-t``); None: llama.cpp's default.

    Raises
    ------
    InvalidPlan
        There is no split, a device has no name, or threads of no host.
    """
    _require_split(plan)
    _refuse_streams(plan, "llama.cpp")
    for span in plan.spans:
        if span.device not in devices:
            raise InvalidPlan(f"device {span.device!r} has no name of llama.cpp; give one such as 'CUDA0'")
    where = [devices[plan.assignment[unit]] for unit in _cache_units(plan)]
    where.append(devices[plan.assignment["head"]])
    flags, owners = llama_cpp_layers(where)
    overrides = _overrides(plan, devices, owners) if "--device" in flags else []
    return flags + overrides + _sizes(plan) + thread_flags([devices[span.device] for span in plan.spans], threads)


def _sizes(plan: LlmPlan) -> list[str]:
    """Return what the memory of the plan goes by."""
    settings, work = plan.settings, plan.model.workload
    flags = ["-c", str(work.batch * work.context)]
    if settings.micro_batch is not None:
        flags += ["-ub", str(settings.micro_batch)]
    return flags + ([] if settings.flash_attention else ["-fa", "off"])


def _overrides(plan: LlmPlan, devices: Mapping[str, str], owners: Sequence[str]) -> list[str]:
    """Return flags for what does not lie where llama.cpp puts its layer."""
    moved: dict[tuple[int, str], set[str]] = {}
    for unit, device in plan.assignment.items():
        layer, _, part = unit.partition(".")
        if layer.startswith("layer") and devices[device] != owners[int(layer[5:])]:
            moved.setdefault((int(layer[5:]), devices[device]), set()).add(part)
    mixtures = {part.layer for part in plan.model.architecture.parts if part.kind == "experts"}
    first = _first_experts_on_host(plan, devices, sorted(mixtures))
    patterns: dict[tuple[str, str], list[int]] = {}
    for (at, device), parts in moved.items():
        apart = _EXPERTS if at in mixtures else _FEED_FORWARD
        tensors = apart if parts == {"feed_forward"} else f"(?!{apart})" if parts == {"attention"} else ""
        if tensors != _EXPERTS or at >= first:
            patterns.setdefault((tensors, device), []).append(at)
    said = [
        rf"^blk\.({'|'.join(map(str, layers))})\.{tensors}.*={device}" for (tensors, device), layers in patterns.items()
    ]
    head = devices[plan.assignment["head"]]
    if head != owners[-1]:
        said.append(rf"^output.*={head}")
    flags = ["--n-cpu-moe", str(first)] if first else []
    return flags + (["-ot", ",".join(said)] if said else [])


def _first_experts_on_host(plan: LlmPlan, devices: Mapping[str, str], mixtures: Sequence[int]) -> int:
    """Return the number of first layers whose experts are on the host while some attention of theirs is not."""
    first = 0
    for at in mixtures if plan.settings.granularity == "part" else ():
        if devices[plan.assignment[f"layer{at}.feed_forward"]] != HOST:
            break
        if devices[plan.assignment[f"layer{at}.attention"]] != HOST:
            first = at + 1
    return first


def _cache_units(plan: LlmPlan) -> list[str]:
    """Return for each layer the unit that has its cache."""
    parts = plan.settings.granularity == "part"
    return [f"layer{at}.attention" if parts else f"layer{at}" for at in range(plan.model.architecture.num_layers)]


def _require_split(plan: LlmPlan) -> None:
    if not plan.spans:
        raise InvalidPlan(f"the plan is {plan.status}; there is no split to export")


def _refuse_streams(plan: LlmPlan, tool: str) -> None:
    for span in plan.spans:
        if span.weights_on:
            raise InvalidPlan(
                f"device {span.device!r} reads weights from {span.weights_on!r} in every pass, which {tool} is not "
                "told layer by layer; plan with stream=False"
            )


def _whole_layers(plan: LlmPlan) -> list[str]:
    """Return the device of each layer."""
    _require_split(plan)
    found: list[str] = []
    homes = {unit: span.weights_on or span.device for span in plan.spans for unit in span.units}
    for unit, device in homes.items():
        match = re.match(r"layer(\d+)", unit)
        if match is None:
            continue
        if int(match[1]) == len(found):
            found.append(device)
        elif found[-1] != device:
            raise InvalidPlan(f"the plan cuts inside layer {match[1]}; plan with granularity='layer'")
    return found
