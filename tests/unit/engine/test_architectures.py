"""Which engine a config.json gets, without torch."""

import subprocess
import sys
from typing import Any

import pytest

from dojang.engine.architectures import FAMILIES, support

LLAMA: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu"}


@pytest.mark.parametrize("kind", FAMILIES)
def test_each_family_is_computed_by_the_torch_engine(kind: str) -> None:
    found = support({"model_type": kind, "architectures": [FAMILIES[kind].causal_lm]})
    assert (found.engine, found.family) == ("torch", FAMILIES[kind].title)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "gpt2"),
        ({"architectures": ["MyLlamaForCausalLM"]}, "MyLlamaForCausalLM"),
        ({"hidden_act": "quick_gelu"}, "quick_gelu"),
        ({"rope_scaling": {"type": "unheard-of"}}, "unheard-of"),
        ({"rope_parameters": {"rope_type": "proportional"}}, "proportional"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ({"layer_types": ["sliding_attention"]}, "sliding-window"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized"),
        ({"use_bidirectional_attention": True}, "bidirectional"),
    ],
)
def test_other_features_get_the_slow_engine_with_the_reason(change: dict[str, Any], reason: str) -> None:
    found = support({**LLAMA, **change})
    assert found.engine == "generate"
    assert reason in found.reason
    assert reason in found.message
    assert "SLOW" in found.message


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_act": "gelu"},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_parameters": {"rope_type": "yarn"}},
        {"attention_bias": True},
    ],
)
def test_known_features_are_computed(change: dict[str, Any]) -> None:
    assert support({**LLAMA, **change}).engine == "torch"


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "t5", "is_encoder_decoder": True, "architectures": ["T5ForConditionalGeneration"]},
        {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
    ],
)
def test_models_that_are_no_causal_language_model_get_no_engine(config: dict[str, Any]) -> None:
    assert support(config).engine == "none"


def test_the_decision_needs_no_torch() -> None:
    code = "import sys; from dojang.engine.architectures import support; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
