"""README of the built package: links into the repository become absolute, since a package page has no files beside it.

`[project.urls] Repository` in pyproject.toml is the base. Without it, links become plain text and images go.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


class PackageReadme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        base = metadata.get("urls", {}).get("Repository", "").rstrip("/")
        text = LINK.sub(lambda link: absolute(link, base), Path(self.root, "README.md").read_text())
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(link: re.Match[str], base: str) -> str:
    image, text, path = link.groups()
    if not base:
        return "" if image else text
    return f"{image}[{text}]({base}/{'raw' if image else 'blob'}/HEAD/{path})"
