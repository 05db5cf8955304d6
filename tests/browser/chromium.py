"""Chromium for the tests: the one that `make chromium` unpacked into the environment, or one on PATH."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

__all__ = ["NAMES", "launch_options"]

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
UNPACKED = Path(sys.prefix) / "chromium"
SHELL = "usr/lib/chromium/chromium-headless-shell"
DATA = "icudtl.dat"
"""A file of another package, beside the program; without it the program does not start."""


def launch_options(scratch: Path) -> dict[str, Any] | None:
    """Arguments of Playwright's launch; None without a browser. Playwright's own download is not needed."""
    program = UNPACKED / SHELL
    if program.is_file() and (program.parent / DATA).is_file():
        return {"executable_path": str(program), "env": {**os.environ, **_environment(scratch)}}
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    return None if found is None else {"executable_path": found}


def _environment(scratch: Path) -> dict[str, str]:
    """Where the libraries and, on a machine without any, the fonts are that came with the program."""
    libraries = {str(path.parent) for path in UNPACKED.rglob("*.so*") if path.parent.name != "chromium"}
    found = {"LD_LIBRARY_PATH": ":".join([*sorted(libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])}
    if not Path("/etc/fonts/fonts.conf").exists():
        fonts = scratch / "fonts.conf"
        fonts.write_text(f"<fontconfig><dir>{UNPACKED}/usr/share/fonts</dir></fontconfig>")
        found["FONTCONFIG_FILE"] = str(fonts)
    return found
