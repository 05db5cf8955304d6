"""Calculator: a tool for exact arithmetic; the answer is graded by the task."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from dojang.environments.base import Environment
from dojang.environments.exact_arithmetic import NotArithmetic, evaluate, written
from dojang.environments.section import EnvironmentSection
from dojang.environments.tools import ToolEnvironment

__all__ = ["Calculator", "CalculatorConfig"]


class CalculatorConfig(EnvironmentSection):
    """Calculator: a tool for exact arithmetic with whole numbers and fractions."""

    name: Literal["calculator"] = "calculator"

    def environment(self) -> Environment:
        return Calculator()


class Calculator(ToolEnvironment):
    """Offers `calculate`."""

    def tools(self) -> Sequence[Callable[..., Any]]:
        return [self.calculate]

    def calculate(self, expression: str) -> str:
        """
        Evaluates an arithmetic expression exactly.

        Args:
            expression: Numbers, + - * / // % ** and parentheses, such as (17 + 4) * 3 / 7.
        """
        try:
            return written(evaluate(expression))
        except NotArithmetic as error:
            return f"error: {error}"
