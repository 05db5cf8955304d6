"""Compares the model and the tokenizer of a rollout worker with those of its run, before weights are loaded.

The weights of another architecture do not fit. Those of a model that differs only in, say, its number of attention
heads do fit, and would sample something else without an error; so would another tokenizer.
"""

import json
from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerBase

from dojang.core.errors import ConfigError, ModelError
from dojang.rollout_service.messages import ModelDescription, digest_of

__all__ = ["check_same_model", "describe_model"]

_OTHER_USE = {
    *("architectures", "dtype", "transformers_version", "bos_token_id", "pad_token_id", "initializer_range"),
    *("attention_dropout", "use_cache", "output_attentions", "output_hidden_states", "return_dict", "pretraining_tp"),
    *("id2label", "label2id", "problem_type", "chunk_size_feed_forward", "quantization_config"),
}
"""Settings of a model that do not change its log-probs here."""
_FIRST = ("model_type", "num_hidden_layers", "hidden_size", "vocab_size")
_SHOWN = 3
_SAMPLE = "The sum of 12,345 and 6.7 is\n\n\tdef f(x): return {'a': x}  # naïve, 你好 🙂"


def describe_model(source: str, tokenizer: PreTrainedTokenizerBase) -> ModelDescription:
    """Describes the model at a directory or hub id, and its tokenizer."""
    try:
        config = AutoConfig.from_pretrained(source).get_text_config()
    except Exception as error:  # transformers raises many kinds
        raise ModelError(f"cannot read the configuration of {source}: {error}") from error
    settings = json.loads(config.to_json_string(use_diff=False), parse_constant=str)  # infinity is no JSON
    found = {key: value for key, value in settings.items() if key not in _OTHER_USE and not key.startswith("_")}
    return ModelDescription(
        architecture=found | {"eos_token_id": _end_tokens(source, settings)}, tokenizer=_digest(tokenizer)
    )


def check_same_model(key: str, name: str, own: ModelDescription, trained: ModelDescription) -> None:
    """Raises ConfigError if a worker's model or tokenizer is not that of the run. `key` and `name`: the setting."""
    remedy = f"give this worker the run's model, by {key}=DIR if it lies elsewhere on this machine"
    if changed := _differences(own.architecture, trained.architecture):
        raise ConfigError(f"{key}={name} is another model here than in the run: {changed}; {remedy}")
    if own.tokenizer != trained.tokenizer:
        raise ConfigError(
            f"{key}={name} has another tokenizer here than in the run, so the same tokens would be other text; {remedy}"
        )


def _differences(own: Mapping[str, Any], trained: Mapping[str, Any]) -> str:
    """Names settings that differ. One that only one side has is from another version of transformers."""
    keys = [key for key in dict.fromkeys([*_FIRST, *own]) if key in own and key in trained and own[key] != trained[key]]
    shown = [f"{key} is {own[key]} here, {trained[key]} there" for key in keys[:_SHOWN]]
    more = [f"{len(keys) - _SHOWN} more"] if len(keys) > _SHOWN else []
    return "; ".join([*shown, *more])


def _end_tokens(source: str, settings: Mapping[str, Any]) -> list[int]:
    try:
        declared = GenerationConfig.from_pretrained(source).eos_token_id
    except OSError:  # it has none
        declared = settings.get("eos_token_id")
    ends = declared if isinstance(declared, list) else [declared]
    return sorted(token for token in ends if isinstance(token, int))


def _digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest of the vocabulary, its merges, the chat template, and how a text is split."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    model = {} if backend is None else json.loads(backend.to_str())["model"]
    merges = [each if isinstance(each, str) else " ".join(each) for each in model.get("merges") or ()]
    scores = None if isinstance(model.get("vocab"), dict) else model.get("vocab")
    vocabulary = sorted((index, token) for token, index in tokenizer.get_vocab().items())
    split = [tokenizer.encode(_SAMPLE, add_special_tokens=special) for special in (False, True)]
    return digest_of([vocabulary, scores, merges, tokenizer.eos_token_id, tokenizer.chat_template, split])
