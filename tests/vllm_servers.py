"""Real vLLM for tests: an engine in this process and servers beside it, each started once and always ended."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from dojang.inference.remote import RemoteEngine
from dojang.inference.vllm import BACKEND, VllmEngine
from dojang.protocols import Changes, RolloutEngine
from dojang.types import Completion, Metrics, Sampling
from dojang.weight_sync.versions import WeightVersions

T = TypeVar("T")
CONTEXT = 2048
STARTING_S = 600.0
# A small share of memory, and threads that the system may place: tests have neighbours.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
OPTIONS: dict[str, Any] = {"dtype": "float32", "enforce_eager": True}
# As docs/engines.md says.
READY_TO_LEARN = [
    "--enable-scale-out",
    *("--logprobs-mode", "processed_logprobs"),
    *("--weight-transfer-config", f'{{"backend": "{BACKEND}"}}'),
]


def installed() -> bool:
    try:
        return bool(version("vllm"))
    except PackageNotFoundError:
        return False


NEEDS_VLLM = (
    pytest.mark.skipif(not installed(), reason="vLLM is not installed here; make test-vllm has it"),
    pytest.mark.filterwarnings("ignore"),  # those of vLLM and what it imports
)


def once(config: pytest.Config, name: str, make: Callable[[], T], end: Callable[[T], object]) -> T:
    """What was made for the first who asked; ended with the session."""
    made = config.stash.setdefault(_MADE, {})
    if name not in made:
        made[name] = make()
        config.add_cleanup(lambda: end(made[name]))
    return made[name]  # type: ignore[no-any-return]


_MADE = pytest.StashKey[dict[str, Any]]()


def tiny(tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> PreTrainedModel:
    """A random Llama with heads of a size that vLLM can do."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


@dataclass
class Versions:
    """A WeightStore that forgets nothing: version n are the weights of seed n."""

    tokenizer: PreTrainedTokenizerBase
    extra: dict[int, Mapping[str, Tensor]] = field(default_factory=dict)

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        self.extra[version] = tensors

    def fetch(self, version: int) -> Mapping[str, Tensor]:
        if version in self.extra:
            return self.extra[version]
        if version > 9:
            raise LookupError(f"weights version {version} is not held")
        return {name: each.detach() for name, each in tiny(self.tokenizer, version).named_parameters()}

    def changes(self, base: int, version: int) -> Changes | None:
        store = WeightVersions(torch.float32, deltas=1)
        for each in (base, version):
            store.publish(each, self.fetch(each))
        return store.changes(base, version)


class VllmServer:
    """A process of its own."""

    def __init__(self, model: Path, log: Path, arguments: Sequence[str], **environment: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        options = [f"--{name.replace('_', '-')}={each}" for name, each in OPTIONS.items() if each is not True]
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--host=127.0.0.1", f"--port={port}", f"--max-model-len={CONTEXT}", "--max-num-seqs=16"]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, *options, "--enforce-eager", *arguments],
                stdout=out,
                stderr=out,
                env={**os.environ, **ENVIRONMENT, **environment},
                start_new_session=True,  # all its processes are one group
            )

    def wait(self) -> "VllmServer":
        deadline = time.monotonic() + STARTING_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health", timeout=5).is_success:
                    return self
            except httpx.TransportError:
                time.sleep(0.5)
        self.kill()
        raise RuntimeError(f"vLLM's server did not start:\n{self._log.read_text(errors='replace')[-5000:]}")

    def end(self) -> None:
        """In peace, so that it gives back the memory it shares with its processes."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=30)
        self.kill()

    def kill(self) -> None:
        """First its head, and then what has not noticed that within some seconds."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            time.sleep(5)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class DeltaReceiver:
    """An engine that others use as well: it begins with version 0 each time, and is not closed."""

    def __init__(self, engine: RolloutEngine, close: bool) -> None:
        self._engine, self._close, self._fresh = engine, close, True
        self._first = asyncio.Lock()

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        async with self._first:
            if self._fresh:
                await self._engine.load(0)
                self._fresh = False
        return await self._engine.generate(prompt, n, sampling)

    async def load(self, version: int) -> Metrics | None:
        self._fresh = False
        return await self._engine.load(version)

    async def close(self) -> None:
        if self._close:
            await self._engine.close()


@dataclass
class Served:
    """Makes engines that use vLLM."""

    config: pytest.Config
    tokenizer: PreTrainedTokenizerBase
    folder: Path
    weights: Versions

    @property
    def model(self) -> Path:
        path = self.folder / "model"
        if not path.exists():
            tiny(self.tokenizer).save_pretrained(path)
            self.tokenizer.save_pretrained(path)
        return path

    def server(self) -> VllmServer:
        """One that can do everything."""
        return self._server("server", READY_TO_LEARN, VLLM_SERVER_DEV_MODE="1")

    def plain_server(self) -> VllmServer:
        """One that was started without a thought of learning."""
        return self._server("plain", ["--served-model-name=plain"])

    def _server(self, name: str, arguments: Sequence[str], **environment: str) -> VllmServer:
        def start() -> VllmServer:
            return VllmServer(self.model, self.folder / f"{name}.log", arguments, **environment).wait()

        return once(self.config, name, start, VllmServer.end)

    def local(self) -> VllmEngine:
        return once(self.config, "engine", self.start_local, _close)

    def start_local(self, **options: Any) -> VllmEngine:
        os.environ.update(ENVIRONMENT)
        return VllmEngine(
            self.model, self.tokenizer, self.weights, max_num_seqs=16, context=CONTEXT, **OPTIONS, **options
        )

    def remote(self, **options: Any) -> RemoteEngine:
        return RemoteEngine(self.server().url, self.tokenizer, self.weights, **options)

    def makers(self) -> dict[str, Callable[[], RolloutEngine]]:
        """By name, for the contract."""
        return {
            "vllm": lambda: DeltaReceiver(self.local(), close=False),
            "remote": lambda: DeltaReceiver(self.remote(), close=True),
        }


def served(config: pytest.Config, tokenizer: PreTrainedTokenizerBase, temporary: pytest.TempPathFactory) -> Served:
    return once(
        config,
        "served",
        lambda: Served(config, tokenizer, temporary.mktemp("vllm"), Versions(tokenizer)),
        lambda _: None,
    )


def _close(engine: VllmEngine) -> None:
    asyncio.run(engine.close())
