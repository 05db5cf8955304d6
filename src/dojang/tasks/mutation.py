"""Mutates correct programs, usually into wrong ones. A mutant that passes all tests means that the tests are weak, or
that the mutation is equivalent.

Python is mutated in its syntax tree: in functions, or everywhere without functions. C++ is mutated in its tokens: some
operators and numbers, outside of strings, comments, brackets and preprocessor lines. Some mutants do not compile.
"""

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["different_value", "mutants", "parsed"]

_OPPOSITES = ((ast.Eq, ast.NotEq), (ast.Lt, ast.GtE), (ast.Gt, ast.LtE), (ast.In, ast.NotIn), (ast.Is, ast.IsNot))
_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    one: other for pair in _OPPOSITES for one, other in (pair, pair[::-1])
}
_SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
_ORDER = (ast.Compare, ast.BinOp, ast.BoolOp, ast.Constant, ast.Return)
"""Kinds of mutation, most informative first: negated comparison, other operator, `or` for `and`, other constant, no
result."""

_CPP: tuple[Mapping[str, str], ...] = (
    {"==": "!=", "!=": "==", "<=": ">", ">=": "<", " < ": " >= ", " > ": " <= "},
    {"+=": "-=", "-=": "+=", " + ": " - ", " - ": " + ", " * ": " + ", "%": "/"},
    {"&&": "||", "||": "&&"},
)
"""Kinds of mutation for C++; numbers come last."""
_SKIPPED = r"""^[ \t]*\#[^\n]*|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\[[^\[\]\n]*\]|<[\w:, *]*>"""
_WORD = re.compile(
    rf"(?P<skipped>{_SKIPPED})|(?P<number>(?<![\w.])[0-9]{{1,18}}(?![\w.]))"
    rf"|{'|'.join(re.escape(each) for kind in _CPP for each in kind)}",
    re.DOTALL | re.MULTILINE,
)


def mutants(source: str, language: str = "python3") -> Iterator[str]:
    """Yields the program with one place mutated, for each place, in a fixed order. Yields none for invalid Python."""
    if language != "python3":
        yield from _cpp_mutants(source)
        return
    try:
        places = len(_places(parsed(source)))
    except (SyntaxError, ValueError, RecursionError):
        return
    for place in range(places):
        tree = parsed(source)
        yield ast.unparse(ast.fix_missing_locations(_Change(_places(tree)[place]).visit(tree)))


def parsed(source: str) -> ast.Module:
    """Parses Python without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old code has invalid escapes in strings
        return ast.parse(source)


def different_value(value: Any) -> Any:
    """Returns a different value of the same type."""
    match value:
        case bool():
            return not value
        case int() | float() | complex():
            return value + 1
        case str():
            return value + "?"
        case list():
            return [*value, 0]
        case tuple():
            return (*value, 0)
        case dict():
            return {**value, "?": 0}
        case set():
            return value | {"?"}
    return "?"


class _Change(ast.NodeTransformer):
    def __init__(self, place: ast.AST) -> None:
        self._place = place

    def visit(self, node: ast.AST) -> Any:
        return _changed(node) if node is self._place else self.generic_visit(node)


def _places(tree: ast.Module) -> list[ast.AST]:
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] or [tree.body]
    inside = {
        id(node): node
        for body in bodies
        for statement in body
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))  # a docstring
        for node in ast.walk(statement)
    }
    places = [node for node in inside.values() if _changed(node) is not None]
    return sorted(places, key=lambda node: (_kind(node), node.lineno, node.col_offset))  # type: ignore[attr-defined]


def _kind(node: ast.AST) -> int:
    return next(index for index, kind in enumerate(_ORDER) if isinstance(node, kind))


def _changed(node: ast.AST) -> ast.AST | None:
    match node:
        case ast.Compare(left, [first, *ops], comparators):
            return ast.Compare(left, [_NEGATED[type(first)](), *ops], comparators)
        case ast.BinOp(left, op, right) if type(op) in _SWAPPED:
            return ast.BinOp(left, _SWAPPED[type(op)](), right)
        case ast.BoolOp(op, values):
            return ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.Constant(bool() | int() | float() | str() as value):
            return ast.Constant(different_value(value))
        case ast.Return(ast.expr()):
            return ast.Return(ast.Constant(None))
    return None


def _cpp_mutants(source: str) -> Iterator[str]:
    found = [each for each in _WORD.finditer(source) if not each["skipped"]]
    for kind in _CPP:
        for each in found:
            if each[0] in kind:
                yield f"{source[: each.start()]}{kind[each[0]]}{source[each.end() :]}"
    for each in found:
        if each["number"]:
            yield f"{source[: each.start()]}{int(each[0]) + 1}{source[each.end() :]}"
