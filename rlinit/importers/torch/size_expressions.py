"""Size expressions of saved programs, checked before `sympy` evaluates them.

`sympy.sympify` runs Python, computes powers and multiplies sums out. So nothing passes but calls of its arithmetic on
numbers and symbols, and only where the result is small: its longest number and its terms, multiplied out, are counted
from the leaves up, before anything is computed.
"""

from __future__ import annotations

import ast
import math
import re
import sys
import warnings
from dataclasses import dataclass

from rlinit.limits import MAX_NESTING, MAX_TERMS, MAX_TEXT

_SYMBOL_BITS = 64
"""Of a dimension; a number as text may have as many characters, of which decimals need a third."""
_FUNCTIONS = frozenset(
    {"Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Max", "Min", "And", "Or", "Not", "floor"}
    | {"ceiling", "Eq", "Ne", "Ge", "Gt", "Le", "Lt", "Equality", "Unequality", "GreaterThan", "LessThan"}
    | {"StrictGreaterThan", "StrictLessThan", "FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv"}
    | {"CeilToInt", "FloorToInt", "CeilDiv", "LShift", "RShift", "PowByNatural", "FloatPow", "FloatTrueDiv"}
    | {"IntTrueDiv", "TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal", "ToFloat", "Identity"}
    | {"IsNonOverlappingAndDenseIndicator"}
)
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow"})
_PRODUCTS = (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_SUMS = (ast.Add, ast.Sub)
_SYMBOL = re.compile(r"(s|u|zf|zuf|i)\d+")


@dataclass(frozen=True, slots=True)
class _Size:
    """How large an expression is: bits of its longest number, and terms when it is multiplied out.

    `value` is the number it is, None where it is none.
    """

    bits: float
    terms: float
    value: float | None = None


def is_size_expression(text: object) -> bool:
    """Return whether a text is arithmetic on numbers and symbols of a small result; nothing of it is evaluated."""
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntaxWarning)  # what Python only warns of, torch does not write
            _size(ast.parse(text, mode="eval").body, 0)
    except (ValueError, SyntaxError, RecursionError, MemoryError, OverflowError):
        return False
    return True


def _size(node: ast.expr, depth: int) -> _Size:
    """Return the size of a node's result; ValueError where it is not arithmetic, or too large."""
    if depth > MAX_NESTING:
        raise ValueError
    if isinstance(node, ast.Constant):
        return _number(node.value)
    if isinstance(node, ast.UnaryOp):
        inner = _size(node.operand, depth + 1)
        return _Size(inner.bits, inner.terms, None if inner.value is None else -inner.value)
    if isinstance(node, ast.Compare):
        return _sum([_size(entry, depth + 1) for entry in (node.left, *node.comparators)])
    if isinstance(node, ast.BinOp):
        operands = [_size(entry, depth + 1) for entry in (node.left, node.right)]
        if isinstance(node.op, _SUMS):
            return _sum(operands)
        if isinstance(node.op, _PRODUCTS):
            return _product(operands)
        raise ValueError
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _call(node.func.id, node, depth)
    raise ValueError


def _call(name: str, node: ast.Call, depth: int) -> _Size:
    for keyword in node.keywords:
        value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
        if not (isinstance(value, bool) or (keyword.arg == "precision" and value == sys.float_info.mant_dig)):
            raise ValueError
    if name == "Symbol":
        if len(node.args) != 1 or not isinstance(node.args[0], ast.Constant):
            raise ValueError
        if not isinstance(node.args[0].value, str) or not _SYMBOL.fullmatch(node.args[0].value):
            raise ValueError
        return _Size(_SYMBOL_BITS, 1)
    if name == "Float":
        return _float(node.args)
    arguments = [_size(entry, depth + 1) for entry in node.args]
    if name in _POWERS or name in ("LShift", "RShift"):
        return _power(name, arguments)
    if name == "Integer" and len(arguments) == 1:
        return arguments[0]
    return _product(arguments) if name in ("Mul", "Rational") else _sum(arguments)


def _float(arguments: list[ast.expr]) -> _Size:
    """Return the size of a floating-point number, which is written as text."""
    written = arguments[0].value if len(arguments) == 1 and isinstance(arguments[0], ast.Constant) else None
    if not isinstance(written, (str, float)) or len(str(written)) > _SYMBOL_BITS:
        raise ValueError
    return _number(float(written))


def _number(value: object) -> _Size:
    if not isinstance(value, (bool, int, float)) or not abs(value) < 1e30:
        raise ValueError
    return _Size(math.log2(abs(value) + 1) + 1, 1, float(value))


def _sum(parts: list[_Size]) -> _Size:
    return _limited(max((part.bits for part in parts), default=1) + len(parts), sum(part.terms for part in parts))


def _product(parts: list[_Size]) -> _Size:
    return _limited(sum(part.bits for part in parts), math.prod(part.terms for part in parts))


def _power(name: str, arguments: list[_Size]) -> _Size:
    """Return the size of a power or a shift, whose exponent has to be a number."""
    if len(arguments) != 2:
        raise ValueError
    base, exponent = arguments
    if exponent.value is None:
        if name in _POWERS and exponent.bits < 8 and exponent.terms == 1:  # a fraction, a root
            return _limited(base.bits, base.terms)
        raise ValueError
    size = abs(exponent.value)
    if size > MAX_TERMS:
        raise ValueError
    if name not in _POWERS:
        return _limited(base.bits + size, base.terms)
    return _limited(base.bits * max(1.0, size), base.terms ** max(1.0, size))


def _limited(bits: float, terms: float) -> _Size:
    if bits > MAX_TERMS or terms > MAX_TERMS:
        raise ValueError
    return _Size(bits, max(terms, 1))
