"""VllmEngine: vLLM as a rollout engine of this process.

vLLM computes in processes that it starts, so its torch settings, memory and failures stay out of this one; a thread
with its own event loop talks to them. Only functions of this file import vLLM, which is optional
(`pip install dojang[vllm]`).

Weights reach vLLM through files, read by a backend of its weight transfer interface. `register` adds the backend to
every vLLM process, also in a server (remote.py): dojang is a vLLM plugin wherever both are installed.
"""

import asyncio
import itertools
import json
import math
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dojang.core.child_process import end_with_parent
from dojang.core.errors import ConfigError, ModelError
from dojang.engine.kv_cache import default_kv_cache_bytes
from dojang.engine.kv_cache_size import UTILIZATION
from dojang.inference.vllm_base import ModelInfo, VllmBaseEngine
from dojang.inference.vllm_protocol import VllmOutput, version_of
from dojang.protocols import WeightStore
from dojang.weight_sync.delta_receiver import DeltaReceiver
from dojang.weight_sync.weight_files import DeltaWeightFiles, WeightFiles

__all__ = ["BACKEND", "VllmEngine", "memory_options", "register"]

BACKEND = "dojang"
"""Name of the weight transfer backend."""
CLOSING_S = 10.0
_PARENT = "DOJANG_VLLM_PARENT"
"""Environment variable with the process id of the process that started vLLM."""

T = TypeVar("T")


class VllmEngine(VllmBaseEngine):
    """A ServingEngine that runs vLLM."""

    def __init__(
        self,
        model: str | Path,
        tokenizer: PreTrainedTokenizerBase,
        weights: WeightStore | None,
        *,
        max_num_seqs: int = 256,
        kv_cache_gb: float | None = None,
        alone: bool = False,
        tensor_parallel_size: int = 1,
        context: int | None = None,
        weight_sync: Literal["full", "delta"] = "full",
        **options: Any,
    ) -> None:
        """Start vLLM, which takes a while. `alone`: nothing else uses its GPUs. `weight_sync`: full weights or deltas.
        `options` are further engine arguments of vLLM."""
        files = sorted(Path(model).glob("*.safetensors")) if Path(model).is_dir() else []
        connection = _InProcessVllm(
            {
                "model": str(model),
                "max_num_seqs": max_num_seqs,
                "max_model_len": context,
                **memory_options(kv_cache_gb, tensor_parallel_size, alone=alone),
                **_parallel_options(tensor_parallel_size),
                **options,
            }
        )
        whole = WeightFiles(None, files, tied=_is_tied(Path(model)))
        super().__init__(connection, DeltaWeightFiles(None) if weight_sync == "delta" else whole, tokenizer, weights)


def _is_tied(folder: Path) -> bool:
    """Whether the output head is tied to the embedding. Some such checkpoints contain it twice, under two names."""
    config = folder / "config.json"
    return config.is_file() and bool(json.loads(config.read_text()).get("tie_word_embeddings"))


def memory_options(kv_cache_gb: float | None, gpus: int = 1, *, alone: bool) -> dict[str, Any]:
    """vLLM engine arguments that size its KV cache. Alone on its GPUs, vLLM measures its activations and takes the
    rest by itself; beside a trainer or another engine it is told a size. vLLM does not start if less memory is free
    than `gpu_memory_utilization`, also where that sizes nothing, so it is never more than is free."""
    wanted = int(kv_cache_gb * 2**30) if kv_cache_gb else None
    if not torch.cuda.is_available():
        return {"kv_cache_memory_bytes": wanted or default_kv_cache_bytes(torch.device("cpu"))}
    if (available := torch.cuda.device_count()) < gpus:
        raise ConfigError(
            f"rollout.engine.tensor_parallel_size={gpus} needs {gpus} GPUs, and this machine has {available}; lower "
            "it, or use a machine with more"
        )
    free, total = min((torch.cuda.mem_get_info(at) for at in range(gpus)), key=lambda found: found[0] / found[1])
    # 1% less than is free: vLLM's processes allocate some before they measure.
    found: dict[str, Any] = {
        "gpu_memory_utilization": max(0.01, min(UTILIZATION, math.floor(100 * free / total - 1) / 100))
    }
    if wanted or not alone:
        found["kv_cache_memory_bytes"] = wanted or min(
            default_kv_cache_bytes(torch.device("cuda", at)) for at in range(gpus)
        )
    return found


def _parallel_options(size: int) -> dict[str, Any]:
    """Run workers as processes of this machine: in a Ray actor vLLM would ask Ray for workers on a full node."""
    return {"tensor_parallel_size": size, "distributed_executor_backend": "mp"} if size > 1 else {}


class _InProcessVllm:
    """vLLM's AsyncLLM, bound to its own event loop, for callers in any loop."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._numbers = itertools.count()
        self._request_ids: set[str] = set()
        self._loop = asyncio.new_event_loop()
        os.environ[_PARENT] = str(os.getpid())
        resource_tracker.ensure_running()  # started later, it would change the signal mask of the thread
        self._thread = threading.Thread(target=self._run, name="vllm", daemon=True)
        self._thread.start()
        try:
            self._llm = asyncio.run_coroutine_threadsafe(_start(options), self._loop).result()
        except BaseException as error:
            self._stop()
            if isinstance(error, ConfigError) or not isinstance(error, Exception):
                raise
            raise ModelError(f"vLLM could not start {options['model']} ({error}); its log says more") from error
        config = self._llm.model_config
        self._facts = ModelInfo(int(config.max_model_len), int(config.get_vocab_size()), 0)

    def _run(self) -> None:
        # Ctrl-C in a terminal is for this process, which may finish its rollouts first. vLLM's processes inherit the
        # mask; they are ended by SIGTERM.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._loop.run_forever()

    async def ready(self) -> ModelInfo:
        return self._facts

    async def generate(self, prompt: Sequence[int], wanted: Mapping[str, Any], salt: Callable[[], str]) -> VllmOutput:
        return await self._do(self._generate(prompt, wanted, salt()))

    async def _generate(self, prompt: Sequence[int], wanted: Mapping[str, Any], salt: str) -> VllmOutput:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(**wanted, output_kind=RequestOutputKind.FINAL_ONLY)
        name = str(next(self._numbers))
        self._request_ids.add(name)
        try:
            inputs = tokens_input(list(prompt), cache_salt=salt)
            answers = [answer async for answer in self._llm.generate(inputs, params, name)]
        finally:
            self._request_ids.discard(name)
        [output] = answers[-1].outputs
        tokens = tuple(output.token_ids)
        return VllmOutput(
            tokens=tokens,
            logprobs=tuple(at[token].logprob for at, token in zip(output.logprobs or (), tokens, strict=True)),
            finish=str(output.finish_reason),
            versions=tuple((span.version, span.start, span.end) for span in output.weight_versions or ()),
        )

    async def abort(self) -> None:
        await self._do(self._abort())

    async def _abort(self) -> None:
        doomed = set(self._request_ids)
        while doomed := doomed & self._request_ids:  # some requests may arrive after the first abort
            await self._llm.abort(list(doomed))
            await asyncio.sleep(0.01)

    async def pause(self) -> None:
        await self._do(self._llm.pause_generation(mode="keep", clear_cache=False))

    async def resume(self) -> None:
        await self._do(self._llm.resume_generation())

    async def update(self, info: Mapping[str, Any], label: str) -> None:
        await self._do(self._update(info, label))

    async def _update(self, info: Mapping[str, Any], label: str) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest({}))
        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(dict(info)))
        await self._llm.finish_weight_update(label)

    async def state(self) -> int:
        await self._do(self._llm.check_health())
        return version_of(await self._do(self._llm.get_weight_version()))

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        async def shut_down() -> None:
            self._llm.shutdown(timeout=CLOSING_S)

        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(shut_down(), self._loop).result(2 * CLOSING_S)
        self._stop()

    def _stop(self) -> None:
        async def leave() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(leave(), self._loop).result(CLOSING_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSING_S)
        if not self._thread.is_alive():
            self._loop.close()

    async def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in vLLM's loop. Cancelling cancels it there too."""
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))
        except EngineDeadError as error:
            raise RuntimeError("vLLM's engine process has died; its log says why") from error
        except VLLMClientError as error:
            raise ValueError(f"vLLM rejected the request: {error}") from error
        except Exception as error:  # failures of its processes arrive as bare exceptions
            raise RuntimeError(f"vLLM failed: {error}") from error


async def _start(options: Mapping[str, Any]) -> Any:
    try:
        from vllm.config import WeightTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise ConfigError(f"vLLM is not installed here ({error}): pip install dojang[vllm]") from error
    fixed = {
        "logprobs_mode": "processed_logprobs",  # log-probs of the distribution sampled from
        "weight_transfer_config": WeightTransferConfig(backend=BACKEND),
        "disable_log_stats": True,
    }
    if taken := fixed.keys() & options.keys():
        raise ConfigError(f"vLLM's {', '.join(sorted(taken))} cannot be set here: dojang depends on it")
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**options, **fixed))


# In vLLM's processes --------------------------------------------------------------------------------------------------


def register() -> None:
    """Add the weight transfer backend. vLLM calls this in each of its processes (see [project.entry-points])."""
    if os.environ.get(_PARENT) == str(os.getppid()):  # vLLM's engine process would outlive a killed parent
        end_with_parent(os.getppid(), group=False)
    from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
    from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo

    @dataclass
    class Init(WeightTransferInitInfo):  # type: ignore[misc]  # mypy does not see vLLM
        pass

    @dataclass
    class Update(WeightTransferUpdateInfo):  # type: ignore[misc]
        path: str
        checksum: str = ""
        base: str = ""
        keep: bool = False

    class Files(WeightTransferEngine):  # type: ignore[misc]
        """Loads weights from a safetensors file, full or delta."""

        init_info_cls = Init
        update_info_cls = Update
        supports_draft_weight_update = False
        receiver: DeltaReceiver | None = None

        def init_transfer_engine(self, init_info: Init) -> None:
            pass

        def start_weight_update(self) -> None:
            pass

        def update_weights(self, update_info: dict[str, Any]) -> None:
            self.receive_weights(self.parse_update_info(update_info))

        def receive_weights(self, update_info: Update) -> None:
            self.receiver = self.receiver or DeltaReceiver()
            tensors = self.receiver.receive(
                Path(update_info.path),
                update_info.checksum,
                base=update_info.base,
                keep=update_info.keep,
                device=next(self.model.parameters()).device,
            )
            _load(self.model, self.model_config, tensors)

        def finish_weight_update(self) -> None:
            pass

        def shutdown(self) -> None:
            pass

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, Files)


def _load(model: Any, config: Any, tensors: Mapping[str, Tensor]) -> None:
    """Load layer by layer; vLLM rearranges each complete layer for its kernels, so its tensors cannot be written."""
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    expected = {name for name, _ in model.named_parameters()}
    tied = _tied(model)
    initialize_layerwise_reload(model)
    try:
        loaded: Iterable[str] | None = model.load_weights(iter(tensors.items()))
    finally:
        finalize_layerwise_reload(model, config)
        for layer in tied:
            layer.quant_method.process_weights_after_loading(layer)
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    # A layer without new weights silently keeps its old ones. Quantized models have additional parameters.
    missing = sorted(expected - set(loaded)) if loaded is not None and config.quantization is None else []
    if missing:
        raise ValueError(f"{len(missing)} weights were not in the update, first {missing[0]}")


def _tied(model: Any) -> list[Any]:
    """Layers that share another layer's weights. vLLM does not load these, and so would not rearrange them again."""
    seen: set[int] = set()
    tied = []
    for layer in model.modules():
        ids = {id(each) for each in layer._parameters.values() if each is not None}
        if ids & seen and hasattr(layer, "quant_method"):
            tied.append(layer)
        seen |= ids
    return tied
