"""Small changes that make right Python wrong: to solutions, and to what assertions expect."""

import ast
import warnings
from collections.abc import Iterator
from typing import Any

_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
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
"""The kinds of change, those that tell most first: a negated comparison, another operator, `or` for `and`, another
constant, no result."""


def mutants(source: str) -> Iterator[str]:
    """The program with one place in its functions changed, for each place; always in the same order."""
    for place in range(len(_places(parsed(source)))):
        tree = parsed(source)
        yield ast.unparse(ast.fix_missing_locations(_Change(_places(tree)[place]).visit(tree)))


def altered(assertion: str) -> str | None:
    """`assert f(x) == 1` with another value than 1; None for an assertion of another form."""
    tree = parsed(assertion)
    match tree.body:
        case [ast.Assert(test=ast.Compare(left=ast.Call(), ops=[ast.Eq()], comparators=[expected]) as test)]:
            try:
                value = ast.literal_eval(expected)
            except ValueError:
                return None
            test.comparators = [parsed(repr(_another(value))).body[0].value]  # type: ignore[attr-defined]
            return ast.unparse(tree)
    return None


def parsed(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old code has odd escapes in its strings
        return ast.parse(source)


class _Change(ast.NodeTransformer):
    def __init__(self, place: ast.AST) -> None:
        self._place = place

    def visit(self, node: ast.AST) -> Any:
        return _changed(node) if node is self._place else self.generic_visit(node)


def _places(tree: ast.Module) -> list[ast.AST]:
    inside = {
        id(node): node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for statement in function.body
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
            return ast.Constant(_another(value))
        case ast.Return(ast.expr()):
            return ast.Return(ast.Constant(None))
    return None


def _another(value: Any) -> Any:
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
