"""Taking the program out of what a model wrote.

A program stands in a `<code>` block or in a fenced block (``` or ~~~, three or more) of the language. The last
one counts, by where it ends: a model that corrects itself means what it wrote last.

    both kinds             whichever ends last
    a fence in <code>      is taken off: the last fence of the language, or an untagged one the block begins with;
                           a <code> block that begins with a fence of another language does not count
    <code> in a fence      of the language: taken off if it holds the whole program, else part of its text;
                           untagged: a <code> block like any other; of another language: never counts
    an untagged fence      counts only if there is no block of the above; one that comes before such a block was
                           opened does not count even if that block was never closed
    <code> in a sentence   (it neither begins its line nor spans lines) counts only if there is nothing else
    another language       never counts, whether the fence says so or <code language="...">
    an empty block         is passed over, as one of another language is
    an unclosed block      is no answer, and what follows an unclosed fence belongs to it. Half a program may compile
                           and even pass tests; paying for it would teach the model to run into its token limit. An
                           earlier block that was closed still counts

Fences are read as CommonMark reads them, so one that does not begin its line is none, and a closing one stands
alone on its line. It is indented at most three columns more than the opening one: a fence in a docstring is text.
Two things differ, because models forget to close: a fence of the language, or another <code>, begins anew
inside an open block; and a fence may be indented as far as a list takes it. `vector<code>` and `<code>` between
backticks are not tags.

Only the model's answer counts. If it thought aloud, that is what follows the last </think>; while it is still
thinking there is none. It ends where an invented next turn begins: at a chat template's token, wherever it
stands, or at a line that begins with "User:" or "Human:", or [INST], outside of blocks; inside, they are text.

All of this takes time proportional to the length, whatever the model wrote.

Not covered: fences in block quotes, file names for a language (```main.cpp), &lt; for < in <code>, and programs
that contain </code>, which only a fence can hold.
"""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["SPELLINGS", "answer_in", "extract_code"]

_CPP = frozenset(
    {"cpp", "c++", "cc", "cxx"} | {f"{name}{year}" for name in ("cpp", "c++") for year in (11, 14, 17, 20, 23)}
)

SPELLINGS: Mapping[str, frozenset[str]] = {
    "cpp17": _CPP,
    "cpp20": _CPP,
    "python3": frozenset({"python", "py", "python3", "py3"}),
}
"""Each language, and what models write after a fence for it, in lower case."""

_NEXT_TURN = re.compile(
    r"<\|(?:im_start|im_end|user|system|assistant|end|endoftext|end_of_text|eot_id|start_header_id)\|>"
    r"|<\uff5c(?:User|Assistant)\uff5c>|<(?:start|end)_of_turn>"
)
# No repetition can hand characters over to another one, and each begins with its line or stops at a bracket.
_EVENT = re.compile(
    r"""
      ^ (?P<indent> [ \t]*+ (?: (?:[-*+]|[0-9]{1,9}[.)]) [ \t]++ )? )
        (?P<fence> `{3,}+ (?=[^`\n]*$) | ~{3,}+ ) (?P<info> (?: [^<\n] | <(?!/?(?i:code)) )*+ )
    | (?P<mention> `</?(?i:code)[^`<>\n]*>` )
    | (?P<open> (?P<begins_line> ^[ \t]*+ )? (?<!\w) <(?i:code) (?P<attributes> [ \t][^<>\n]* )? > )
    | (?P<close> </(?i:code)[ \t]*> )
    | (?P<turn> ^(?:User|Human): | \[INST\] )
    """,
    re.VERBOSE | re.MULTILINE,
)
# The first word of an info string: cpp, {.cpp}, cpp:main.cpp, cpp{1,3}; but title="x" names no language.
_INFO = re.compile(r"[{.\s]*([^\s{},:;=]+)(=?)")
_ATTRIBUTE = re.compile(r"\blang(?:uage)?(?:[ \t]*=[ \t]*[\"']?|-)([^\s\"'=]+)", re.IGNORECASE)

_Kind = Literal["ours", "untagged", "inline", "other"]


@dataclass(frozen=True, slots=True)
class _Block:
    """What has been opened: a fence, or (without a mark) <code>."""

    kind: _Kind
    start: int
    """Where its text begins."""
    mark: str = ""
    indent: str = ""

    @property
    def width(self) -> int:
        return len(self.indent.expandtabs(4))

    def heeds(self, event: re.Match[str]) -> bool:
        """Whether a fence inside this one is more than text."""
        return event["fence"].startswith(self.mark) and len(event["indent"].expandtabs(4)) <= self.width + 3


def extract_code(text: str, language: str) -> str | None:
    """The program in the text, without what surrounds it; None if there is none."""
    if language not in SPELLINGS:
        raise ValueError(f"no language {language!r}; there is {', '.join(SPELLINGS)}")
    answer = answer_in(text.replace("\r\n", "\n"))
    return None if answer is None else _Scan(answer, SPELLINGS[language]).program()


def answer_in(text: str) -> str | None:
    """What the model wrote for the user in this turn; None if it never stopped thinking."""
    found = _NEXT_TURN.search(text)
    turn = text[: found.start()] if found else text
    said = turn.rpartition("</think>")[2]
    return None if "<think>" in said else said


class _Scan:
    """One pass over the text that finds every closed block."""

    def __init__(self, text: str, names: frozenset[str]) -> None:
        self._text = text
        self._names = names
        self._fence: _Block | None = None
        self._code: _Block | None = None
        self._found: dict[_Kind, list[tuple[_Block, str]]] = {"ours": [], "untagged": [], "inline": [], "other": []}
        events = list(_EVENT.finditer(text))
        self._last_close = max((event.start() for event in events if event["close"]), default=-1)
        for event in events:
            if event["turn"] and not (self._fence or self._code):
                break
            self._on(event)

    def program(self) -> str | None:
        """The last block that holds one."""
        for kind in ("ours", "untagged", "inline"):
            for block, text in reversed(self._found[kind]):
                program = _unfenced(block, text) if block.mark else self._in_code(text)
                if program is not None and program.strip():
                    return _tidy(program)
        return None

    def _on(self, event: re.Match[str]) -> None:
        if event["open"]:
            self._on_open(event)
        elif event["close"] and self._code:
            text = self._text[self._code.start : event.start()]
            kind = "ours" if self._code.kind == "inline" and "\n" in text else self._code.kind
            self._found[kind].append((self._code, text))
            self._code = None
        elif event["fence"] and not self._code:
            self._on_fence(event)

    def _on_fence(self, event: re.Match[str]) -> None:
        kind = self._kind(event["info"])
        if self._fence:
            if not self._fence.heeds(event):
                return
            if not event["info"].strip():
                text = self._text[self._fence.start : event.start()]
                self._found[self._fence.kind].append((self._fence, text))
                self._fence = None
                return
            if kind != "ours":
                return
        if kind == "ours":
            self._found["untagged"].clear()
        self._fence = _Block(kind, event.end(), event["fence"], re.sub(r"\S", " ", event["indent"]))

    def _on_open(self, event: re.Match[str]) -> None:
        if self._fence and self._fence.kind != "untagged":
            return
        named = _ATTRIBUTE.search(event["attributes"] or "")
        kind: _Kind = "inline" if event["begins_line"] is None else "ours"
        if named and self._kind(named[1]) == "other":
            kind = "other"
        if event.start() < self._last_close:
            self._code = _Block(kind, event.end())
        elif kind == "ours":  # the beginning of a program that was cut off; in a sentence it is a mere mention
            self._found["untagged"].clear()

    def _kind(self, info: str) -> _Kind:
        found = _INFO.match(info)
        if not found or found[2]:
            return "untagged"
        return "ours" if found[1].lower() in self._names else "other"

    def _in_code(self, text: str) -> str | None:
        """The text of a <code> block, without a fence around the program in it."""
        found = _Scan(text, self._names)._found
        if found["ours"]:
            return _unfenced(*found["ours"][-1])
        first = _EVENT.search(text)
        if first is None or not first["fence"] or text[: first.start()].strip():
            return text
        if self._kind(first["info"]) == "other":
            return None
        # A fence that was not closed does no harm here: the block was.
        return _unfenced(*found["untagged"][0]) if found["untagged"] else text[first.end() :]


def _unfenced(fence: _Block, text: str) -> str:
    """The text of a fence, moved to the left as far as the fence is indented, without <code> around it."""
    if fence.width:
        text = "\n".join(_moved(line, fence) for line in text.split("\n"))
    inside = text.strip()
    tag = _EVENT.match(inside)
    if tag and tag["open"] and inside.lower().endswith("</code>"):
        return inside[tag.end() : -len("</code>")]
    return text


def _moved(line: str, fence: _Block) -> str:
    if line.startswith(fence.indent):
        return line[len(fence.indent) :]
    blanks = len(line) - len(line.lstrip(" "))
    return line[min(blanks, fence.width) :]


def _tidy(program: str) -> str:
    """Without blank lines around it, and without an indentation that all its lines share."""
    lines = program.rstrip().split("\n")
    first = next(number for number, line in enumerate(lines) if line.strip())
    text = "\n".join(lines[first:])
    return textwrap.dedent(text) if text[0] in " \t" else text
