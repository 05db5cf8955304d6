"""Detects statements that allow several answers, rounded answers, or any letter case.

Such a problem needs a checker; comparison with the expected output rejects correct answers. Detection is by English
phrases, so it has false positives and false negatives.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

__all__ = ["suspicions"]

_GIVE = r"(?:print|output|find|return|report|write|give|provide|submit)"
_JUST = r"(?:\ (?:out|just|only|exactly))?"
_MANY = r"(?:multiple|several|many|various|different|more than one)"
_ANSWER = r"(?:answers?|solutions?|outputs?|results?|sequences?|strings?|orders?|arrangements?|variants?)"
_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "several_answers": re.compile(
        rf"""
          \b{_GIVE}(?:\ \w+)?\ (?:any|an\ arbitrary|arbitrary)\b
            (?!\ (?:more|other|case|letter|register|number\ of|order|extra|additional|leading|trailing|spaces?)\b)
        | \b{_GIVE}{_JUST}\ (?:whichever|(?:one|either)\ of\ (?:them|these|those)|either\ one)\b
        | \b{_GIVE}{_JUST}\ one\ of\ the\ (?:\w+\ )?{_ANSWER}\b
        | \b{_GIVE}\b(?:[^.]|i\.e\.){{0,160}}(?:\bi\.e\.,?\ any\b
            |(?:[\u2014\u2013:(]\ ?|\b(?:and|or)\ )any\ (?!number\b)(?:\w+\ ){{1,4}}(?:which|that|such|satisfying|of)\b)
        | \b(?:if|in\ case)\b[^.]{{0,40}}\b{_MANY}\b[^.]{{0,80}}\b{_GIVE}{_JUST}\ one(?=\ ?[.,;)]|$)
        | \bwhichever\ (?:one\ )?you\b
        | \bany\ (?:one\ )?(?:of\ (?:them|these|those|the)\ )?
            (?:\w+\ ){{0,2}}{_ANSWER}(?:\ \w+){{0,3}}\ (?:accepted|allowed|acceptable|correct|valid|fine)\b
        | \bany\ (?:valid|correct|suitable|possible|appropriate|acceptable|optimal|such)\ {_ANSWER}\b
        | (?<!n't\ )(?<!no\ )(?<!not\ )\b{_MANY}\ (?:\w+\ ){{0,3}}{_ANSWER}[^.]{{0,60}}\b(?:any|arbitrary|either)\b
        | \b{_ANSWER}\ (?:is|are|may\ be|might\ be)\ (?:not|n't)\ (?:\w+\ )?unique\b
        | \b{_ANSWER}\ isn't\ unique\b
        | \bany\ such\ \w+\ if\ (?:there\ are\ )?{_MANY}\b
        | \b(?:printed|outputted)\ in\ (?:any|arbitrary)\ order\b
        | \b(?:print|output|write)\b[^.]{{0,120}}\bin\ (?:any|arbitrary)\ order\b
        """,
        re.IGNORECASE | re.VERBOSE,
    ),
    "tolerance": re.compile(
        r"(?:absolute|relative) (?:or (?:absolute|relative) )?error"
        r"|error (?:of|should not exceed|does not exceed|not exceeding|less than|at most) "
        r"|(?:precision|accuracy) of (?:at least )?\d",
        re.IGNORECASE,
    ),
    "any_case": re.compile(
        r"\bin (?:any|either|arbitrary) (?:\(?upper or lower\)? )?(?:case|register)\b|\bcase[- ]insensitive\b"
        r"|\bany letter in (?:lower|upper)|\bchoose the case\b",
        re.IGNORECASE,
    ),
}
_NEGATED = re.compile(
    r"""
      (?:\b(?:not|never|cannot)|n't)(?:\ (?:have|need|want|able|possible|necessary|required|allowed))?(?:\ to)?\ $
    | \b(?:impossible|unable|failed|fails|no\ need|no\ way)(?:\ for\ \w+)?\ to\ $
    | \b(?:whether|if)\ it\ is\ possible\ to\ $
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Negations before a phrase: "you do not need to print any spaces", "impossible to find any pair"."""
_BEFORE = 40
"""Number of characters before a phrase to search for negations."""
_SHOWN = 40
"""Number of characters to quote before and after a phrase."""


@lru_cache(256)
def suspicions(statement: str) -> tuple[tuple[str, str], ...]:
    """Returns `several_answers`, `tolerance` or `any_case`, each with the matching phrase."""
    return tuple(_search(statement))


def _search(statement: str) -> Iterator[tuple[str, str]]:
    text = " ".join(statement.split())
    for name, pattern in _PATTERNS.items():
        for found in pattern.finditer(text):
            if _NEGATED.search(text[max(0, found.start() - _BEFORE) : found.start()]):
                continue
            start, end = max(0, found.start() - _SHOWN), found.end() + _SHOWN
            yield name, f"{'...' if start else ''}{text[start:end].strip()}{'...' if end < len(text) else ''}"
            break
