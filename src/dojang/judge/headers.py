"""Precompiled C++ headers, and the choice of the ones that fit a program.

Compiling is most of the cost of judging a C++ program, and the standard headers are most of that. For <bits/stdc++.h>
two versions are precompiled once per machine: the whole header, and a short one without expensive, rarely used parts.
A program gets the short one if it contains no name that only the whole one declares; members of a class do not count,
because they need the class's name. If it does not compile with the short version, the whole one is tried.

Programs that include single headers get exactly those. A set of headers is precompiled when it appears for the second
time; few sets are in common use.
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
"""A precompiled header works only with the same flags."""
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
"""Maximum number of sets per standard; each takes tens of megabytes."""
_requested: Counter[tuple[str, str]] = Counter()
"""Requests for sets that are not precompiled yet, by folder and set."""
_WITHOUT_BESSEL = "#include <bits/c++config.h>\n#undef _GLIBCXX_USE_STD_SPEC_FUNCS\n"
"""The special math functions of C++17 take a quarter of the compile time of an empty program."""
_KEYWORDS = """
    alignas alignof and asm auto bool break case catch char char16_t char32_t char8_t class concept const const_cast
    consteval constexpr constinit continue decltype default delete do double dynamic_cast else enum explicit export
    extern false float for friend goto if inline int long mutable namespace new noexcept not nullptr operator or private
    protected public register reinterpret_cast requires return short signed sizeof static static_assert static_cast std
    struct switch template this throw true try typedef typeid typename union unsigned using virtual void volatile
    wchar_t while
"""
"""Names that mean the same with any header."""
# Atomic groups: Python before 3.11.5 matches possessive groups, (...)*+, wrongly.
_BLANK = r"(?>(?:\s++|//[^\n]*+\n|/\*(?>(?:[^*]++|\*(?!/))*)\*/)*)"
_INCLUDE = re.compile(_BLANK + r'#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"][ \t]*(?=\n|//|/\*|\r\n|\Z)')
_LINE_GOES_ON = re.compile(r"\\[ \t]*\r?\n")
_ANOTHER = re.compile(r"#[ \t]*include")
_WORD = re.compile(r"\b[A-Za-z_]\w*")
_TOKEN = re.compile(r"[A-Za-z_]\w*|::|[{};:]")
_LITERAL = re.compile(r"""(?:\b(?:u8|[uUL]))?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+')""")
_BUILD_S = 600


@dataclass(frozen=True, slots=True)
class Headers:
    """Precompiled headers of one compiler, in a persistent folder."""

    compiler: str
    folder: str

    def flag_sets(self, source: str, standard: str, place: str) -> tuple[list[list[str]], list[str]]:
        """Flags to try in turn to compile this program; `place` is the folder's path in the jail.

        Also returns the program's names that none of its headers declares: an error about one of these is final.
        """
        source = _LINE_GOES_ON.sub("", source)
        names = _included(source)
        if not names or "%:" in source:  # another spelling of #
            return [[]], []
        if names[0] == EVERYTHING:
            self._prepare(standard)
            words = set(_WORD.findall(source)).difference(_KEYWORDS.split())
            flag_sets = [[f"-I{place}/{standard}/whole"]]
            if "##" not in source and _same_meaning(
                self._names(standard, "whole"), self._names(standard, "short"), words
            ):
                flag_sets.insert(0, [f"-I{place}/{standard}/short"])
            return flag_sets, sorted(words - self._names(standard, "words")[""])
        header = self._set(standard, names)
        return [["-include", f"{place}/{header}"]] if header else [[]], []

    def _names(self, standard: str, name: str) -> "Names":
        """Names that a version declares, by namespace; or all words of the whole version."""
        return _read_names(f"{self.folder}/{standard}/names/{name}")

    def _set(self, standard: str, names: Sequence[str]) -> str:
        """Path below the folder of exactly these headers, precompiled; empty if they are not."""
        if not set(names) <= set(_ONE_BY_ONE.split()):
            return ""
        chosen = " ".join(sorted(set(names)))
        place = f"{standard}-sets/{hashlib.sha256(chosen.encode()).hexdigest()[:16]}"
        folder = Path(self.folder, place)
        if not folder.is_dir():
            _requested[self.folder, place] += 1
            if _requested[self.folder, place] < 2 or len(list(folder.parent.glob("*"))) > _SETS:
                return ""
            try:
                self._make(folder, lambda making: self._precompile_set(making, standard, chosen))
            except (OSError, ConfigError):  # a read-only cache, or a header that this standard lacks
                return ""
        return f"{place}/{_SET}"

    def _prepare(self, standard: str) -> None:
        """Precompile both versions."""
        folder = Path(self.folder, standard)
        if not folder.is_dir():
            self._make(folder, lambda making: self._precompile(making, standard))

    def _make(self, folder: Path, fill: Callable[[Path], None]) -> None:
        """Create a folder once per machine; other processes wait for the lock."""
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
    """Headers included at the top of a program, if these are all; empty if in doubt."""
    names, end = [], 0
    while found := _INCLUDE.match(source, end):
        names.append(found[1])
        end = found.end()
    # Anything may follow <bits/stdc++.h>; for other headers, the whole set must be known.
    return [] if names[:1] != [EVERYTHING] and _ANOTHER.search(source, end) else names


def _declared(text: str) -> dict[str, set[str]]:
    """Words of a preprocessed text outside classes and functions, by namespace.

    A class with a body is listed twice, the second time with a brace. A name imported from another namespace is
    listed twice, with an equals sign.
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
        elif token == ":":  # base classes or member initialisers follow
            head.append(token)
        elif token == "::":  # the namespace is before it; the name after it was declared there
            head = head if head[:1] == ["using"] else [*head[:-1], token]
        elif ":" not in head and (before != "::" or head[:1] == ["using"]):
            head.append(token)
            found[spaces[-1]].add(token + "=" if head[0] == "using" else token)
        before = token
    return found


def _class_names(head: Sequence[str]) -> list[str]:
    """Names of the class, struct or union; the last has the body, those before are parameters."""
    return [name for key, name in pairwise(head) if key in ("class", "struct", "union")][-1:]


def _opened(head: Sequence[str], space: str, open_ones: set[str]) -> str | None:
    """Namespace of the names after a brace; None if they are not visible.

    An inline namespace is part of the enclosing one, also when it is opened again.
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


def _same_meaning(one: Names, other: Names, words: set[str]) -> bool:
    """Whether these words mean the same with both headers."""
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
    """Run a command of the toolchain and return its output. Raises ConfigError if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=True, cwd="/").stdout
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"{' '.join(command)} failed: {error.stderr.strip()[-500:]}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{' '.join(command)} failed: {error}") from error
