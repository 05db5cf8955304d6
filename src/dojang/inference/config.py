"""Settings of the engines vllm and remote."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from dojang.core.section import Requirement
from dojang.engine.config import EngineParts, EngineSection, StartedEngineSection
from dojang.protocols import RolloutEngine

__all__ = ["RemoteEngineConfig", "VllmEngineConfig"]


class VllmEngineConfig(StartedEngineSection):
    """vLLM on this machine, or as Ray actors (docs/engines.md)."""

    name: Literal["vllm"] = "vllm"
    tensor_parallel_size: int = Field(default=1, ge=1)
    """Number of GPUs per engine (tensor parallelism), for models too large for one GPU."""
    enforce_eager: bool = False
    """Leave out torch.compile and CUDA graphs: vLLM starts sooner and decodes more slowly."""

    def required_packages(self) -> Iterator[Requirement]:
        yield Requirement("rollout.engine.name=vllm", ("vllm",), "vllm")

    def gpus(self) -> int:
        return self.tensor_parallel_size

    def make(self, parts: EngineParts) -> RolloutEngine:
        from dojang.inference.vllm import VllmEngine

        return VllmEngine(
            parts.source,
            parts.tokenizer,
            parts.weights,
            max_num_seqs=self.max_num_seqs,
            kv_cache_gb=self.kv_cache_gb,
            alone=parts.alone,
            tensor_parallel_size=self.tensor_parallel_size,
            context=parts.context,
            weight_sync=self.weight_sync,
            dtype=str(parts.dtype).removeprefix("torch."),
            enforce_eager=self.enforce_eager,
        )


class RemoteEngineConfig(EngineSection):
    """Servers started with `vllm serve` (docs/engines.md)."""

    external: ClassVar[bool] = True
    name: Literal["remote"] = "remote"
    url: list[str] = Field(min_length=1)
    """Addresses of the servers, such as [http://HOST:8000]; several share the requests."""
    token_env: str = "DOJANG_ROLLOUT_TOKEN"
    """Name of the environment variable with the servers' API key, if they require one."""
    weights_dir: str = ""
    """Folder for new weights that this machine and the servers see under the same path; without it the servers must
    be on this machine."""

    def make(self, parts: EngineParts) -> RolloutEngine:
        from dojang.inference.engine_pool import EnginePool
        from dojang.inference.remote import RemoteEngine

        folder = Path(self.weights_dir) if self.weights_dir else None
        token = os.environ.get(self.token_env) or None
        servers = [
            RemoteEngine(url, parts.tokenizer, parts.weights, folder=folder, weight_sync=self.weight_sync, token=token)
            for url in self.url
        ]
        return servers[0] if len(servers) == 1 else EnginePool(servers)
