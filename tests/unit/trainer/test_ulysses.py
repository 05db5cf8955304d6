"""Attention heads of sequence parallel ranks."""

import pytest
from transformers import GPT2Config, LlamaConfig, MambaConfig, PreTrainedConfig

from dojang.core.errors import ConfigError
from dojang.trainer.ulysses import attention_heads, check_heads


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        (LlamaConfig(num_attention_heads=8, num_key_value_heads=2), (8, 2)),
        (GPT2Config(n_head=4), (4, 4)),  # no key-value heads
        (MambaConfig(), (1, 1)),  # no attention
    ],
)
def test_heads_of_configurations_that_do_not_name_them(config: PreTrainedConfig, heads: tuple[int, int]) -> None:
    assert attention_heads(config) == heads


def test_heads_must_be_divisible_among_ranks() -> None:
    check_heads(8, 2, 4)
    with pytest.raises(ConfigError, match="cannot divide the model's 6 attention heads"):
        check_heads(6, 2, 4)
