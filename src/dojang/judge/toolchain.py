"""The C++ compiler: what it needs, how it is called, and the precompiled headers that make it bearable.

Most of what judging a C++ program costs is compiling it, and most of that is <bits/stdc++.h>. It is compiled
once per machine, in two versions: all of it, and one without the rarely used headers that cost the most. Which
version a program gets is decided by the words in it: if it has no word that only the left-out headers know, they
cannot matter to it. A program that does not compile with the short version is always tried with the long one.

The linker is the fastest there is; linking is static where possible, so that a program opens no file when it starts.
Programs that speak of locales or wide characters are linked dynamically: static C libraries are not up to those.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dojang.errors import ConfigError
from dojang.judge.interpreter import libraries_of
from dojang.judge.sandbox.compiling import BINARY, DEPENDENCIES

__all__ = ["FLAGS", "Toolchain", "find_toolchain"]

FLAGS = ("-O2", "-pthread", "-DONLINE_JUDGE", "-w", "-fmax-errors=3")
EVERYTHING = "bits/stdc++.h"
STREAMS = "iostream"
"""What programs that do not include everything like to include first; only the first can be precompiled."""
LEFT_OUT = """
    barrier charconv codecvt condition_variable coroutine execution filesystem format future latch memory_resource
    mutex regex scoped_allocator semaphore shared_mutex stop_token syncstream thread valarray
"""
_LINKERS = ("lld", "gold", "mold")
_PARTS = ("cc1plus", "as", "ld", "ld.lld", "ld.gold", "ld.mold", "collect2", "lto-wrapper")
_FILES = ("crt1.o", "crti.o", "crtbegin.o", "crtbeginT.o", "libc.a", "libc.so", "libm.a", "libstdc++.a", "libstdc++.so")
_FIRST_INCLUDE = re.compile(r'(?:\s++|//[^\n]*+\n|/\*(?:[^*]++|\*(?!/))*+\*/)*+#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]')
_LOCALE_WORDS = """
    codecvt has_facet imbue locale setlocale use_facet wcerr wcin wclog wcout wfstream wifstream wofstream
    wistringstream wostringstream wprintf wscanf wstringstream
"""
_WORD = re.compile(r"\b[A-Za-z_]\w*")
_LITERAL = re.compile(r"""(?:\b(?:u8|[uUL]))?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+')""")
_LAYOUT = 3  # of the folder below; another number makes it anew
_BUILD_S = 600
_TRIAL = """
#include <iostream>
#include <stdexcept>
#include <thread>
int main() {
    int sum = 1;
    std::thread([&] { sum += 2; }).join();
    try { throw std::runtime_error("caught"); }
    catch (const std::exception& error) { std::cout << error.what() << ' ' << sum; }
}
"""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler as found on this machine."""

    compiler: str
    version: str
    readable: tuple[str, ...]
    listable: tuple[str, ...]
    """Folders a linker wants to look through, without reading what is in them."""
    static: tuple[str, ...] | None
    """Flags for linking statically; None if that does not work here."""
    shared: tuple[str, ...]
    """Flags for linking against shared libraries."""
    headers: str
    """The folder that precompiled headers are kept in."""

    def is_shared(self, source: str) -> bool:
        """Whether this program is linked against shared libraries, which it will have to open."""
        return self.static is None or not set(_LOCALE_WORDS.split()).isdisjoint(_WORD.findall(source))

    def commands(self, source: str, standard: str, headers: str, *, shared: bool, audit: bool) -> list[list[str]]:
        """How to compile this program, in the order to try; `headers` is where the folder of that name appears."""
        tail = ["a.cpp", "-o", BINARY, *(self.shared if shared or self.static is None else self.static)]
        if audit:
            tail += ["-MD", "-MF", DEPENDENCIES[0], f"-Wa,--MD,{DEPENDENCIES[1]}", "-fno-diagnostics-show-caret"]
        start = [self.compiler, f"-std={standard}", *FLAGS]
        first = _FIRST_INCLUDE.match(source)
        if first is None or first[1] not in (EVERYTHING, STREAMS):
            return [[*start, *tail]]
        self._prepare(standard)
        if first[1] == STREAMS:
            return [[*start, f"-I{headers}/{standard}/streams", *tail]]
        whole = [*start, f"-I{headers}/{standard}/whole", *tail]
        if "##" in source or self._rare_words(standard) & set(_WORD.findall(source)):
            return [whole]
        return [[*start, f"-I{headers}/{standard}/short", *tail], whole]

    def _rare_words(self, standard: str) -> frozenset[str]:
        return _read_words(str(Path(self.headers, standard, "rare-words")))

    def _prepare(self, standard: str) -> None:
        """Precompile the headers, once per machine; others wait for whoever is at it."""
        done = Path(self.headers, standard)
        if done.is_dir():
            return
        done.parent.mkdir(parents=True, exist_ok=True)
        with open(done.parent / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if done.is_dir():
                return
            with tempfile.TemporaryDirectory(dir=done.parent, prefix="making-") as folder:
                making = Path(folder) / standard
                self._precompile(making, standard)
                making.chmod(0o755)
                making.rename(done)

    def _precompile(self, making: Path, standard: str) -> None:
        whole = f"#include_next <{EVERYTHING}>\n"
        original = self._find_header(standard)
        short = re.sub(rf"#\s*include\s*<(?:{'|'.join(LEFT_OUT.split())})>", "", original.read_text())
        words = {}
        streams = f"#include_next <{STREAMS}>\n"
        for name, file, text in (
            ("whole", EVERYTHING, whole),
            ("short", EVERYTHING, short),
            ("streams", STREAMS, streams),
        ):
            header = making / name / file
            header.parent.mkdir(parents=True)
            header.write_text(text)
            words[name] = self._words_after_preprocessing(header, standard)
            self._run(["-x", "c++-header", str(header), "-o", f"{header}.gch"], standard)
        (making / "rare-words").write_text(" ".join(sorted(words["whole"] - words["short"])))

    def _find_header(self, standard: str) -> Path:
        listed = self._run(["-x", "c++", "-E", "-include", EVERYTHING, "/dev/null"], standard)
        return Path(next(iter(re.findall(rf'"([^"]*/{re.escape(EVERYTHING)})"', listed))))

    def _words_after_preprocessing(self, header: Path, standard: str) -> set[str]:
        """Everything the header could mean to a program: the words it leaves and the macros it defines."""
        left = self._run(["-x", "c++", "-E", "-P", str(header)], standard)
        macros = self._run(["-x", "c++", "-E", "-dM", str(header)], standard)
        return set(_WORD.findall(_LITERAL.sub("", left))) | set(re.findall(r"#define (\w+)", macros))

    def _run(self, arguments: Sequence[str], standard: str) -> str:
        return _run([self.compiler, f"-std={standard}", *FLAGS, *arguments])


@cache
def _read_words(path: str) -> frozenset[str]:
    return frozenset(Path(path).read_text().split())


def find_toolchain(folder: Path) -> Toolchain | None:
    """The g++ on the path; None if there is none. What is found out about it is remembered in `folder`."""
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    compiler = os.path.realpath(compiler)
    version = _run([compiler, "-dumpfullversion", "-dumpmachine"]).split()
    state = os.stat(compiler)
    identity = repr((compiler, version, state.st_mtime, state.st_size, FLAGS, LEFT_OUT, _LAYOUT))
    place = folder / "judge" / hashlib.sha256(identity.encode()).hexdigest()[:16]
    record = place / "toolchain.json"
    with suppress(OSError, ValueError, TypeError):
        known: dict[str, Any] = json.loads(record.read_text())
        lists: dict[str, Any] = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
        return Toolchain(**(known | lists))
    found = _explore(compiler, " ".join(version), str(place))
    place.mkdir(parents=True, exist_ok=True)
    aside = place / f"toolchain-{os.getpid()}"
    aside.write_text(json.dumps(asdict(found)))
    aside.replace(record)
    return found


def _explore(compiler: str, version: str, folder: str) -> Toolchain:
    static, shared = _how_to_link(compiler, static=True), _how_to_link(compiler, static=False)
    if shared is None:
        raise ConfigError(
            f"{compiler} cannot build a program; install the C++ library and its headers (Debian: apt install g++)"
        )
    parts = [_run([compiler, f"-print-prog-name={name}"]).strip() for name in _PARTS]
    programs = [path for part in parts if (path := shutil.which(part))]
    files = [_run([compiler, f"-print-file-name={name}"]).strip() for name in _FILES]
    places = {os.path.dirname(os.path.realpath(path)) for path in files if os.path.isabs(path)}
    # The compiler's own parts, plugins among them, lie beside these, and are looked for by paths with ".." in them.
    own = [_run([compiler, "-print-libgcc-file-name"]).strip(), parts[_PARTS.index("cc1plus")]]
    places |= {os.path.dirname(path) for path in own if os.path.isabs(path)}
    trace = subprocess.run(
        [compiler, "-x", "c++", "-E", "-v", "/dev/null"], capture_output=True, text=True, timeout=60, check=True
    ).stderr
    section = trace.partition("search starts here:")[2].partition("End of search list")[0]
    places |= {os.path.realpath(line.strip()) for line in section.splitlines() if line.startswith(" /")}
    readable = {compiler, *programs, *places, *libraries_of([compiler, *programs])}
    searched = _run([compiler, "-print-search-dirs"]).partition("libraries: =")[2].strip().split(":")
    return Toolchain(
        compiler=compiler,
        version=version,
        readable=tuple(sorted(_outermost(readable))),
        listable=tuple(sorted({os.path.realpath(path) for path in searched if os.path.isdir(path)})),
        static=static,
        shared=shared,
        headers=f"{folder}/headers",
    )


def _outermost(paths: set[str]) -> set[str]:
    """Without those that lie inside another."""
    real = {os.path.normpath(path) for path in paths if os.path.exists(path)}
    return {path for path in real if not any(path != other and path.startswith(other + "/") for other in real)}


def _how_to_link(compiler: str, *, static: bool) -> tuple[str, ...] | None:
    for linker in (*_LINKERS, ""):
        # Without the table, exceptions in a static program cannot find their handlers; gold has to be told.
        flags: tuple[str, ...] = ("-static", "-Wl,--eh-frame-hdr") if static else ()
        flags += (f"-fuse-ld={linker}",) if linker else ()
        flags += ("-Wl,--threads=1",) if linker == "lld" else ()
        if _works(compiler, flags):
            return flags
    return None


def _works(compiler: str, flags: tuple[str, ...]) -> bool:
    """Whether a program linked so runs: one with threads and exceptions, which a wrong linker breaks."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "a.cpp", Path(folder) / BINARY
        source.write_text(_TRIAL)
        for command in ([compiler, "-pthread", str(source), "-o", str(program), *flags], [str(program)]):
            try:
                result = subprocess.run(command, capture_output=True, timeout=120, check=False)
            except (OSError, subprocess.SubprocessError):
                return False
            if result.returncode != 0:
                return False
        return result.stdout == b"caught 3"


def _run(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=True, cwd="/").stdout
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"{' '.join(command)} failed: {error.stderr.strip()[-500:]}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{' '.join(command)} failed: {error}") from error
