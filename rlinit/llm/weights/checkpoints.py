"""Formats of quantised checkpoints, from the ``quantization_config`` of a Hugging Face configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rlinit.errors import InvalidConfig
from rlinit.limits import closest
from rlinit.llm.weights.tensors import PLAIN, Storage, Tensor

_Rules = tuple[tuple[str, Storage], ...]
"""Modules ("": all, or a name or pattern) and the format of their matrices; the first that fits counts."""

_ALWAYS_KEPT = re.compile(r"embed_tokens$|mlp\.(gate|router|shared_expert_gate)$")
"""Embeddings and routers keep the model's type under every method."""

_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Which matrices of a checkpoint are quantised, and how.

    Parameters
    ----------
    method
        ``quant_method`` of the configuration.
    dtype
        Of all other tensors, and of activations.
    rules
        See `_Rules`.
    kept
        Patterns of modules that are not quantised.
    """

    method: str
    dtype: str
    rules: tuple[tuple[re.Pattern[str], Storage], ...]
    kept: tuple[re.Pattern[str], ...]

    def choose(self, tensor: Tensor) -> Storage:
        """Return the format of a tensor.

        Parameters
        ----------
        tensor
            Named as in transformers.
        """
        if tensor.is_matrix and not any(one.search(tensor.name) for one in (_ALWAYS_KEPT, *self.kept)):
            for pattern, storage in self.rules:
                if pattern.search(tensor.name):
                    return storage
        return PLAIN[self.dtype]


class _Section:
    """An object of the configuration, read with checks."""

    def __init__(self, data: Any, path: str, plain_bits: float) -> None:
        if not isinstance(data, Mapping):
            raise InvalidConfig(f"{path} is {f'{data!r:.40}'}; expected an object")
        self.data, self.path, self.plain_bits = data, path, plain_bits

    def number(self, key: str, other: int, least: int = 1, most: int = 1 << 20) -> int:
        value = self.data.get(key)
        value = other if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidConfig(
                f"{self.path}.{key} is {f'{value!r:.40}'}; expected a whole number from {least} to {most}"
            )
        return value

    def columns(self, other: int) -> int:
        """Return the columns of a group; 0, all of them, where the file says -1."""
        return max(0, self.number("group_size", other, -1))

    def block(self, key: str) -> tuple[int, int]:
        """Return rows and columns of a block; (0, 0), the whole matrix, where there is none."""
        value = self.data.get(key)
        if value is None:
            return 0, 0
        if not isinstance(value, list) or len(value) != 2 or not all(type(one) is int and one > 0 for one in value):
            raise InvalidConfig(
                f"{self.path}.{key} is {f'{value!r:.40}'}; expected two whole numbers, rows and columns"
            )
        return value[0], value[1]

    def names(self, key: str) -> list[str]:
        """Return a list of modules, or the keys of an object; empty where there is none."""
        value = self.data.get(key) or []
        if not isinstance(value, (list, Mapping)) or not all(isinstance(one, str) for one in value):
            raise InvalidConfig(f"{self.path}.{key} is {f'{value!r:.40}'}; expected a list of names of modules")
        return list(value)

    def section(self, key: str) -> _Section:
        return _Section(self.data.get(key), f"{self.path}.{key}", self.plain_bits)

    def unknown(self, key: str, known: Mapping[str, Any] | None = None) -> InvalidConfig:
        value = self.data.get(key)
        said = "" if known is None else f"{closest(str(value), known)}; expected one of {', '.join(known)}"
        return InvalidConfig(
            f"{self.path}.{key} is {f'{value!r:.40}'}, which is not counted{said}; say what weights take by dtype "
            "(--dtype int4/fp16, --dtype q4_k_m)"
        )


def _mxfp4(_: _Section) -> _Rules:
    """Blocks of 32 with a scale of eight bits; experts only."""
    return ((r"re:.*\.experts\.", Storage(4, (1, 32), 8)),)


def _fp8(said: _Section) -> _Rules:
    """Scales in FP32, of blocks or of whole matrices, and one of the inputs where it is fixed."""
    fixed = 4 if said.data.get("activation_scheme") == "static" else 0
    return (("", Storage(8, said.block("weight_block_size"), 32, tensor_bytes=fixed)),)


def _fp8_rows(_: _Section) -> _Rules:
    return (("", Storage(8, (1, 0), 32)),)


def _awq(said: _Section) -> _Rules:
    """Take a scale in FP16 and a zero of the weights' bits for each group of inputs."""
    bits = said.number("bits", 4, most=16)
    return (("", Storage(bits, (1, said.columns(128)), 16 + bits)),)


def _gptq(said: _Section) -> _Rules:
    """As `_awq`, and the group of each input; ``dynamic`` gives modules numbers of their own."""

    def storage(section: _Section) -> Storage:
        bits = section.number("bits", said.number("bits", 4, most=16), most=16)
        columns = section.columns(said.columns(128) or -1)
        return Storage(bits, (1, columns), 16 + bits, column_bits=32)

    own = [
        (f"re:{name.removeprefix('+:')}", storage(said.section("dynamic").section(name)))
        for name in said.names("dynamic")
        if not name.startswith("-:")
    ]
    return (*own, ("", storage(said)))


def _bitsandbytes(said: _Section) -> _Rules:
    """Blocks of 64 with a scale in FP32, which may be quantised again; or rows of eight bits.

    A matrix also has the values of its sixteen codes, and with scales of eight bits those of their 256.
    """
    if said.data.get("load_in_8bit") or said.data.get("_load_in_8bit"):
        return (("", Storage(8, (1, 0), 32)),)
    twice = bool(said.data.get("bnb_4bit_use_double_quant"))
    return (("", Storage(4, (1, 64), 8 + 32 / 256 if twice else 32, tensor_bytes=64 + 1024 * twice)),)


_PACKED: Mapping[str, tuple[float | None, int]] = {
    "pack-quantized": (None, 16), "int-quantized": (None, 0), "float-quantized": (None, 0),
    "naive-quantized": (None, 0), "nvfp4-pack-quantized": (8, 8), "mxfp4-pack-quantized": (8, 0),
}  # fmt: skip
"""Format of compressed-tensors -> bits of a scale (None: those of the model's type), and bytes once a matrix."""


def _compressed_tensors(said: _Section) -> _Rules:
    """Take each group of modules by its strategy: a scale for each matrix, row, group of a row, or block."""
    rules = []
    for name in said.names("config_groups"):
        group = said.section("config_groups").section(name)
        if group.data.get("weights") is None:
            continue
        weights, form = group.section("weights"), group if group.data.get("format") else said
        packed, strategy = str(form.data.get("format")), str(weights.data.get("strategy", "tensor"))
        if packed not in _PACKED:
            raise form.unknown("format", _PACKED)
        scale, fixed = _PACKED[packed]
        strategies = {
            "tensor": (0, 0), "channel": (1, 0), "group": (1, weights.columns(-1)),
            "tensor_group": (1, weights.columns(-1)), "block": weights.block("block_structure"),
        }  # fmt: skip
        if strategy not in strategies:
            raise weights.unknown("strategy", strategies)
        bits = weights.number("num_bits", 8, most=16)
        scale = said.plain_bits if scale is None else scale
        zero = bits if weights.data.get("symmetric") is False else 0
        indices = 32 if weights.data.get("actorder") == "group" else 0
        storage = Storage(bits, strategies[strategy], scale + zero, indices, fixed)
        rules += [("" if target == "Linear" else target, storage) for target in group.names("targets")]
    return tuple(sorted(rules, key=lambda rule: not rule[0]))  # names before all linear modules


_MODELOPT: Mapping[str, Storage] = {
    "NVFP4": Storage(4, (1, 16), 8, tensor_bytes=8), "FP8": Storage(8, (0, 0), 32, tensor_bytes=4),
}  # fmt: skip
"""Algorithm of TensorRT Model Optimizer -> its format, with scales of the weights and inputs of each matrix."""


def _modelopt(said: _Section) -> _Rules:
    found = _MODELOPT.get(str(said.data.get("quant_algo")))
    if found is None:
        raise said.unknown("quant_algo", _MODELOPT)
    return (("", found),)


_TORCHAO: Mapping[str, Callable[[_Section], Storage]] = {
    "int4weightonly": lambda said: Storage(4, (1, said.columns(128)), 32),  # scale and zero in 16 bits each
    "int8weightonly": lambda said: Storage(8, (1, 0), said.plain_bits),
    "int8dynamicactivationint8weight": lambda said: Storage(8, (1, 0), said.plain_bits),
    "float8weightonly": lambda _: Storage(8, (1, 0), 32),
    "float8dynamicactivationfloat8weight": lambda _: Storage(8, (1, 0), 32),
}
"""Class of a configuration of torchao, in lower case without ``Config`` and underscores -> its format."""


def _torchao(said: _Section) -> _Rules:
    kind, arguments = said.data.get("quant_type"), "quant_type_kwargs"
    if isinstance(kind, Mapping):
        said, arguments = said.section("quant_type").section("default"), "_data"
        kind = said.data.get("_type")
    read = _TORCHAO.get(str(kind).lower().replace("_", "").removesuffix("config"))
    if read is None:
        raise said.unknown("quant_type" if arguments == "quant_type_kwargs" else "_type", _TORCHAO)
    return (("", read(said.section(arguments) if said.data.get(arguments) else said)),)


@dataclass(frozen=True, slots=True)
class _Method:
    """How a method is read, where it lists modules that it leaves alone, and whether the head is such a one."""

    rules: Callable[[_Section], _Rules]
    kept: str = "modules_to_not_convert"
    keeps_head: bool = True


METHODS: Mapping[str, _Method] = MappingProxyType({
    "mxfp4": _Method(_mxfp4),
    "fp8": _Method(_fp8),
    "fbgemm_fp8": _Method(_fp8_rows),
    "awq": _Method(_awq),
    "gptq": _Method(_gptq),
    "bitsandbytes": _Method(_bitsandbytes, "llm_int8_skip_modules"),
    "compressed-tensors": _Method(_compressed_tensors, "ignore", keeps_head=False),
    "modelopt": _Method(_modelopt, "ignore", keeps_head=False),
    "torchao": _Method(_torchao),
})  # fmt: skip
"""``quant_method`` -> how it is read."""


def quantization_of(config: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the key under which a configuration says how it is quantised, and what it says; "" and None for nothing.

    Parameters
    ----------
    config
        Contents of ``config.json``; of models for pictures and text also those of its ``text_config``.
    """
    text = config.get("text_config")
    for whole in (config, text if isinstance(text, Mapping) else {}):
        for key in ("quantization_config", "compression_config"):
            if whole.get(key):
                return key, whole[key]
    return "", None


def checkpoint_of(config: Mapping[str, Any]) -> Checkpoint | None:
    """Return how the weights of a configuration are quantised; None where it does not say.

    Parameters
    ----------
    config
        Contents of ``config.json``.

    Raises
    ------
    InvalidConfig
        An unknown method, or a value of it that is not counted.
    """
    key, found = quantization_of(config)
    if not key:
        return None
    text = config.get("text_config")
    text = text if isinstance(text, Mapping) else {}
    kinds = [whole.get(name) for whole in (text, config) for name in ("dtype", "torch_dtype")]
    types = [str(kind).removeprefix("torch.") for kind in kinds]
    dtype = next((_TYPES[one] for one in types if one in _TYPES), "bf16")
    said = _Section(found, key, PLAIN[dtype].bits)
    named = said.data.get("quant_method")
    if named is None and any(said.data.get(flag) for flag in ("load_in_4bit", "load_in_8bit")):
        named = "bitsandbytes"
    if not isinstance(named, str) or named not in METHODS:
        raise said.unknown("quant_method", METHODS)
    method = METHODS[named]
    rules = tuple((_pattern(target), storage) for target, storage in method.rules(said))
    kept = said.names(method.kept) + [
        f"re:{name.removeprefix('-:')}" for name in said.names("dynamic") if name.startswith("-:")
    ]
    if method.keeps_head and not said.data.get("lm_head"):
        kept.append("lm_head")
    return Checkpoint(named, dtype, rules, tuple(_pattern(name) for name in kept))


def _pattern(name: str) -> re.Pattern[str]:
    """Return what finds a module, or the modules in it, by name, with ``*`` for a part of it, or by ``re:``.

    Raises
    ------
    InvalidConfig
        A pattern that is none.
    """
    if not name:
        return re.compile("")
    name = name.replace("language_model.", "")  # of models for pictures and text, whose text counts
    try:
        if name.startswith("re:"):
            return re.compile(f"^(?:{name.removeprefix('re:')})")
        return re.compile(r"(^|\.)" + re.escape(name).replace(r"\*", r"[^.]*") + r"(\.|$)")
    except re.error as problem:
        raise InvalidConfig(f"quantization_config: {name!r:.60} is no pattern of modules: {problem}") from None
