"""Tokenizers that split text otherwise than dojang-tiny's, and dojang-tiny with another tokenizer."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as bpe_models
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dojang import models

END_OF_TURN = "<|turn_end|>"
TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message.role }}\n{{ message.content }}" + END_OF_TURN + "\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
TEXTS = (
    "What is 23 + 78?",
    "3+8=11, 2+7+1=10\n#### The final answer is 101",
    "answers, wherever the end is",
    "assistant",
)
PHRASES = ("eĠfi", "nalĠ", "Ċ")
"""Parts of merges of dojang-tiny: without them it writes its answer line in eight tokens instead of one."""


def other_tokenizer() -> PreTrainedTokenizerBase:
    """Byte-level BPE with words and several digits to a token. A turn ends with another token than EOS."""
    bpe = Tokenizer(bpe_models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|text_end|>", "<|turn|>", END_OF_TURN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True),
        show_progress=False,
    )
    bpe.train_from_iterator([*TEXTS, *(f"{number}" for number in range(10, 20))] * 20, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|text_end|>", pad_token="<|text_end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def save_other_tiny(path: Path, source: str = "dojang-tiny", without: Sequence[str] = PHRASES) -> Path:
    """Saves dojang-tiny (or a model trained from it) with its tokens in another order, another name of the end token,
    and without the merges that contain one of `without`. Each token keeps its embedding."""
    model = AutoModelForCausalLM.from_pretrained(models.resolve(source), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(models.resolve(source))
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    gone = {"".join(pair) for pair in rules["model"]["merges"] if any(part in "".join(pair) for part in without)}
    rules["model"]["merges"] = [pair for pair in rules["model"]["merges"] if "".join(pair) not in gone]
    old = rules["model"]["vocab"]
    kept = sorted((token for token in old if token not in gone), key=lambda token: -old[token])
    rules["model"]["vocab"] = {token.replace("<|end|>", "<|stop|>"): row for row, token in enumerate(kept)}
    for added in rules["added_tokens"]:
        added["id"] = kept.index(added["content"])
        added["content"] = added["content"].replace("<|end|>", "<|stop|>")
    other = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(rules)), eos_token="<|stop|>", pad_token="<|pad|>"
    )
    other.chat_template = tokenizer.chat_template.replace("<|end|>", "<|stop|>")
    rows_VE = model.get_input_embeddings().weight.detach()[[old[token] for token in kept]].clone()
    model.resize_token_embeddings(len(kept))
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(rows_VE)
    for settings in (model.config, model.generation_config):
        settings.eos_token_id, settings.pad_token_id = other.eos_token_id, other.pad_token_id
    model.save_pretrained(path)
    other.save_pretrained(path)
    return path
