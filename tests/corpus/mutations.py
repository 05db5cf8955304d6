"""Mutates assertions so that they expect another value."""

import ast

from dojang.tasks.mutation import different_value, parsed


def altered(assertion: str) -> str | None:
    """`assert f(x) == 1` with another value than 1; None for other forms of assertions."""
    tree = parsed(assertion)
    match tree.body:
        case [ast.Assert(test=ast.Compare(left=ast.Call(), ops=[ast.Eq()], comparators=[expected]) as test)]:
            try:
                value = ast.literal_eval(expected)
            except ValueError:
                return None
            test.comparators = [parsed(repr(different_value(value))).body[0].value]  # type: ignore[attr-defined]
            return ast.unparse(tree)
    return None
