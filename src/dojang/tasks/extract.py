"""Extracts the program from a completion.

A program is in a `<code>` block or in a fenced block (``` or ~~~, three or more) of the language. The block that ends
last counts: a model that corrects itself means the later one.

    both kinds             the one that ends last
    a fence in <code>      is removed: the last fence of the language, or an untagged one at the start of the block;
                           a <code> block that starts with a fence of another language does not count
    <code> in a fence      of the language: removed if it holds the whole program, else part of the program;
                           untagged: a <code> block like any other; of another language: never counts
    an untagged fence      counts only without any block of the above; an untagged fence before such a block does not
                           count even if that block is never closed
    <code> in a sentence   (not at the start of its line, and on one line) counts only without any other block
    another language       never counts, whether the fence names it or <code language="...">
    an empty block         is skipped, like a block of another language
    an unclosed block      is no answer, and the text after an unclosed fence belongs to it. Half a program may compile
                           and even pass tests; a reward would teach the model to run into its token limit. An
                           earlier closed block still counts

Fences follow CommonMark: a fence starts its line, and a closing fence is alone on its line and indented at most three
columns more than the opening one (a fence in a docstring is text). Two rules differ, because models forget to close:
a fence of the language, or another <code>, starts a new block inside an open block; and a fence may be indented as
deep as its list. `vector<code>` and `<code>` between backticks are not tags.

Only the final answer counts: the text after the last </think>; none if the model is still thinking. It ends where an
invented next turn starts: at a chat template's token anywhere, or, outside of blocks, at a line that begins with
"User:" or "Human:", or at [INST].

If <think> is never closed, fences are drafts. A <code> block is the answer only for a prompt that asks for both tags
(CodeFu's, whose published reward does not look at <think>): untrained models forget </think>. It must be closed, and no
later block of the language may begin.

Extraction takes linear time on any text.

Not covered: fences in block quotes, file names for a language (```main.cpp), &lt; for < in <code>, and programs
that contain </code>, which only a fence can hold.
"""

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["NEXT_TURNS", "SPELLINGS", "BlockScan", "extract_code", "final_answer", "final_answer_span", "final_fence"]

_CPP = frozenset(
    {"cpp", "c++", "cc", "cxx"} | {f"{name}{year}" for name in ("cpp", "c++") for year in (11, 14, 17, 20, 23)}
)

SPELLINGS: Mapping[str, frozenset[str]] = {
    "cpp17": _CPP,
    "cpp20": _CPP,
    "python3": frozenset({"python", "py", "python3", "py3"}),
}
"""Language -> names that models write after a fence, in lower case."""

_ROLES = ("im_start", "im_end", "user", "system", "assistant", "end", "endoftext", "end_of_text", "eot_id")
_TEMPLATE_TOKENS = (
    *(f"<|{name}|>" for name in (*_ROLES, "start_header_id")),
    *("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<start_of_turn>", "<end_of_turn>"),
)
_NEXT_TURN = re.compile("|".join(map(re.escape, _TEMPLATE_TOKENS)))
NEXT_TURNS = ("User:", "Human:", "[INST]", *_TEMPLATE_TOKENS)
"""Strings that an invented next turn starts with."""
# No two repetitions can match the same characters, and each starts at its line or stops at a bracket: linear time.
# An atomic group, (?>(...)*), since Python before 3.11.5 matches a possessive one, (...)*+, wrongly.
_EVENT = re.compile(
    r"""
      ^ (?P<indent> [ \t]*+ (?: (?:[-*+]|[0-9]{1,9}[.)]) [ \t]++ )? )
        (?P<fence> `{3,}+ (?=[^`\n]*$) | ~{3,}+ ) (?P<info> (?> (?: [^<\n] | <(?!/?(?i:code)) )* ) )
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
    """An open block: a fence, or (without a mark) <code>."""

    kind: _Kind
    start: int
    """Position at which its text begins."""
    mark: str = ""
    indent: str = ""

    @property
    def width(self) -> int:
        return len(self.indent.expandtabs(4))

    def heeds(self, event: re.Match[str]) -> bool:
        """Returns whether a fence inside this one is a fence, not text."""
        return event["fence"].startswith(self.mark) and len(event["indent"].expandtabs(4)) <= self.width + 3


def extract_code(text: str, language: str, *, asks_for_tags: bool = False) -> str | None:
    """Returns the program in the text; None without one. `asks_for_tags`: the prompt asks for <think> and <code>."""
    if language not in SPELLINGS:
        raise ValueError(f"unknown language {language!r}; known: {', '.join(SPELLINGS)}")
    text, names = text.replace("\r\n", "\n"), SPELLINGS[language]
    if (answer := final_answer(text)) is not None:
        return BlockScan(answer, names).program()
    return BlockScan(_turn(text).rpartition("<think>")[2], names).tagged_program() if asks_for_tags else None


def final_fence(text: str, language: str) -> str | None:
    """Returns the program of the fenced block of the language with which the text ends; None if it ends otherwise."""
    answer = final_answer(text.replace("\r\n", "\n"))
    return None if answer is None else BlockScan(answer, SPELLINGS[language]).final_fence()


def final_answer(text: str) -> str | None:
    """Returns the text of this turn after the thinking; None if the model never stopped thinking."""
    span = final_answer_span(text)
    return None if span is None else text[slice(*span)]


def final_answer_span(text: str) -> tuple[int, int] | None:
    """Returns where the final answer starts and ends in the text."""
    turn = _turn(text)
    said = turn.rpartition("</think>")[2]
    return None if "<think>" in said else (len(turn) - len(said), len(turn))


def _turn(text: str) -> str:
    """Returns the text before a token of a chat template."""
    found = _NEXT_TURN.search(text)
    return text[: found.start()] if found else text


class BlockScan:
    """Finds every closed block in one pass over the text."""

    def __init__(self, text: str, names: frozenset[str]) -> None:
        self._text = text
        self._names = names
        self._fence: _Block | None = None
        self._code: _Block | None = None
        self._found: dict[_Kind, list[tuple[_Block, str]]] = {"ours": [], "untagged": [], "inline": [], "other": []}
        self.turn: int | None = None
        """Position at which an invented next turn starts."""
        self.unclosed_code = False
        """Whether a <code> was never closed: more text may close it."""
        events = list(_EVENT.finditer(text))
        self._last_close = max((event.start() for event in events if event["close"]), default=-1)
        for event in events:
            if event["turn"] and not (self._fence or self._code):
                self.turn = event.start()
                break
            self._on(event)

    @property
    def in_fence(self) -> bool:
        """Whether the text ends inside a fenced block of the language."""
        return self._fence is not None and self._fence.kind == "ours"

    def program(self) -> str | None:
        """Returns the program of the last block that holds one."""
        found = self._last()
        return _tidy(found[1]) if found else None

    def tagged_program(self) -> str | None:
        """Returns the program of the last block of the language, if that is <code> and no block is open after it."""
        block, text = self._found["ours"][-1] if self._found["ours"] else (None, "")
        if block is None or block.mark or self._fence or self.unclosed_code:
            return None
        program = self._in_code(text)
        return _tidy(program) if program is not None and program.strip() else None

    def program_end(self) -> int | None:
        """Returns the position at which the last block that holds a program is closed."""
        found = self._last()
        return found[0] if found else None

    def first_end(self, *, fenced: bool = False) -> int | None:
        """Returns the position at which the first block of the language with a program is closed; `fenced`: the first
        that is no <code> block."""
        return min((end for end, _ in self._programs("ours", fenced=fenced)), default=None)

    def final_fence(self) -> str | None:
        """Returns the program of the fenced block of the language that ends the text; None if other text follows it."""
        end, program = next(self._programs("ours", fenced=True), (0, ""))
        return _tidy(program) if program and not self._text[end:].partition("\n")[2].strip() else None

    def _last(self) -> tuple[int, str] | None:
        kinds: tuple[_Kind, ...] = ("ours", "untagged", "inline")
        return next((found for kind in kinds for found in self._programs(kind)), None)

    def _programs(self, kind: _Kind, *, fenced: bool = False) -> Iterator[tuple[int, str]]:
        """Yields the end and the program of blocks that hold one, the last first; `fenced`: without <code> blocks."""
        for block, text in reversed(self._found[kind]):
            if fenced and not block.mark:
                continue
            program = _unfenced(block, text) if block.mark else self._in_code(text)
            if program is not None and program.strip():
                yield block.start + len(text), program

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
            return
        self.unclosed_code = True
        if kind == "ours":  # start of a truncated program; in a sentence it is a mention
            self._found["untagged"].clear()

    def _kind(self, info: str) -> _Kind:
        found = _INFO.match(info)
        if not found or found[2]:
            return "untagged"
        return "ours" if found[1].lower() in self._names else "other"

    def _in_code(self, text: str) -> str | None:
        """Returns the text of a <code> block, without a fence around its program."""
        found = BlockScan(text, self._names)._found
        if found["ours"]:
            return _unfenced(*found["ours"][-1])
        first = _EVENT.search(text)
        if first is None or not first["fence"] or text[: first.start()].strip():
            return text
        if self._kind(first["info"]) == "other":
            return None
        # An unclosed fence is fine here: the <code> block is closed.
        return _unfenced(*found["untagged"][0]) if found["untagged"] else text[first.end() :]


def _unfenced(fence: _Block, text: str) -> str:
    """Returns the text of a fence, dedented by the fence's indentation, without <code> around it."""
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
    """Removes blank lines around the program, and the common indentation."""
    lines = program.rstrip().split("\n")
    first = next(number for number, line in enumerate(lines) if line.strip())
    text = "\n".join(lines[first:])
    return textwrap.dedent(text) if text[0] in " \t" else text
