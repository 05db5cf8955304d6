"""What a problem's statement says about its answers: whether there are several, and whether they may be rounded or
written in any case.

Such a problem needs a checker; comparing outputs with the one that is expected refuses right answers. Phrases are all
that is looked at, English ones, so both kinds of mistake happen: these are suspects, not culprits.
"""

import re
from collections.abc import Iterator, Mapping

__all__ = ["suspicions"]

_GIVE = r"(?:print|output|find|return|report|write|give|provide|submit)"
_MANY = r"(?:multiple|several|many|various|different|more than one)"
_ANSWER = r"(?:answers?|solutions?|outputs?|results?|sequences?|strings?|orders?|arrangements?|variants?)"
_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "several_answers": re.compile(
        rf"""
          \b(?<!not\ )(?<!n't\ ){_GIVE}(?:\ \w+)?\ any\b(?!\ (?:more|other|case|letter|register|number\ of))
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
_SHOWN = 40
"""Characters before and after a phrase that are quoted."""


def suspicions(statement: str) -> Iterator[tuple[str, str]]:
    """`several_answers`, `tolerance` or `any_case`, each with the words it is suspected for."""
    text = " ".join(statement.split())
    for name, pattern in _PATTERNS.items():
        if found := pattern.search(text):
            start, end = max(0, found.start() - _SHOWN), found.end() + _SHOWN
            yield name, f"{'...' if start else ''}{text[start:end].strip()}{'...' if end < len(text) else ''}"
