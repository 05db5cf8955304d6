"""Precompiled headers: which there are, and which of them a program can be given without its noticing.

Most of what judging a C++ program costs is compiling it, and most of that are the standard headers. A program that
includes <bits/stdc++.h> is given one of two versions of it, which are compiled once per machine: all of it, or one
without what is rarely used and costs the most. Which one is decided by the words of the program: if it has no name that
only the whole version declares, it cannot tell the difference. Members of a class mean nothing to who cannot name the
class. A program that does not compile with the short version is tried again with the whole.

Programs that include headers one by one are given exactly these. A set of headers is precompiled when it is met for the
second time; there are not many, for writers of programs have habits.
"""

import fcntl
import hashlib
import json
import re
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from dojang.core.errors import ConfigError

__all__ = ["FLAGS", "LEFT_OUT", "Headers", "run"]

FLAGS = ("-O2", "-pthread", "-DONLINE_JUDGE", "-w", "-fmax-errors=3")
"""Headers serve only compilations with the same flags."""
EVERYTHING = "bits/stdc++.h"
LEFT_OUT = """
    barrier charconv codecvt condition_variable coroutine execution filesystem format future latch memory_resource
    mutex regex scoped_allocator semaphore shared_mutex stop_token syncstream thread valarray
"""
_ONE_BY_ONE = """
    algorithm any array bitset cassert cctype cerrno cfloat chrono cinttypes climits cmath complex cstdarg cstddef
    cstdint cstdio cstdlib cstring ctime deque exception forward_list fstream functional initializer_list iomanip ios
    iostream istream iterator limits list map memory new numeric optional ostream queue random set sstream stack
    stdexcept string string_view tuple type_traits typeinfo unordered_map unordered_set utility variant vector
"""
_SET = "set.h"
_SETS = 24
"""How many sets are kept for a standard; each takes some tens of megabytes."""
_met: Counter[tuple[str, str]] = Counter()
"""How often a set that is not precompiled was asked for, by the folder and its place there."""
_WITHOUT_BESSEL = "#include <bits/c++config.h>\n#undef _GLIBCXX_USE_STD_SPEC_FUNCS\n"
"""The special functions of C++17 take a quarter of the time of compiling a program that does nothing."""
_KEYWORDS = """
    alignas alignof and asm auto bool break case catch char char16_t char32_t char8_t class concept const const_cast
    consteval constexpr constinit continue decltype default delete do double dynamic_cast else enum explicit export
    extern false float for friend goto if inline int long mutable namespace new noexcept not nullptr operator or private
    protected public register reinterpret_cast requires return short signed sizeof static static_assert static_cast std
    struct switch template this throw true try typedef typeid typename union unsigned using virtual void volatile
    wchar_t while
"""
"""Words that mean the same with any header."""
_BLANK = r"(?:\s++|//[^\n]*+\n|/\*(?:[^*]++|\*(?!/))*+\*/)*+"
_INCLUDE = re.compile(_BLANK + r'#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"][ \t]*(?=\n|//|/\*|\r\n|\Z)')
_LINE_GOES_ON = re.compile(r"\\[ \t]*\r?\n")
_ANOTHER = re.compile(r"#[ \t]*include")
_WORD = re.compile(r"\b[A-Za-z_]\w*")
_TOKEN = re.compile(r"[A-Za-z_]\w*|::|[{};:]")
_LITERAL = re.compile(r"""(?:\b(?:u8|[uUL]))?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+')""")
_BUILD_S = 600


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of one compiler, in a folder that outlives us."""

    compiler: str
    folder: str

    def ways(self, source: str, standard: str, place: str) -> tuple[list[list[str]], list[str]]:
        """The flags with which to try to compile this program, in turn; `place` is where the folder appears.

        And the words of the program that none of its headers knows: an error about one of these is final.
        """
        source = _LINE_GOES_ON.sub("", source)
        names = _included(source)
        if not names or "%:" in source:  # another way to write #
            return [[]], []
        if names[0] == EVERYTHING:
            self._prepare(standard)
            words = set(_WORD.findall(source)).difference(_KEYWORDS.split())
            ways = [[f"-I{place}/{standard}/whole"]]
            if "##" not in source and _are_alike(self._names(standard, "whole"), self._names(standard, "short"), words):
                ways.insert(0, [f"-I{place}/{standard}/short"])
            return ways, sorted(words - self._names(standard, "words")[""])
        header = self._set(standard, names)
        return [["-include", f"{place}/{header}"]] if header else [[]], []

    def _names(self, standard: str, name: str) -> "Names":
        """What a version declares, by namespace; or all the words there are in the whole one."""
        return _read_names(f"{self.folder}/{standard}/names/{name}")

    def _set(self, standard: str, names: Sequence[str]) -> str:
        """Where below the folder exactly these headers are, precompiled; empty if they are not."""
        if not set(names) <= set(_ONE_BY_ONE.split()):
            return ""
        chosen = " ".join(sorted(set(names)))
        place = f"{standard}-sets/{hashlib.sha256(chosen.encode()).hexdigest()[:16]}"
        folder = Path(self.folder, place)
        if not folder.is_dir():
            _met[self.folder, place] += 1
            if _met[self.folder, place] < 2 or len(list(folder.parent.glob("*"))) > _SETS:
                return ""
            try:
                self._make(folder, lambda making: self._precompile_set(making, standard, chosen))
            except (OSError, ConfigError):  # a cache that is only to be read; a header that this standard does not know
                return ""
        return f"{place}/{_SET}"

    def _prepare(self, standard: str) -> None:
        """Precompile both versions."""
        folder = Path(self.folder, standard)
        if not folder.is_dir():
            self._make(folder, lambda making: self._precompile(making, standard))

    def _make(self, folder: Path, fill: Callable[[Path], None]) -> None:
        """Make a folder, once per machine; others wait for whoever is at it."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.parent / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.is_dir():
                return
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as place:
                making = Path(place, folder.name)
                fill(making)
                making.chmod(0o755)
                making.rename(folder)

    def _precompile_set(self, making: Path, standard: str, names: str) -> None:
        making.mkdir()
        self._precompile_header(making / _SET, "".join(f"#include <{name}>\n" for name in names.split()), standard)

    def _precompile_header(self, header: Path, text: str, standard: str) -> None:
        header.write_text(text)
        self._run(["-x", "c++-header", str(header), "-o", f"{header}.gch"], standard)

    def _precompile(self, making: Path, standard: str) -> None:
        original = self._find_everything(standard).read_text()
        short = re.sub(rf"#\s*include\s*<(?:{'|'.join(LEFT_OUT.split())})>", "", original)
        (making / "names").mkdir(parents=True)
        for name, text in (("whole", f"#include_next <{EVERYTHING}>\n"), ("short", _WITHOUT_BESSEL + short)):
            header = making / name / EVERYTHING
            header.parent.mkdir(parents=True)
            self._precompile_header(header, text, standard)
            left = self._run(["-x", "c++", "-E", "-P", str(header)], standard)
            macros = re.findall(r"#define (\w+)", self._run(["-x", "c++", "-E", "-dM", str(header)], standard))
            found = _declared(left)
            found[""].update(macros)
            _write_names(making / "names" / name, found)
            if name == "whole":
                _write_names(making / "names" / "words", {"": {*_WORD.findall(left), *macros}})

    def _find_everything(self, standard: str) -> Path:
        listed = self._run(["-x", "c++", "-E", "-include", EVERYTHING, "/dev/null"], standard)
        return Path(next(iter(re.findall(rf'"([^"]*/{re.escape(EVERYTHING)})"', listed))))

    def _run(self, arguments: Sequence[str], standard: str) -> str:
        return run([self.compiler, f"-std={standard}", *FLAGS, *arguments])


def _included(source: str) -> list[str]:
    """The headers a program includes before anything else, if these are all; none if in doubt."""
    names, end = [], 0
    while found := _INCLUDE.match(source, end):
        names.append(found[1])
        end = found.end()
    # <bits/stdc++.h> may be followed by anything; of others the set must be known.
    return [] if names[:1] != [EVERYTHING] and _ANOTHER.search(source, end) else names


def _declared(text: str) -> dict[str, set[str]]:
    """The words of a preprocessed text outside of classes and functions, by namespace.

    A class that has a body is there a second time, with a brace; so is what is taken over from another namespace, with
    an equals sign.
    """
    found: dict[str, set[str]] = defaultdict(set)
    spaces, open_ones, head, inside, before = [""], set[str](), list[str](), 0, ""
    for token in _TOKEN.findall(_LITERAL.sub("", text)):
        if inside:
            inside += (token == "{") - (token == "}")
        elif token == "{":
            space = _opened(head, spaces[-1], open_ones)
            if space is None:
                inside = 1
                found[spaces[-1]].update(name + "{" for name in _class_names(head))
            else:
                spaces.append(space)
            head = []
        elif token in ("}", ";"):
            if token == "}":
                spaces.pop()
            head = []
        elif token == ":":  # behind it are bases of a class, or members that are initialised
            head.append(token)
        elif token == "::":  # what is before it says where; what is behind it has been declared there
            head = head if head[:1] == ["using"] else [*head[:-1], token]
        elif ":" not in head and (before != "::" or head[:1] == ["using"]):
            head.append(token)
            found[spaces[-1]].add(token + "=" if head[0] == "using" else token)
        before = token
    return found


def _class_names(head: Sequence[str]) -> list[str]:
    """What is called class, struct or union here; the last one has the body, those before are parameters."""
    return [name for key, name in pairwise(head) if key in ("class", "struct", "union")][-1:]


def _opened(head: Sequence[str], space: str, open_ones: set[str]) -> str | None:
    """The namespace in which the names behind a brace are; None for those that are nowhere to be seen.

    An inline namespace is part of the one around it, also when it is opened again.
    """
    if "namespace" in head:
        name = next(iter(head[head.index("namespace") + 1 :]), "__attribute__")
        if "inline" in head:
            open_ones.add(name)
        return space if name in open_ones or name == "__attribute__" else name
    if head[-1:] == ["extern"]:  # "C"
        return space
    if "enum" in head and {"class", "struct"}.isdisjoint(head):
        return space
    return None


Names = Mapping[str, frozenset[str]]


def _are_alike(one: Names, other: Names, words: set[str]) -> bool:
    """Whether these words mean the same with both."""
    marked = words.union(*({word + mark for word in words} for mark in "{="))
    none = frozenset[str]()
    spaces = [space for space in one.keys() | other.keys() if space in ("", "std") or space in words]
    return all(marked.isdisjoint(one.get(space, none) ^ other.get(space, none)) for space in spaces)


@cache
def _read_names(path: str) -> Names:
    return {space: frozenset(names) for space, names in json.loads(Path(path).read_text()).items()}


def _write_names(path: Path, found: Mapping[str, set[str]]) -> None:
    path.write_text(json.dumps({space: sorted(names) for space, names in found.items()}))


def run(command: Sequence[str]) -> str:
    """What a command of the toolchain prints; ConfigError if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=True, cwd="/").stdout
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"{' '.join(command)} failed: {error.stderr.strip()[-500:]}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{' '.join(command)} failed: {error}") from error
