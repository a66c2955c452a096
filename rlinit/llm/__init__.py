"""Language models from a config or a GGUF file, split over unlike devices.

>>> from rlinit import llm
>>> model = llm.load({"model_type": "llama", "num_hidden_layers": 4}, prompt=64, output=8)
>>> llm.plan(model, "2xrtx3090", objective="decode").status
'optimal'
"""

from __future__ import annotations

from rlinit.llm.exports import DeviceMap, to_device_map, to_llama_cpp, to_vllm
from rlinit.llm.menus import to_graph
from rlinit.llm.model import LanguageModel, Workload, load
from rlinit.llm.planning import Limit, max_batch, max_context, plan
from rlinit.llm.result import DeviceMemory, Level, LlmPlan, Span
from rlinit.llm.serving.fleets import Fleet, load_fleet
from rlinit.llm.serving.layouts import ServingPlan, serve
from rlinit.llm.throughput import frontier
from rlinit.llm.verification import verify

__all__ = [
    "DeviceMap",
    "DeviceMemory",
    "Fleet",
    "LanguageModel",
    "Level",
    "Limit",
    "LlmPlan",
    "ServingPlan",
    "Span",
    "Workload",
    "frontier",
    "load",
    "load_fleet",
    "max_batch",
    "max_context",
    "plan",
    "serve",
    "to_device_map",
    "to_graph",
    "to_llama_cpp",
    "to_vllm",
    "verify",
]
