"""Builds the distiller of a run, and checks that the teacher fits the student."""

import os

from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase

from dojang import models
from dojang.algos.distillation import AskTeacher, Distillation
from dojang.build.local import context_length, load_tokenizer
from dojang.build.workflows import RoleParts
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, ModelError
from dojang.inference.teacher_server import PROBE, ServerTeacher
from dojang.protocols import Trainer
from dojang.trainer.ulysses import attention_heads, check_heads
from dojang.types import Problem
from dojang.workflows.hints import Hints, check_fields

__all__ = ["check_hints", "check_teacher", "check_tokenizers", "make_distiller"]


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
    source, own = models.local(name), models.local(config.model.name)
    if source is not None and own is not None:
        _compare(config, own, source)


def check_hints(config: RunConfig, problem: Problem) -> None:
    """Raises ConfigError if a hint has a field that the problem lacks."""
    if config.distillation is not None:
        try:
            check_fields(config.distillation.hint, problem)
        except ValueError as error:
            raise ConfigError(f"distillation.hint: {error}") from None


def make_distiller(config: RunConfig, part: RoleParts, trainer: Trainer) -> Distillation | None:
    """Builds the distiller, for runs with a `distillation` section."""
    chosen = config.distillation
    if chosen is None:
        return None
    ask: AskTeacher
    close = None
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
        _compare(config, models.resolve(config.model.name), models.resolve(chosen.local_model))
        ask = trainer.teacher_logprobs
    else:
        ask = trainer.score if chosen.teacher == "policy" else trainer.ref_logprobs
    return Distillation(chosen, ask, Hints(chosen.hint, part.renderer) if chosen.hint else None, close)


def _compare(config: RunConfig, student: str, teacher: str) -> None:
    """Raises ConfigError if the tokenizers differ, or the teacher's context is shorter than the student's."""
    assert config.distillation is not None
    (mine, settings), (theirs, others) = load_tokenizer(student), load_tokenizer(teacher)
    check_tokenizers(mine, theirs, others, config.distillation.teacher)
    longest, context = context_length(config, settings), getattr(others, "max_position_embeddings", None)
    if longest is not None and context is not None and context < longest:
        raise ConfigError(
            f"distillation.teacher={config.distillation.teacher} has a context of {context} tokens, but the student's "
            f"is {longest}; set rollout.max_model_len={context}"
        )
    heads = AutoConfig.from_pretrained(teacher).get_text_config()
    check_heads(*attention_heads(heads), config.train.sequence_parallel)


def check_tokenizers(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, settings: PreTrainedConfig, name: str
) -> None:
    """Raises ConfigError unless the teacher has every token of the student with the same ID. It may have more."""
    mine, theirs = student.get_vocab(), teacher.get_vocab()
    unlike = sorted((id, token) for token, id in mine.items() if theirs.get(token) != id)
    remedy = "the teacher scores the student's own tokens, so choose one of the same model family"
    if unlike:
        id, token = unlike[0]
        raise ConfigError(
            f"distillation.teacher={name} has a different tokenizer than the student: {len(unlike):,} of {len(mine):,} "
            f"tokens differ, such as {token!r}, which is {id} for the student and {theirs.get(token)} for the teacher; "
            f"{remedy}"
        )
    if student.encode(PROBE, add_special_tokens=False) != teacher.encode(PROBE, add_special_tokens=False):
        raise ConfigError(f"distillation.teacher={name} splits text into other tokens than the student; {remedy}")
    if settings.vocab_size <= max(mine.values()):
        raise ConfigError(
            f"distillation.teacher={name} has {settings.vocab_size:,} embeddings, too few for the student's "
            f"{max(mine.values()) + 1:,} tokens; {remedy}"
        )
