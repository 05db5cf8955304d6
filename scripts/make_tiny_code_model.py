"""Makes dojang-tiny-code: `python scripts/make_tiny_code_model.py OUT_DIR [--steps N] [--seed S]`.

The same small Llama as dojang-tiny (make_tiny_model.py), trained from scratch on `tiny_code_corpus.py`, then evaluated
on held-out problems. Programs are not run here: one is correct if it equals a careful beginner's.
"""

from tokenizers import Regex, pre_tokenizers

from dojang.data.tiny_programs import Formula, TinyProgramsConfig, question
from dojang.types import Problem
from make_tiny_model import run
from tiny_code_corpus import draw, program

__all__ = ["LETTERS", "grade"]

STEPS = 400
LETTERS = (pre_tokenizers.Split(Regex(r"\b[a-z]\b"), "isolated"),)
"""Names of numbers are single tokens, so that they can be copied."""


def grade(problem: Problem, text: str) -> tuple[bool, bool]:
    """Compares a program with a careful beginner's; the skill is to convert the input to numbers."""
    names, formula = problem.id.split("/")[1:]
    parts = formula.replace("+", " + ").replace("-", " - ").replace("*", " * ").split()
    wanted = Formula(names, tuple(parts))
    assert question(wanted) == problem.messages[0].content
    return text == program(wanted), "int(input" in text


if __name__ == "__main__":
    run("dojang-tiny-code", STEPS, TinyProgramsConfig().load("test"), draw, LETTERS, grade)
