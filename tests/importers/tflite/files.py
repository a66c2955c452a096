"""TensorFlow Lite files made by hand for the tests."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Operator", "Tensor", "tflite_file"]


@dataclass(frozen=True)
class Tensor:
    """A tensor: `data` bytes make it a constant, `buffer` shares the buffer of an earlier one."""

    name: str
    shape: Sequence[int]
    code: int = 0
    data: int = 0
    signature: Sequence[int] = ()
    buffer: int | None = None
    is_variable: bool = False


@dataclass(frozen=True)
class Operator:
    """An operator by its builtin number, or its custom name."""

    kind: int | str
    inputs: Sequence[int]
    outputs: Sequence[int]
    left_transposed: bool | None = None


def _numbers(builder: Any, start: Any, values: Sequence[int]) -> int:
    start(builder, len(values))
    for value in reversed(values):
        builder.PrependInt32(value)
    return int(builder.EndVector())


def _tables(builder: Any, start: Any, offsets: Sequence[int]) -> int:
    start(builder, len(offsets))
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def tflite_file(
    tensors: Sequence[Tensor], operators: Sequence[Operator], inputs: Sequence[int], outputs: Sequence[int]
) -> bytes:
    """Return a model of one subgraph as a flatbuffer."""
    flatbuffers, tflite = importlib.import_module("flatbuffers"), importlib.import_module("tflite")
    builder = flatbuffers.Builder(1024)
    kinds = list(dict.fromkeys(operator.kind for operator in operators))
    buffers, made_tensors = [_buffer(tflite, builder, 0)], []
    for tensor in tensors:
        if tensor.buffer is None:
            buffers.append(_buffer(tflite, builder, tensor.data))
        place = len(buffers) - 1 if tensor.buffer is None else tensor.buffer
        made_tensors.append(_tensor(tflite, builder, tensor, place))
    made_operators = [_operator(tflite, builder, operator, kinds.index(operator.kind)) for operator in operators]
    codes = [_code(tflite, builder, kind) for kind in kinds]
    parts = [
        _tables(builder, tflite.SubGraphStartTensorsVector, made_tensors),
        _numbers(builder, tflite.SubGraphStartInputsVector, inputs),
        _numbers(builder, tflite.SubGraphStartOutputsVector, outputs),
        _tables(builder, tflite.SubGraphStartOperatorsVector, made_operators),
    ]
    tflite.SubGraphStart(builder)
    tflite.SubGraphAddTensors(builder, parts[0])
    tflite.SubGraphAddInputs(builder, parts[1])
    tflite.SubGraphAddOutputs(builder, parts[2])
    tflite.SubGraphAddOperators(builder, parts[3])
    subgraph = tflite.SubGraphEnd(builder)
    subgraphs = _tables(builder, tflite.ModelStartSubgraphsVector, [subgraph])
    code_vector = _tables(builder, tflite.ModelStartOperatorCodesVector, codes)
    buffer_vector = _tables(builder, tflite.ModelStartBuffersVector, buffers)
    tflite.ModelStart(builder)
    tflite.ModelAddVersion(builder, 3)
    tflite.ModelAddOperatorCodes(builder, code_vector)
    tflite.ModelAddSubgraphs(builder, subgraphs)
    tflite.ModelAddBuffers(builder, buffer_vector)
    builder.Finish(tflite.ModelEnd(builder), b"TFL3")
    return bytes(builder.Output())


def _buffer(tflite: Any, builder: Any, size: int) -> int:
    data = builder.CreateByteVector(bytes(size)) if size else None
    tflite.BufferStart(builder)
    if data is not None:
        tflite.BufferAddData(builder, data)
    return int(tflite.BufferEnd(builder))


def _tensor(tflite: Any, builder: Any, tensor: Tensor, buffer: int) -> int:
    name = builder.CreateString(tensor.name)
    shape = _numbers(builder, tflite.TensorStartShapeVector, tensor.shape)
    signature = _numbers(builder, tflite.TensorStartShapeSignatureVector, tensor.signature)
    tflite.TensorStart(builder)
    tflite.TensorAddName(builder, name)
    tflite.TensorAddShape(builder, shape)
    tflite.TensorAddType(builder, tensor.code)
    tflite.TensorAddBuffer(builder, buffer)
    tflite.TensorAddIsVariable(builder, tensor.is_variable)
    if tensor.signature:
        tflite.TensorAddShapeSignature(builder, signature)
    return int(tflite.TensorEnd(builder))


def _operator(tflite: Any, builder: Any, operator: Operator, code: int) -> int:
    inputs = _numbers(builder, tflite.OperatorStartInputsVector, operator.inputs)
    outputs = _numbers(builder, tflite.OperatorStartOutputsVector, operator.outputs)
    options = None
    if operator.left_transposed is not None:
        tflite.BatchMatMulOptionsStart(builder)
        tflite.BatchMatMulOptionsAddAdjX(builder, operator.left_transposed)
        options = tflite.BatchMatMulOptionsEnd(builder)
    tflite.OperatorStart(builder)
    tflite.OperatorAddOpcodeIndex(builder, code)
    tflite.OperatorAddInputs(builder, inputs)
    tflite.OperatorAddOutputs(builder, outputs)
    if options is not None:
        tflite.OperatorAddBuiltinOptionsType(builder, tflite.BuiltinOptions.BatchMatMulOptions)
        tflite.OperatorAddBuiltinOptions(builder, options)
    return int(tflite.OperatorEnd(builder))


def _code(tflite: Any, builder: Any, kind: int | str) -> int:
    name = builder.CreateString(kind) if isinstance(kind, str) else None
    number = tflite.BuiltinOperator.CUSTOM if isinstance(kind, str) else kind
    tflite.OperatorCodeStart(builder)
    tflite.OperatorCodeAddDeprecatedBuiltinCode(builder, min(number, 127))
    tflite.OperatorCodeAddBuiltinCode(builder, number)
    if name is not None:
        tflite.OperatorCodeAddCustomCode(builder, name)
    return int(tflite.OperatorCodeEnd(builder))
