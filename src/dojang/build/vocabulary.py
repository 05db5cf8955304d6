"""Writes the vocabularies of a run: which bytes each token stands for, so that readers need no tokenizer."""

from collections.abc import Mapping
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.core.run_dir import RunDir, write_atomic
from dojang.workflows.token_bytes import TokenBytes, special_tokens

__all__ = ["write_vocabularies"]


def write_vocabularies(directory: RunDir, tokenizers: Mapping[str, PreTrainedTokenizerBase]) -> None:
    """Writes the vocabulary of each tokenizer, by role, unless it is there. The first role's has no role in its name;
    roles with the same vocabulary have no file."""
    first, *others = tokenizers
    different = [role for role in others if tokenizers[role].get_vocab() != tokenizers[first].get_vocab()]
    for path, role in [(directory.vocabulary(), first), *((directory.vocabulary(each), each) for each in different)]:
        if not path.exists():
            table = vocabulary(tokenizers[role])
            write_atomic(path, partial(pq.write_table, table, compression="zstd"))


def vocabulary(tokenizer: PreTrainedTokenizerBase) -> pa.Table:
    """A row per token ID: `bytes`, null for an ID without a token, and whether it is `special`, whose bytes are its
    name, such as <|im_end|>."""
    special = special_tokens(tokenizer)
    try:
        spelled = TokenBytes(tokenizer).vocabulary()
    except ConfigError:  # bytes cannot be told: the text of each token alone comes close
        spelled = [str(tokenizer.decode([id])).encode() for id in range(max(tokenizer.get_vocab().values()) + 1)]
    for token in special & set(range(len(spelled))):
        spelled[token] = str(tokenizer.convert_ids_to_tokens(token)).encode()
    return pa.table(
        {
            "bytes": pa.array(spelled, pa.binary()),
            "special": pa.array([token in special for token in range(len(spelled))], pa.bool_()),
        }
    )
