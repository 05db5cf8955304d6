"""Adapter of OpenEnv's environments (rollout_server.py). Imports the standard library and openenv only.

An episode is a session (WebSocket) of a server, which is somewhere (`urls`), or started here (`app`). A server that
was started here and hangs is killed with its sessions, and started anew for the next one.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
import subprocess
import sys
import tempfile
import urllib.request
from typing import Any

__all__ = ["PACKAGE", "Rollouts", "parse_action"]

PACKAGE = "openenv"
_START_S = 120.0
_POLL_S = 0.1
_NOT_SHOWN = ("done", "reward", "metadata")
"""Fields of every observation that are not for the model."""


class _Server:
    """A server: its address, and its process if it was started here."""

    def __init__(self, url: str, app: str = "", app_dir: str = "") -> None:
        self.url, self.sessions = url, 0
        self._app, self._app_dir = app, app_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = asyncio.Lock()

    async def ready(self) -> str:
        """Starts the server unless it runs; returns its URL."""
        if not self._app:
            return self.url
        async with self._starting:
            if self._process is None or self._process.poll() is not None:
                self._start()
                await self._wait()
        return self.url

    def end(self) -> None:
        """Kills a server that was started here."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:  # inherited: no other process can take the port
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            command = [sys.executable, "-I", "-m", "uvicorn", self._app, "--fd", str(listener.fileno())]
            command += ["--log-level", "warning"] + (["--app-dir", self._app_dir] if self._app_dir else [])
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115
            self._process = subprocess.Popen(
                command, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, stderr=self._errors
            )

    async def _wait(self) -> None:
        assert self._process is not None
        for _ in range(int(_START_S / _POLL_S)):
            if (code := self._process.poll()) is not None:
                self._errors.seek(0)
                said = self._errors.read()[-300:].decode(errors="replace").strip().rpartition("\n")[2]
                raise RuntimeError(f"the server {self._app} ended with code {code}: {said}")
            try:
                await asyncio.to_thread(_get, f"{self.url}/health", 5.0)
                return
            except OSError:
                await asyncio.sleep(_POLL_S)
        self.end()
        raise RuntimeError(f"the server {self._app} did not answer within {_START_S:g} s")


class _Session:
    """A session of a server."""

    def __init__(self, client: Any, server: _Server) -> None:
        self.client, self.server = client, server
        self.socket = client._ws

    def check(self) -> None:
        """Raises if the connection was lost: the client would go on in a new session, which was never reset."""
        if self.client._ws is not self.socket:
            raise ConnectionError("the connection to the server was lost")


class Rollouts:
    """Sessions by number. Options: `urls` or `app`, `app_dir` and `servers`; `reset`, `observation` and `text`."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._make: Any = importlib.import_module("openenv").GenericEnvClient
        app = options["app"]
        places = options["urls"] if not app else [""] * options["servers"]
        self._servers = [_Server(url, app, options["app_dir"]) for url in places]
        self._options = options
        self._sessions: dict[int, _Session] = {}
        self._action: dict[str, Any] = {}

    async def start(self) -> None:
        """Starts the first server, and asks it for the schema of actions."""
        url = await self._servers[0].ready()
        try:
            self._action = json.loads(await asyncio.to_thread(_get, f"{url}/schema", 30.0))["action"]
        except OSError as error:
            raise ConnectionError(f"{url}/schema: {error}") from error

    async def reset(self, session: int, seed: int) -> dict[str, Any]:
        """Opens a session in the server with the fewest, and resets it."""
        server = min(self._servers, key=lambda each: each.sessions)
        server.sessions += 1
        client = None
        try:
            client = self._make(base_url=await server.ready(), message_timeout_s=None)
            result = await self._first(client, seed)
            self._sessions[session] = _Session(client, server)
        except BaseException as error:
            server.sessions -= 1
            if isinstance(error, asyncio.CancelledError):  # it took too long
                server.end()
            elif client is not None:
                await client.close()
            raise
        return {"text": "\n\n".join(filter(None, [self._instructions(), self._shown(result)]))}

    async def _first(self, client: Any, seed: int) -> Any:
        """Resets; again while a session that has ended still counts in the server."""
        while True:
            try:
                await client.connect()
                return await client.reset(**{"seed": seed, **self._options["reset"]})
            except RuntimeError as error:
                if "CAPACITY_REACHED" not in str(error):
                    raise
                await client.disconnect()
                await asyncio.sleep(_POLL_S)

    async def step(self, session: int, text: str) -> dict[str, Any]:
        """Sends a reply as an action. One that is none is answered with what is wrong."""
        playing = self._sessions[session]
        playing.check()
        try:
            action = parse_action(text, self._text_field())
            result = await playing.client.step(action)
        except ValueError as error:
            return {"text": f"error: {error}", "reward": 0.0, "done": False}
        except RuntimeError as error:
            if "VALIDATION_ERROR" not in str(error):
                raise
            return {"text": f"error: {error}"[:500], "reward": 0.0, "done": False}
        except asyncio.CancelledError:  # it took too long
            playing.server.end()
            raise
        playing.check()
        return {"text": self._shown(result), "reward": float(result.reward or 0.0), "done": bool(result.done)}

    async def close(self, session: int) -> dict[str, Any]:
        """Ends a session."""
        if (playing := self._sessions.pop(session, None)) is not None:
            playing.server.sessions -= 1
            await playing.client.close()
        return {}

    def _instructions(self) -> str:
        if self._options["instructions"] or self._text_field():
            return str(self._options["instructions"])
        return f"Reply with a JSON object only, by this schema: {json.dumps(self._action)}"

    def _text_field(self) -> str:
        """Returns the field of an action that takes a whole reply; empty if actions are JSON."""
        if self._options["action"]:
            return str(self._options["action"])
        required = self._action.get("required", [])
        kind = self._action.get("properties", {}).get(required[0], {}).get("type") if len(required) == 1 else ""
        return required[0] if kind == "string" else ""

    def _shown(self, result: Any) -> str:
        observation = result.observation
        if field := self._options["observation"]:
            if not isinstance(observation, dict) or field not in observation:
                raise KeyError(f"observations have no field {field!r}: {observation!r:.200}")
            observation = observation[field]
        if isinstance(observation, dict):
            observation = {key: value for key, value in observation.items() if key not in _NOT_SHOWN}
        return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)


def parse_action(text: str, field: str = "") -> dict[str, Any]:
    """Returns the action of a reply: JSON, or the text of a field. Raises ValueError if it has none."""
    if field:
        return {field: text.strip()}
    text = text.rpartition("</think>")[2].strip()
    if text.startswith("```") and text.endswith("```"):
        text = text.strip("`").removeprefix("json").strip()
    try:
        action = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the reply is no JSON ({error})") from None
    if not isinstance(action, dict):
        raise ValueError("the reply is no JSON object")
    return action


def _get(url: str, timeout_s: float) -> bytes:
    proxies: dict[str, str] | None = {} if url.startswith("http://127.0.0.1:") else None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    with opener.open(url, timeout=timeout_s) as answer:
        found: bytes = answer.read()
    return found
