"""Datasets that are read from a hub or from S3, of which a small server stands in: only what reading needs."""

import gzip
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
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(asked[1]), int(asked[2] or len(body) - 1)
            self._say(body[start : end + 1], status=206, span=f"bytes {start}-{end}/{len(body)}")
            return
        self._say(body)

    def _say(self, body: bytes, kind: str = "application/json", status: int = 200, span: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[str]:
    pq.write_table(pa.Table.from_pylist(ROWS[:3]), tmp_path / "test.parquet")
    files = {
        "data/test-0.parquet": (tmp_path / "test.parquet").read_bytes(),
        "data/test-1.jsonl.gz": gzip.compress("\n".join(map(json.dumps, ROWS[3:])).encode()),
        "README.md": b"Made up.",
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Stocked", (Shop,), {"files": files}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def prepare(where: str, output: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "dojang",
        "data",
        "prepare",
        "humaneval",
        "--input",
        where,
        "--output",
        str(output),
    ]
    own = {"HF_HOME": str(output.parent / "hub"), "HF_HUB_OFFLINE": "0"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **own, **environment}
    )


def ids(output: Path) -> list[str]:
    table = pq.read_table(output / "test")
    return [row["id"] for row in table.column("extra_info").to_pylist()]


def test_from_a_hub(shop: str, tmp_path: Path) -> None:
    result = prepare("made/small", tmp_path / "out", HF_ENDPOINT=f"http://{shop}")
    assert result.returncode == 0, result.stdout + result.stderr
    assert ids(tmp_path / "out") == [row["task_id"] for row in ROWS]


def test_a_subset_from_a_hub(shop: str, tmp_path: Path) -> None:
    result = prepare("made/small/data", tmp_path / "out", HF_ENDPOINT=f"http://{shop}")
    assert result.returncode == 0, result.stdout + result.stderr
    assert ids(tmp_path / "out") == [row["task_id"] for row in ROWS]
    result = prepare("made/small/other", tmp_path / "none", HF_ENDPOINT=f"http://{shop}")
    assert (result.returncode, "made/small/other" in result.stderr) == (3, True)


def test_from_s3(shop: str, tmp_path: Path) -> None:
    result = prepare("s3://made/small", tmp_path / "out", AWS_ENDPOINT_URL=f"http://{shop}", **SIGNED)
    assert result.returncode == 0, result.stdout + result.stderr
    assert ids(tmp_path / "out") == [row["task_id"] for row in ROWS]


def test_what_is_not_there_is_said(shop: str, tmp_path: Path) -> None:
    for where in ("s3://made/nothing", "made/nothing"):
        result = prepare(
            where, tmp_path / "out", HF_ENDPOINT=f"http://{shop}", AWS_ENDPOINT_URL=f"http://{shop}", **SIGNED
        )
        assert result.returncode == 3, result.stdout + result.stderr
        assert where in result.stderr
        assert "Traceback" not in result.stderr
