"""RemoteEngine: a rollout engine over HTTP, to `vllm serve` or an OpenAI-compatible completions server.

docs/engines.md shows how to start `vllm serve` with everything this needs. One engine manages a server: two would
overwrite each other's weights.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.inference.http_client import RequestRejected, Server, Timeouts
from dojang.inference.vllm_base import ModelInfo, VllmBaseEngine
from dojang.inference.vllm_protocol import BROKEN, VllmOutput, version_of
from dojang.protocols import WeightStore
from dojang.weight_sync.weight_files import DeltaWeightFiles, WeightFiles

__all__ = ["RemoteEngine"]

logger = logging.getLogger(__name__)

_PROBE = {"temperature": 2.0, "top_k": 1, "max_tokens": 4, "seed": 0, "ignore_eos": True, "logprobs": 0}
"""Sampling parameters with only one possible token, whatever the model's logits."""


class RemoteEngine(VllmBaseEngine):
    """A ServingEngine over HTTP. With `api="openai"` it only samples."""

    def __init__(
        self,
        url: str,
        tokenizer: PreTrainedTokenizerBase,
        weights: WeightStore | None,
        *,
        api: Literal["vllm", "openai"] = "vllm",
        folder: Path | None = None,
        weight_sync: Literal["full", "delta"] = "full",
        token: str | None = None,
        timeouts: Timeouts | None = None,
        connections: int = 512,
    ) -> None:
        """`folder` is the directory for weight files, with the same path on both sides; without one, this machine's
        shared memory is used. `weight_sync`: send full weights or deltas. `token` is the server's API key."""
        server = Server(url, token, timeouts or Timeouts(), connections)
        connection = _VllmServer(server) if api == "vllm" else _OpenAiServer(server)
        files = (DeltaWeightFiles if weight_sync == "delta" else WeightFiles)(folder)
        super().__init__(connection, files, tokenizer, weights)
        self.accepts_weights = api == "vllm"


class _OpenAiServer:
    """An OpenAI-compatible /v1/completions server that takes and returns token ids."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._facts: ModelInfo | None = None
        self._model = ""
        self._handshake_lock = asyncio.Lock()

    async def ready(self) -> ModelInfo:
        async with self._handshake_lock:
            if self._facts is None:
                self._facts = await self._handshake()
            return self._facts

    async def _handshake(self) -> ModelInfo:
        [model, *_] = (await self._server.ask("GET", "/v1/models", again=True))["data"]
        self._model = model["id"]
        version = await self._held()
        try:
            output = await self.generate((0, 1), _PROBE, lambda: "probe")
        except RequestRejected as error:
            logger.warning("could not check that log-probs belong to the distribution sampled from: %s", error)
        else:
            _check_logprobs(self._server.url, output)
        return ModelInfo(model.get("max_model_len") or 2**31, None, version)

    async def _held(self) -> int | None:
        return 0

    async def generate(self, prompt: Sequence[int], wanted: Mapping[str, Any], salt: Callable[[], str]) -> VllmOutput:
        asked = {key: value for key, value in wanted.items() if key != "detokenize" and value not in (None, [])}
        # Otherwise the server takes it from the model's generation config.
        plain = {"repetition_penalty": 1.0}
        body = {"model": self._model, "prompt": list(prompt), "return_token_ids": True, **plain, **asked}
        async with self._server.long_requests:
            answer = await self._server.ask("POST", "/v1/completions", body, again=True)
        [choice] = answer["choices"]
        if choice.get("token_ids") is None or not choice.get("logprobs"):
            raise ConfigError(
                f"{self._server.url} returns no token ids with log-probs (`return_token_ids`); training needs a "
                "server that does"
            )
        return VllmOutput(
            tokens=tuple(choice["token_ids"]),
            logprobs=tuple(choice["logprobs"]["token_logprobs"]),
            finish=str(choice["finish_reason"]),
        )

    async def state(self) -> int | None:
        await self._server.check()
        return 0

    async def abort(self) -> None:
        raise _unable()

    async def pause(self) -> None:
        raise _unable()

    async def resume(self) -> None:
        raise _unable()

    async def update(self, info: Mapping[str, Any], label: str) -> None:
        raise _unable()

    async def close(self) -> None:
        await self._server.close()


class _VllmServer(_OpenAiServer):
    """vLLM's routes for token ids and for reinforcement learning (pause, weight updates)."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._request_ids: set[str] = set()

    async def _handshake(self) -> ModelInfo:
        await self.resume()  # an earlier client may have left it paused
        return await super()._handshake()

    async def _held(self) -> int | None:
        label = (await self._manage("GET", "/weight_info"))["weight_version"]
        return None if label == BROKEN else version_of(label)

    async def generate(self, prompt: Sequence[int], wanted: Mapping[str, Any], salt: Callable[[], str]) -> VllmOutput:
        name = secrets.token_hex(16)
        body = {"request_id": name, "token_ids": list(prompt), "sampling_params": dict(wanted)}
        self._request_ids.add(name)
        try:
            async with self._server.long_requests:
                body["cache_salt"] = salt()
                answer = await self._server.ask("POST", "/inference/v1/generate", body, again=True)
        except RequestRejected as error:
            if error.status in (403, 404):
                raise ConfigError(f"{error}; start `vllm serve` with --enable-scale-out, or use api='openai'") from None
            raise
        finally:
            self._request_ids.discard(name)
        [choice] = answer["choices"]
        versions = choice["weight_versions"] or ()
        return VllmOutput(
            tokens=tuple(choice["token_ids"]),
            logprobs=tuple(each["logprob"] for each in choice["logprobs"]["content"] or ()),
            finish=str(choice["finish_reason"]),
            versions=tuple((each["version"], each["start"], each["end"]) for each in versions),
        )

    async def abort(self) -> None:
        doomed = set(self._request_ids)
        while doomed := doomed & self._request_ids:  # some requests may arrive after the first abort
            names = [f"generate-tokens-{name}" for name in doomed]
            await self._manage("POST", "/abort_requests", {"request_ids": names})
            await asyncio.sleep(0.02)

    async def pause(self) -> None:
        await self._manage("POST", "/pause?mode=keep&clear_cache=false")

    async def resume(self) -> None:
        await self._manage("POST", "/resume")

    async def update(self, info: Mapping[str, Any], label: str) -> None:
        await self._manage("POST", "/init_weight_transfer_engine", {"init_info": {}})
        await self._manage("POST", "/update_weight_version", {"new_version": BROKEN})
        await self._server.ask("POST", "/start_weight_update")
        await self._server.ask("POST", "/update_weights", {"update_info": dict(info)})
        await self._server.ask("POST", "/finish_weight_update", {"weight_version": label})

    async def state(self) -> int | None:
        await self._server.check()
        return await self._held()

    async def _manage(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send an idempotent management request."""
        try:
            return await self._server.ask(method, path, body, again=True)
        except RequestRejected as error:
            if error.status in (403, 404, 405):
                raise ConfigError(f"{error}; start `vllm serve` with VLLM_SERVER_DEV_MODE=1") from None
            raise


def _check_logprobs(url: str, output: VllmOutput) -> None:
    if any(abs(logprob) > 1e-3 for logprob in output.logprobs):
        raise ConfigError(
            f"the log-probs of {url} are not those of the distribution it samples from (tokens with probability 1 "
            f"have {', '.join(f'{each:.2f}' for each in output.logprobs)}, not 0), so its samples cannot be trained "
            "on; start `vllm serve` with --logprobs-mode processed_logprobs"
        )


def _unable() -> NotImplementedError:
    return NotImplementedError("an OpenAI-compatible server can only sample; for this, use `vllm serve` and api='vllm'")
