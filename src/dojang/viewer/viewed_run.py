"""One run in the viewer: its files, metrics, and the index of its rollouts."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

from dojang.core.errors import RunDirError
from dojang.core.run_files import FileInfo, RunFiles
from dojang.diagnosis.diagnose import diagnose
from dojang.diagnosis.record import RunRecord
from dojang.diagnosis.report import as_object
from dojang.viewer.judge_again import GradingProcess
from dojang.viewer.metric_log import MetricLog
from dojang.viewer.run_index import RunIndex
from dojang.viewer.run_status import read_config, read_object, status_of
from dojang.viewer.search import Found, Searches
from dojang.viewer.timeline import Timeline
from dojang.viewer.token_texts import TokenTexts

__all__ = ["ViewedRun"]

_LOOK_S = {False: 1.0, True: 10.0}
"""Seconds between two looks at the files of a run of this machine, and in S3."""


class ViewedRun:
    """A run. Its index is made when its rollouts are first asked for."""

    def __init__(self, name: str, files: RunFiles, directory: Path) -> None:
        self.id = name
        self.files = files
        self.metrics = MetricLog(files)
        self.tokens = TokenTexts(files)
        self.timeline = Timeline(files, self.metrics)
        self.grading = GradingProcess(files, directory / f"{id(self)}.yaml")
        self._diagnosis: tuple[Any, dict[str, Any]] = None, {}
        self._directory = directory
        self._index: RunIndex | None = None
        self._searches: Searches | None = None
        self._contents: dict[str, tuple[FileInfo | None, dict[str, Any]]] = {}
        self._lock, self._explaining = Lock(), Lock()
        self._closed = False
        self._looked, self._status = -math.inf, "unknown"

    @property
    def index(self) -> RunIndex:
        """Index of the rollouts, which fills in the background."""
        with self._lock:
            if self._closed:
                raise RunDirError("the viewer is ending")
            if self._index is None:
                self._index = RunIndex(self.files, self._directory / f"{id(self)}.snippets")
                self._index.start()
            return self._index

    def search(self, text: str) -> tuple[dict[str, Any] | None, Found | None]:
        """Progress of a search, and what it has found so far; None without a text."""
        return (None, None) if not text else self._searches_of(self.index).ask(text)

    def _searches_of(self, index: RunIndex) -> Searches:
        with self._lock:
            if self._searches is None:
                self._searches = Searches(index)
            return self._searches

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self.grading.close()
        if self._searches is not None:
            self._searches.close()
        if self._index is not None:
            self._index.close()

    def explain(self) -> dict[str, Any]:
        """Object of `dojang explain --json`, computed again when there is something new."""
        self.metrics.update()
        key = self.metrics.version, self.files.info("summary.json")
        with self._explaining:
            if self._diagnosis[0] != key:
                self._diagnosis = key, as_object(diagnose(RunRecord.read(self.files)))
            return self._diagnosis[1]

    def describe(self) -> dict[str, Any]:
        """The run in the list of runs."""
        summary = read_object(self.files, "summary.json")
        config = self._read_again("config.yaml", read_config)
        started = self._read_again("run.json", lambda files: read_object(files, "run.json"))
        self.metrics.update()
        status = status_of(self.files, summary)
        return {
            "id": self.id,
            "name": self.files.name,
            "path": self.files.location,
            "recipe": str(started.get("recipe") or summary.get("recipe") or ""),
            "status": status,
            "steps": self.metrics.last_step,
            "total_steps": config.get("steps") if isinstance(config.get("steps"), int) else None,
            "live": status == "running",
            "eval": summary.get("eval") if isinstance(summary.get("eval"), dict) else None,
            "notes": self._notes(status),
        }

    def _read_again(self, name: str, read: Callable[[RunFiles], dict[str, Any]]) -> dict[str, Any]:
        """Content of a file, read when it has changed: YAML takes long to parse."""
        info = self.files.info(name)
        known = self._contents.get(name)
        if known is None or known[0] != info:
            known = self._contents[name] = info, read(self.files)
        return known[1]

    def _notes(self, status: str) -> list[str]:
        notes = list(self._index.notes) if self._index else []
        if self.metrics.trouble:
            notes.append(self.metrics.trouble)
        if self.metrics.damaged:
            notes.append(f"{self.metrics.damaged} lines of metrics.jsonl are damaged and left out")
        if status == "unknown":
            notes.append("no summary: the run was killed, or goes on elsewhere and has written nothing for 10 minutes")
        return notes

    def state(self) -> dict[str, Any]:
        """Versions of what can be loaded. Looks at small files only, and not at every request."""
        if time.monotonic() - self._looked > _LOOK_S[self.files.is_remote]:
            self._looked = time.monotonic()
            self.metrics.update()
            self._status = status_of(self.files, read_object(self.files, "summary.json"))
        index = self._index
        return {
            "status": self._status,
            "step": self.metrics.last_step,
            "metrics_version": self.metrics.version,
            "rollouts_version": index.rollouts.version if index else 0,
            "indexed_files": len(index.indexed) if index else 0,
            "files": index.total if index else 0,
        }
