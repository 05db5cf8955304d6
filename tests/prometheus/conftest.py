"""Prometheus' own tools: those of `make prometheus`, or whatever is installed."""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from dojang.track.dashboards import write

FETCHED = Path(__file__).resolve().parents[2] / ".venv" / "prometheus" / "usr" / "bin"
PATIENCE_S = 60.0


@pytest.fixture(scope="session")
def tools() -> Path:
    """The folder of `prometheus` and `promtool`."""
    places = [os.environ.get("DOJANG_PROMETHEUS", ""), str(FETCHED), os.environ.get("PATH", "")]
    found = shutil.which("promtool", path=os.pathsep.join(filter(None, places)))
    if found is None or not Path(found).with_name("prometheus").exists():
        pytest.skip("needs Prometheus: `make prometheus` fetches it, or set DOJANG_PROMETHEUS to the folder it is in")
    return Path(found).parent


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `dojang dashboards` writes."""
    folder = tmp_path_factory.mktemp("written")
    write(folder, ["127.0.0.1:9464"])
    return folder


class Server:
    """A Prometheus that asks often."""

    def __init__(self, tools: Path, folder: Path, target: str, nodes: Sequence[str] = ()) -> None:
        """Asks the exporter of a run, and those of the nodes of a Ray cluster."""
        write(folder, [target])
        config = folder / "prometheus" / "prometheus.yml"
        settings = yaml.safe_load(config.read_text())
        settings["global"] = {"scrape_interval": "250ms", "evaluation_interval": "1s"}
        (ray,) = (job for job in settings["scrape_configs"] if job["job_name"] == "ray")
        ray["file_sd_configs"] = [{"files": [str(folder / "ray.json")]}]
        (folder / "ray.json").write_text(json.dumps([{"targets": list(nodes)}]))
        config.write_text(yaml.safe_dump(settings))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self._log = (folder / "log").open("w+b")
        self._process = subprocess.Popen(
            [
                str(tools / "prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self._address}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def wait(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._ready():
            self._log.seek(0)
            alive = self._process.poll() is None and time.monotonic() < deadline
            assert alive, self._log.read().decode()
            time.sleep(0.1)

    def _ready(self) -> bool:
        try:
            urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=5).close()
        except OSError:
            return False
        return True

    def ask(self, path: str, **parameters: Any) -> Any:
        """What its API answers."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]

    def kill(self) -> None:
        """As a machine dies."""
        self._process.kill()
        self._process.wait()
        self._log.close()


@pytest.fixture
def serve(tools: Path, tmp_path: Path) -> Iterator[Any]:
    """Starts servers, and ends those that are still there."""
    servers: list[Server] = []

    def start(target: str, nodes: Sequence[str] = ()) -> Server:
        server = Server(tools, tmp_path / f"server-{len(servers)}", target, nodes)
        servers.append(server)
        server.wait()
        return server

    yield start
    for server in servers:
        server.kill()
