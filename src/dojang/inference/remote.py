"""A rollout engine that is a server somewhere else: `vllm serve`, or anything that completes tokens as OpenAI's does.

docs/engines.md says how to start `vllm serve` so that it can do all of this. One engine manages a server: two that
update its weights would not know of each other.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.inference.http_client import Patience, Refused, Server
from dojang.inference.vllm_base import Facts, ServedEngine
from dojang.inference.vllm_protocol import BROKEN, Drawn, version_of
from dojang.protocols import Abilities, WeightStore
from dojang.weight_sync.weight_files import DeltaParcels, Parcels

__all__ = ["RemoteEngine"]

logger = logging.getLogger(__name__)

_ALL = Abilities(
    pauses=frozenset(("abort", "wait", "keep", "recompute")),
    resumes=True,
    patches=True,
    repeats=False,
    frees_memory=False,
)
_DRAWS = Abilities(pauses=frozenset(), resumes=True, patches=False, repeats=False, frees_memory=False)
_PROBE = {"temperature": 2.0, "top_k": 1, "max_tokens": 4, "seed": 0, "ignore_eos": True, "logprobs": 0}
"""Only one token can be drawn each time, whatever the model says."""


class RemoteEngine(ServedEngine):
    """A ServingEngine over HTTP. With `api="openai"` it draws, and can do nothing else."""

    def __init__(
        self,
        url: str,
        tokenizer: PreTrainedTokenizerBase,
        weights: WeightStore | None,
        *,
        api: Literal["vllm", "openai"] = "vllm",
        folder: Path | None = None,
        transfer: Literal["full", "delta"] = "full",
        token: str | None = None,
        patience: Patience | None = None,
        connections: int = 512,
    ) -> None:
        """`folder` is where weights are handed over: both sides must see it under this name. Without one it is in this
        machine's memory. `transfer` says what goes through it: all weights, or what has changed. `token` is the
        server's API key."""
        server = Server(url, token, patience or Patience(), connections)
        line = _Vllm(server) if api == "vllm" else _OpenAi(server)
        super().__init__(line, (DeltaParcels if transfer == "delta" else Parcels)(folder), tokenizer, weights)
        self.abilities = _ALL if api == "vllm" else _DRAWS


class _OpenAi:
    """/v1/completions with tokens on both sides."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._facts: Facts | None = None
        self._model = ""
        self._greeting = asyncio.Lock()

    async def ready(self) -> Facts:
        async with self._greeting:
            if self._facts is None:
                self._facts = await self._greet()
            return self._facts

    async def _greet(self) -> Facts:
        [model, *_] = (await self._server.ask("GET", "/v1/models", again=True))["data"]
        self._model = model["id"]
        version = await self._held()
        try:
            drawn = await self.draw((0, 1), _PROBE, lambda: "probe")
        except Refused as error:
            logger.warning("whether log-probs are those of the distribution drawn from could not be checked: %s", error)
        else:
            _check_logprobs(self._server.url, drawn)
        return Facts(model.get("max_model_len") or 2**31, None, version)

    async def _held(self) -> int | None:
        return 0

    async def draw(self, prompt: Sequence[int], wanted: Mapping[str, Any], salt: Callable[[], str]) -> Drawn:
        asked = {key: value for key, value in wanted.items() if key != "detokenize" and value not in (None, [])}
        # What the server would else take from the model's generation config.
        plain = {"repetition_penalty": 1.0}
        body = {"model": self._model, "prompt": list(prompt), "return_token_ids": True, **plain, **asked}
        async with self._server.room:
            answer = await self._server.ask("POST", "/v1/completions", body, again=True)
        [choice] = answer["choices"]
        if choice.get("token_ids") is None or not choice.get("logprobs"):
            raise ConfigError(
                f"{self._server.url} does not return the tokens it draws with their log-probs (`return_token_ids`); "
                "only a server that does can be trained with"
            )
        return Drawn(
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

    async def forget(self) -> None:
        raise _unable()

    async def update(self, info: Mapping[str, Any], label: str) -> None:
        raise _unable()

    async def sleep(self) -> None:
        raise _unable()

    async def wake(self) -> None:
        raise _unable()

    async def close(self) -> None:
        await self._server.close()


class _Vllm(_OpenAi):
    """vLLM's own routes: tokens in and out, and those for reinforcement learning."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._asked: set[str] = set()

    async def _greet(self) -> Facts:
        await self.resume()  # it may have been left paused by somebody who is gone
        return await super()._greet()

    async def _held(self) -> int | None:
        label = (await self._manage("GET", "/weight_info"))["weight_version"]
        return None if label == BROKEN else version_of(label)

    async def draw(self, prompt: Sequence[int], wanted: Mapping[str, Any], salt: Callable[[], str]) -> Drawn:
        name = secrets.token_hex(16)
        body = {"request_id": name, "token_ids": list(prompt), "sampling_params": dict(wanted)}
        self._asked.add(name)
        try:
            async with self._server.room:
                body["cache_salt"] = salt()
                answer = await self._server.ask("POST", "/inference/v1/generate", body, again=True)
        except Refused as error:
            if error.status in (403, 404):
                raise ConfigError(f"{error}; start `vllm serve` with --enable-scale-out, or use api='openai'") from None
            raise
        finally:
            self._asked.discard(name)
        [choice] = answer["choices"]
        versions = choice["weight_versions"] or ()
        return Drawn(
            tokens=tuple(choice["token_ids"]),
            logprobs=tuple(each["logprob"] for each in choice["logprobs"]["content"] or ()),
            finish=str(choice["finish_reason"]),
            versions=tuple((each["version"], each["start"], each["end"]) for each in versions),
        )

    async def abort(self) -> None:
        doomed = set(self._asked)
        while doomed := doomed & self._asked:  # some may not have arrived when they are first aborted
            names = [f"generate-tokens-{name}" for name in doomed]
            await self._manage("POST", "/abort_requests", {"request_ids": names})
            await asyncio.sleep(0.02)

    async def pause(self) -> None:
        await self._manage("POST", "/pause?mode=keep&clear_cache=false")

    async def resume(self) -> None:
        await self._manage("POST", "/resume")

    async def forget(self) -> None:
        await self._manage("POST", "/reset_prefix_cache?reset_running_requests=true")

    async def update(self, info: Mapping[str, Any], label: str) -> None:
        await self._manage("POST", "/init_weight_transfer_engine", {"init_info": {}})
        await self._manage("POST", "/update_weight_version", {"new_version": BROKEN})
        await self._server.ask("POST", "/start_weight_update")
        await self._server.ask("POST", "/update_weights", {"update_info": dict(info)})
        await self._server.ask("POST", "/finish_weight_update", {"weight_version": label})

    async def sleep(self) -> None:
        await self._manage("POST", "/sleep?level=1&mode=keep")

    async def wake(self) -> None:
        await self._manage("POST", "/wake_up")

    async def state(self) -> int | None:
        await self._server.check()
        return await self._held()

    async def _manage(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask for something that does no harm if it is done twice."""
        try:
            return await self._server.ask(method, path, body, again=True)
        except Refused as error:
            if error.status in (403, 404, 405):
                raise ConfigError(f"{error}; start `vllm serve` with VLLM_SERVER_DEV_MODE=1") from None
            raise


def _check_logprobs(url: str, drawn: Drawn) -> None:
    if any(abs(logprob) > 1e-3 for logprob in drawn.logprobs):
        raise ConfigError(
            f"the log-probs of {url} are not those of the distribution it draws from (tokens that were sure to come "
            f"have {', '.join(f'{each:.2f}' for each in drawn.logprobs)}, not 0), so its samples cannot be trained on; "
            "start `vllm serve` with --logprobs-mode processed_logprobs"
        )


def _unable() -> NotImplementedError:
    return NotImplementedError("an OpenAI-compatible server can only draw; for this, use `vllm serve` and api='vllm'")
