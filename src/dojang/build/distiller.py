"""Builds the distiller of a run, and checks that the teacher fits the student."""

import os
from functools import lru_cache

from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase

from dojang import models
from dojang.algos.distillation import AskTeacher, Distillation
from dojang.build.local import context_length, load_tokenizer
from dojang.build.workflows import RoleParts
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, ModelError
from dojang.inference.teacher_server import ServerTeacher
from dojang.protocols import Trainer
from dojang.trainer.ulysses import attention_heads, check_heads
from dojang.types import Problem
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.hints import Hints, check_fields
from dojang.workflows.retokenize import Retokenizer
from dojang.workflows.token_bytes import PROBE, special_tokens

__all__ = ["check_teacher", "check_teacher_prompt", "make_distiller", "same_tokenizer", "tokenizers_differ"]


def check_teacher(config: RunConfig) -> None:
    """Raises ModelError if a local teacher cannot be found, ConfigError if it does not fit the student.

    Compares only models that are on this machine.
    """
    name = config.distillation.local_model if config.distillation is not None else ""
    if not name:
        return
    try:
        models.check(name)
    except ModelError as error:
        raise ModelError(f"distillation.teacher: {error}") from error
    if (sources := _local_sources(config)) is not None:
        _make_retokenizer(config, *sources)


def check_teacher_prompt(config: RunConfig, problem: Problem) -> None:
    """Raises ConfigError if a hint has a field that the problem lacks, or the chat template of a local teacher cannot
    render the problem."""
    if config.distillation is None:
        return
    try:
        check_fields(config.distillation.hint, problem)
    except ValueError as error:
        raise ConfigError(f"distillation.hint: {error}") from None
    try:
        sources = _local_sources(config)
        retokenizer = None if sources is None else _make_retokenizer(config, *sources)
    except (ConfigError, ModelError):
        return  # check_teacher reports it
    if retokenizer is not None:
        retokenizer.check(problem.messages)


def tokenizers_differ(config: RunConfig) -> bool:
    """Reports whether student and teacher are on this machine and have different tokenizers."""
    sources = _local_sources(config)
    return sources is not None and _make_retokenizer(config, *sources) is not None


def make_distiller(config: RunConfig, part: RoleParts, trainer: Trainer) -> Distillation | None:
    """Builds the distiller, for runs with a `distillation` section."""
    chosen = config.distillation
    if chosen is None:
        return None
    ask: AskTeacher
    close = retokenizer = None
    if chosen.url:
        ask = server = ServerTeacher(
            chosen.url,
            part.policy.tokenizer,
            model=chosen.model,
            token=os.environ.get(chosen.token_env) or None,
            timeout_s=chosen.timeout_s,
            attempts=chosen.attempts,
            concurrency=chosen.concurrency,
        )
        close = server.close
    elif chosen.local_model:
        sources = models.resolve(config.model.name), models.resolve(chosen.local_model)
        retokenizer = _make_retokenizer(config, *sources)
        ask = trainer.teacher_logprobs
    else:
        ask = trainer.score if chosen.teacher == "policy" else trainer.ref_logprobs
    if retokenizer is not None:
        return Distillation(chosen, ask, retokenizer, close, retokenizer.compare)
    return Distillation(chosen, ask, Hints(chosen.hint, part.renderer) if chosen.hint else None, close)


def same_tokenizer(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, settings: PreTrainedConfig, name: str
) -> bool:
    """Reports whether the teacher has every token of the student with the same ID, and splits text into the same
    tokens; it may have more. Raises ConfigError if the teacher has too few embeddings: for the student's tokens, or for
    its own if the tokenizers differ."""
    mine, theirs = student.get_vocab(), teacher.get_vocab()
    same = all(theirs.get(token) == id for token, id in mine.items())
    same = same and student.encode(PROBE, add_special_tokens=False) == teacher.encode(PROBE, add_special_tokens=False)
    # Text never becomes special tokens, and some models have none of their embeddings (Gemma 3's image token).
    special = frozenset[int]() if same else special_tokens(teacher)
    last = max(id for id in (mine if same else theirs).values() if id not in special)
    if settings.vocab_size <= last:
        raise ConfigError(
            f"distillation.teacher={name} has {settings.vocab_size:,} embeddings, too few for the "
            f"{last + 1:,} tokens of its tokenizer; copy or download the model again"
        )
    return same


def _local_sources(config: RunConfig) -> tuple[str, str] | None:
    """Directories of student and local teacher; None if one of them is not on this machine."""
    name = config.distillation.local_model if config.distillation is not None else ""
    if not name:
        return None
    student, teacher = models.local(config.model.name), models.local(name)
    return None if student is None or teacher is None else (student, teacher)


@lru_cache(maxsize=2)
def _load_tokenizer(source: str) -> tuple[PreTrainedTokenizerBase, PreTrainedConfig]:
    """Loads a tokenizer once for all checks of a run: a large one takes seconds."""
    return load_tokenizer(source)


def _make_retokenizer(config: RunConfig, student: str, teacher: str) -> Retokenizer | None:
    """Checks a local teacher, and builds the translation for one whose tokenizer differs from the student's. Raises
    ConfigError if its context is shorter than the student's, or the tokens of one cannot be told in bytes."""
    assert config.distillation is not None
    name = config.distillation.teacher
    (mine, settings), (theirs, others) = _load_tokenizer(student), _load_tokenizer(teacher)
    same = same_tokenizer(mine, theirs, others, name)
    longest, context = context_length(config, settings), getattr(others, "max_position_embeddings", None)
    if longest is not None and context is not None and context < longest:
        raise ConfigError(
            f"distillation.teacher={name} has a context of {context} tokens, but the student's is {longest}; set "
            f"rollout.max_model_len={context}"
        )
    heads = AutoConfig.from_pretrained(teacher).get_text_config()
    check_heads(*attention_heads(heads), config.train.sequence_parallel)
    if same:
        return None
    # Completions have another number of tokens here, so the retokenizer checks the length of each.
    renderer = ChatRenderer(theirs, context=None, max_tokens=0, variables=config.model.chat_template_kwargs)
    hint = config.distillation.hint
    hinted = Hints(hint, renderer).messages if hint else None
    return Retokenizer(mine, theirs, context=context, renderer=renderer, messages=hinted)
