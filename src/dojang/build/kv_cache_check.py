"""Checks that the KV cache of rollout.engine.kv_cache_gb holds a whole sequence, before a model is loaded."""

from collections.abc import Sequence

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from dojang.build.local import numerics
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.engine.architectures import support
from dojang.engine.kv_cache_size import longest_sequence
from dojang.engine.shape import Shape
from dojang.types import Message
from dojang.workflows.chat_renderer import ChatRenderer

__all__ = ["check_kv_cache"]


def check_kv_cache(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    settings: PreTrainedConfig,
    prompts: Sequence[Sequence[Message]],
) -> None:
    """Raises ConfigError if a prompt and rollout.max_tokens exceed the KV cache of the torch engine."""
    engine = config.rollout.engine
    if engine.name != "torch" or engine.kv_cache_gb is None or support(settings.to_dict()).engine != "torch":
        return
    shape = Shape.of(settings)
    token_bytes = 2 * shape.layers * shape.kv_heads * shape.head * _itemsize(config)
    longest = longest_sequence(int(engine.kv_cache_gb * 2**30), token_bytes)
    max_tokens = config.rollout.max_tokens
    limited = ChatRenderer(
        tokenizer, context=longest, max_tokens=max_tokens, variables=config.model.chat_template_kwargs
    )
    if overlong := limited.overlong(prompts):
        raise ConfigError(
            f"rollout.engine.kv_cache_gb={engine.kv_cache_gb:g} holds {longest:,} tokens, but {len(overlong):,} of "
            f"{len(prompts):,} prompts need more beside rollout.max_tokens={max_tokens:,}; raise it or lower "
            "rollout.max_tokens"
        )


def _itemsize(config: RunConfig) -> int:
    """Bytes of a number in the KV cache; on a cluster, whose devices are not known here, the least possible."""
    if config.runtime.name == "local":
        return numerics(config).compute.itemsize
    return {"float32": 4, "float64": 8}.get(config.model.dtype, 2)
