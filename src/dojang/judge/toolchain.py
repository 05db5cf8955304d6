"""The C++ toolchain: finds g++, the files it needs and its commands.

Uses the fastest linker available. Linking is static where possible, so that a program opens no files when it starts.
Programs that use locales or wide characters are linked dynamically: static C libraries do not support those.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dojang.core.errors import ConfigError
from dojang.judge.headers import FLAGS, LEFT_OUT, Headers, run
from dojang.judge.libraries import shared_libraries
from dojang.judge.sandbox.compiling import BINARY, DEPENDENCIES

__all__ = ["Toolchain", "find_toolchain"]

_LINKERS = ("lld", "gold", "mold")
_PARTS = ("cc1plus", "as", "ld", "ld.lld", "ld.gold", "ld.mold", "collect2", "lto-wrapper")
_FILES = ("crt1.o", "crti.o", "crtbegin.o", "crtbeginT.o", "libc.a", "libc.so", "libm.a", "libstdc++.a", "libstdc++.so")
_LOCALE_WORDS = """
    codecvt has_facet imbue locale setlocale use_facet wcerr wcin wclog wcout wfstream wifstream wofstream
    wistringstream wostringstream wprintf wscanf wstringstream
"""
_WORD = re.compile(r"\b[A-Za-z_]\w*")
_LAYOUT = 12  # version of the cache folder's layout; a new number rebuilds it
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
    """A C++ compiler on this machine."""

    compiler: str
    version: str
    readable: tuple[str, ...]
    listable: tuple[str, ...]
    """Folders that the linker must list but not read."""
    static: tuple[str, ...] | None
    """Flags for static linking; None if that does not work here."""
    shared: tuple[str, ...]
    """Flags for dynamic linking."""
    headers: str
    """Folder of the precompiled headers."""

    def is_shared(self, source: str) -> bool:
        """Whether this program is linked dynamically, and so must open shared libraries."""
        return self.static is None or not set(_LOCALE_WORDS.split()).isdisjoint(_WORD.findall(source))

    def commands(
        self, source: str, standard: str, headers: str, *, shared: bool, audit: bool
    ) -> tuple[list[list[str]], list[str]]:
        """Commands to try in turn to compile this program; `headers` is the folder's path in the jail.

        Also returns the program's names that no header declares.
        """
        tail = ["a.cpp", "-o", BINARY, *(self.shared if shared or self.static is None else self.static)]
        if audit:
            tail += ["-MD", "-MF", DEPENDENCIES[0], f"-Wa,--MD,{DEPENDENCIES[1]}", "-fno-diagnostics-show-caret"]
        flag_sets, undeclared = Headers(self.compiler, self.headers).flag_sets(source, standard, headers)
        return [[self.compiler, f"-std={standard}", *FLAGS, *way, *tail] for way in flag_sets], undeclared


def find_toolchain(folder: Path) -> Toolchain | None:
    """Find g++ on the path; None if missing. Results are cached in `folder`."""
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    compiler = os.path.realpath(compiler)
    version = run([compiler, "-dumpfullversion", "-dumpmachine"]).split()
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
    with tempfile.TemporaryDirectory() as place:
        source, trial = Path(place, "a.cpp"), str(Path(place, "a.o"))
        source.write_text(_TRIAL)
        with suppress(ConfigError):  # then no way of linking works
            run([compiler, "-pthread", "-c", str(source), "-o", trial])
        static, shared = (_how_to_link(compiler, trial, static=static) for static in (True, False))
    if shared is None:
        raise ConfigError(
            f"{compiler} cannot build a program; install the C++ library and its headers (Debian: apt install g++)"
        )
    parts = [run([compiler, f"-print-prog-name={name}"]).strip() for name in _PARTS]
    programs = [path for part in parts if (path := shutil.which(part))]
    files = [run([compiler, f"-print-file-name={name}"]).strip() for name in _FILES]
    places = {os.path.dirname(os.path.realpath(path)) for path in files if os.path.isabs(path)}
    # The compiler's parts and plugins are next to these, and found by paths with "..".
    own = [run([compiler, "-print-libgcc-file-name"]).strip(), parts[_PARTS.index("cc1plus")]]
    places |= {os.path.dirname(path) for path in own if os.path.isabs(path)}
    trace = subprocess.run(
        [compiler, "-x", "c++", "-E", "-v", "/dev/null"], capture_output=True, text=True, timeout=60, check=True
    ).stderr
    section = trace.partition("search starts here:")[2].partition("End of search list")[0]
    places |= {os.path.realpath(line.strip()) for line in section.splitlines() if line.startswith(" /")}
    readable = {compiler, *programs, *places, *shared_libraries([compiler, *programs])}
    searched = run([compiler, "-print-search-dirs"]).partition("libraries: =")[2].strip().split(":")
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
    """Remove paths that are inside another one."""
    real = {os.path.normpath(path) for path in paths if os.path.exists(path)}
    return {path for path in real if not any(path != other and path.startswith(other + "/") for other in real)}


def _how_to_link(compiler: str, trial: str, *, static: bool) -> tuple[str, ...] | None:
    for linker in (*_LINKERS, ""):
        # Without the eh_frame header, exceptions in a static program do not find their handlers; gold needs the flag.
        flags: tuple[str, ...] = ("-static", "-Wl,--eh-frame-hdr") if static else ()
        flags += ("-s", "-fno-use-linker-plugin")  # symbols and plugins are not needed and take time
        flags += (f"-fuse-ld={linker}",) if linker else ()
        flags += ("-Wl,--threads=1",) if linker == "lld" else ()
        if _works(compiler, trial, flags):
            return flags
    return None


def _works(compiler: str, trial: str, flags: tuple[str, ...]) -> bool:
    """Whether the trial program, linked this way, runs: it has threads and exceptions, which a wrong linker breaks."""
    program = f"{trial}-{BINARY}"
    for command in ([compiler, "-pthread", trial, "-o", program, *flags], [program]):
        try:
            result = subprocess.run(command, capture_output=True, timeout=120, check=False)
        except (OSError, subprocess.SubprocessError):
            return False
        if result.returncode != 0:
            return False
    return result.stdout == b"caught 3"
