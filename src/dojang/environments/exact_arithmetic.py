"""Evaluates arithmetic expressions exactly, with integers and fractions.

Nothing is executed: Python's parser builds the syntax tree, and only numbers, + - * / // % ** and parentheses are
accepted. Size and time are bounded.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from fractions import Fraction

__all__ = ["NotArithmetic", "evaluate", "written"]

_MOST_CHARS = 2000
_MOST_BITS = 13_000
"""Largest numerator and denominator: about 3,900 digits, which Python can still print."""
_MOST_EXPONENT = 3900
_DIGITS = 15
_NUMBER = re.compile(r"[0-9][0-9_]*(?:\.[0-9_]*)?(?:e[+-]?([0-9]+))?|\.[0-9_]+(?:e[+-]?([0-9]+))?", re.IGNORECASE)
_OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_HINTS = {
    ast.BitXor: "; powers are written **",
    ast.Tuple: "; write numbers without commas",
    ast.Call: "; functions are not supported",
    ast.Name: "; variables are not supported",
}


class NotArithmetic(Exception):
    """The text is no expression that can be evaluated; the message says why."""


def evaluate(expression: str) -> Fraction:
    """Returns the exact value of an expression. Raises NotArithmetic."""
    text = expression.strip()
    if not text or len(text) > _MOST_CHARS:
        raise NotArithmetic(f"an expression has 1 to {_MOST_CHARS} characters, not {len(text)}")
    try:
        tree = ast.parse(text, mode="eval")
        return _value(tree.body, text)
    except SyntaxError as error:
        raise NotArithmetic(f"this is not an expression: {error.msg}") from None
    except (RecursionError, MemoryError, ValueError) as error:  # nested too deeply, a null byte, too many digits
        raise NotArithmetic(f"this expression is too complicated: {type(error).__name__}") from None
    except ZeroDivisionError:
        raise NotArithmetic("division by zero") from None


def _value(node: ast.expr, text: str) -> Fraction:
    if isinstance(node, ast.Constant):
        return _number(node, text)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        operand = _value(node.operand, text)
        return operand if isinstance(node.op, ast.UAdd) else -operand
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, text), _value(node.right, text)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if (operation := _OPERATORS.get(type(node.op))) is not None:
            return _bounded(Fraction(operation(left, right)))
        node_type: type[ast.AST] = type(node.op)
    else:
        node_type = type(node)
    hint = _HINTS.get(node_type, "")
    raise NotArithmetic(f"only numbers, + - * / // % ** and parentheses are allowed{hint}")


def _number(node: ast.Constant, text: str) -> Fraction:
    """Value of a number as it is written: 0.1 is a tenth."""
    written_as = ast.get_source_segment(text, node) or ""
    match = _NUMBER.fullmatch(written_as)
    if match is None or isinstance(node.value, bool | complex | str | bytes):
        raise NotArithmetic(f"{written_as[:40]!r} is not a decimal number")
    if int(match[1] or match[2] or 0) > _MOST_EXPONENT:
        raise NotArithmetic(f"{written_as[:40]} is too large or too small")
    return _bounded(Fraction(written_as.replace("_", "")))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise NotArithmetic("powers need a whole number as exponent, since roots are not exact")
    times = abs(exponent.numerator)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1 and bits * times > 2 * _MOST_BITS:  # before it is computed: the result may be a bit shorter
        raise NotArithmetic(f"the result of {base} ** {exponent.numerator} is too large"[:200])
    return _bounded(base ** (exponent.numerator if bits > 1 else _reduced(exponent.numerator)))


def _reduced(exponent: int) -> int:
    """Exponent with the same power of 0, 1 and -1: the sign, and whether it is even."""
    return int(math.copysign(2 - exponent % 2, exponent)) if exponent else 0


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MOST_BITS:
        raise NotArithmetic("the result has too many digits")
    return value


def written(value: Fraction) -> str:
    """A value as text: whole numbers and short decimals exactly, other fractions with a rounded decimal."""
    if value.denominator == 1:
        return str(value.numerator)
    decimal = Context(prec=_DIGITS).divide(Decimal(value.numerator), Decimal(value.denominator))
    plain = f"{decimal:f}" if -_DIGITS <= decimal.adjusted() <= _DIGITS else str(decimal)
    return plain if Fraction(decimal) == value else f"{value} (about {plain})"
