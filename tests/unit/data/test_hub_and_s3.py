"""Datasets that are read from a hub or from S3, of which a small server stands in: only what reading needs."""

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from dojang.core.errors import DataError
from dojang.data.files import FilesConfig
from dojang.data.readers import find

ROWS = [
    {
        "task_id": f"Made/{at}",
        "prompt": f"def add_{at}(x):\n    '''Add {at} to x.'''\n",
        "entry_point": f"add_{at}",
        "canonical_solution": f"    return x + {at}\n",
        "test": f"def check(candidate):\n    assert candidate(1) == {at + 1}\n    assert candidate(5) == {at + 5}\n",
    }
    for at in range(5)
]
SIGNED = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_EC2_METADATA_DISABLED": "true"}


class Shop(BaseHTTPRequestHandler):
    """The hub's interface and S3's over the files of one dataset, made/small, which is also the bucket `made`."""

    protocol_version = "HTTP/1.1"
    files: dict[str, bytes]

    def do_GET(self) -> None:
        path, query = unquote(urlsplit(self.path).path), parse_qs(urlsplit(self.path).query)
        if path.startswith("/api/datasets/made/small"):
            below = re.sub(r"^.*/tree/[^/]+/?", "", path) if "/tree/" in path else ""
            entries = [self._entry(name) for name in sorted({*self.files, "data"}) if name.startswith(below)]
            about = {"id": "made/small", "sha": "0" * 40, "siblings": [{"rfilename": each["path"]} for each in entries]}
            self._say(json.dumps(entries if "/tree/" in path else about).encode())
        elif "list-type" in query:
            self._say(self._listed(query.get("prefix", [""])[0]), "application/xml")
        else:
            self._send(re.sub(r"^/(datasets/made/small/resolve/[^/]+|made)/", "", path))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["paths"]
        self._say(json.dumps([self._entry(name) for name in wanted if name in {*self.files, "data"}]).encode())

    def _entry(self, name: str) -> dict[str, Any]:
        if name not in self.files:
            return {"type": "directory", "path": name, "size": 0, "oid": "1" * 40}
        return {"type": "file", "path": name, "size": len(self.files[name]), "oid": "1" * 40}

    def _listed(self, prefix: str) -> bytes:
        found = [
            f"<Contents><Key>small/{name}</Key><Size>{len(body)}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for name, body in sorted(self.files.items())
            if f"small/{name}".startswith(prefix)
        ]
        about = f"<IsTruncated>false</IsTruncated><KeyCount>{len(found)}</KeyCount>"
        return f"<ListBucketResult>{about}{''.join(found)}</ListBucketResult>".encode()

    def _send(self, name: str) -> None:
        body = self.files.get(name.removeprefix("small/"))
        if body is None:
            self._say(b"", status=404)
            return
        etag = hashlib.sha256(body).hexdigest()
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(asked[1]), int(asked[2] or len(body) - 1)
            self._say(body[start : end + 1], status=206, span=f"bytes {start}-{end}/{len(body)}", etag=etag)
            return
        self._say(body, etag=etag)

    def _say(
        self, body: bytes, kind: str = "application/json", status: int = 200, span: str = "", etag: str = "1"
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    parquet = tmp_path_factory.mktemp("shop") / "test.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS[:3]), parquet)
    files = {
        "data/test-0.parquet": parquet.read_bytes(),
        "data/test-1.jsonl.gz": gzip.compress("\n".join(map(json.dumps, ROWS[3:])).encode()),
        "README.md": b"Made up.",
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Stocked", (Shop,), {"files": files}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def hub(shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server as the hub, with an empty cache."""
    monkeypatch.setattr(constants, "ENDPOINT", shop)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", shop + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def s3(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server as S3."""
    for name, value in {**SIGNED, "AWS_ENDPOINT_URL": shop}.items():
        monkeypatch.setenv(name, value)


def ids(where: str) -> list[str]:
    return [row["task_id"] for file in find(where) for _, row in file.rows()]


EVERY = [row["task_id"] for row in ROWS]


def test_prepare_reads_from_a_hub(shop: str, tmp_path: Path) -> None:
    command = ["data", "prepare", "humaneval", "--input", "made/small", "--output", str(tmp_path / "out")]
    own = {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": shop}
    result = subprocess.run(
        [sys.executable, "-m", "dojang", *command], capture_output=True, text=True, timeout=120, env=os.environ | own
    )
    assert result.returncode == 0, result.stdout + result.stderr
    table = pq.read_table(tmp_path / "out" / "test")
    assert [row["id"] for row in table.column("extra_info").to_pylist()] == EVERY


@pytest.mark.parametrize("where", ["made/small", "made/small/data", "hf://datasets/made/small/data"])
def test_rows_from_a_hub(hub: None, where: str) -> None:
    assert ids(where) == EVERY


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("made/nothing", "made/nothing .*Hugging Face hub"),
        ("made/small/other", "made/small/other does not exist on the Hugging Face hub; give a file"),
        ("hf://datasets/made/small/README.md", "no files to read"),
    ],
)
def test_missing_dataset_is_reported(hub: None, where: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        find(where)


def test_a_hub_dataset_is_read_from_its_cache_without_the_hub(hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    config = FilesConfig(train="made/small", test="made/small", prompt="{prompt}", answer="test")
    online = config.load("test")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert config.load("test") == online
    assert [problem.columns["task_id"] for problem in online] == EVERY
    with pytest.raises(DataError, match="has no train split, only test"):
        config.load("train")


def test_without_the_hub_a_dataset_that_is_not_cached_says_what_to_do(
    hub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "hf download --repo-type dataset made/small --local-dir DIR"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=f"HF_HUB_OFFLINE is set, and it is not in the hub's cache .*{command}"):
        find("made/small/data")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=f"http://127.0.0.1:9 cannot be reached.*{command}"):
        find("made/small")


def test_rows_from_s3(s3: None) -> None:
    assert ids("s3://made/small") == EVERY
    config = FilesConfig(train="s3://made/small/data/test-1.jsonl.gz", test="s3://made/small", answer="test")
    assert [problem.columns["task_id"] for problem in config.load("train")] == EVERY[3:]
    with pytest.raises(DataError, match="s3://made/nothing does not exist"):
        find("s3://made/nothing")
