"""Assertions that expect something else than they did."""

import ast

from dojang.tasks.mutation import another, parsed


def altered(assertion: str) -> str | None:
    """`assert f(x) == 1` with another value than 1; None for an assertion of another form."""
    tree = parsed(assertion)
    match tree.body:
        case [ast.Assert(test=ast.Compare(left=ast.Call(), ops=[ast.Eq()], comparators=[expected]) as test)]:
            try:
                value = ast.literal_eval(expected)
            except ValueError:
                return None
            test.comparators = [parsed(repr(another(value))).body[0].value]  # type: ignore[attr-defined]
            return ast.unparse(tree)
    return None
