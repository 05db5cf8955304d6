"""OpenEnv's `TrainingTrace` (openenv.core.harness): token ids, log-probs and loss masks of an agent's requests.

    session ──► to_training_trace ──► {"schema_version": 1, "turns": [...]}     for trainers that read OpenEnv's traces
    streams of a session + trace ──► with_loss_of ──► streams                   for training in dojang

A trace has one turn per request: prompt, completion, log-probs of the completion, and a loss mask over both. OpenEnv's
loop-owning harnesses return one that leaves out requests which are no work of the agent, such as those for a title, and
retries. dojang has the tokens already, with their weight versions; what it takes from a trace is the mask.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dojang.environments.policy_server.fields import Body, invalid, read_list
from dojang.environments.token_stream import TokenStream

__all__ = ["check_trace", "to_training_trace", "with_loss_of"]

_VERSION = 1
_Key = tuple[tuple[int, ...], tuple[int, ...]]
"""Prompt and completion of a turn."""


def to_training_trace(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the trace of a session: a line of sessions.jsonl, read as JSON. `TrainingTrace.model_validate` reads it.
    The reward is not part of a trace."""
    turns = [
        _turn(stream, number, f"{at}-{number}")
        for at, stream in enumerate(record["streams"])
        for number, turn in enumerate(stream["turns"])
        if turn["role"] == "assistant"
    ]
    return {"schema_version": _VERSION, "turns": turns}


def _turn(stream: Mapping[str, Any], number: int, name: str) -> dict[str, Any]:
    start, end = (stream["turns"][number][key] for key in ("start", "end"))
    message = {"role": "assistant", "content": stream["text"][number]}
    return {
        "node_id": name,
        "prompt_token_ids": list(stream["tokens"][:start]),
        "completion_token_ids": list(stream["tokens"][start:end]),
        "per_token_logps": [min(0.0, each) for each in stream["logprobs"][start:end]],  # rounding may exceed 0
        "loss_mask": [0] * start + [int(each) for each in stream["sampled"][start:end]],
        "request": {},
        "response": {"choices": [{"message": message}]},
        "metadata": {"weight_versions": list(stream["versions"][start:end])},
    }


def check_trace(found: object) -> Body | None:
    """Returns a trace given with a reward: JSON, or OpenEnv's object. Raises RequestRefused unless it has the fields of
    a TrainingTrace."""
    if found is None:
        return None
    trace = found.model_dump() if hasattr(found, "model_dump") else found
    if not isinstance(trace, Mapping) or trace.get("schema_version", _VERSION) != _VERSION:
        raise invalid(
            f"training_trace={found!r:.80} must be an object with schema_version {_VERSION}", "training_trace"
        )
    for at, turn in enumerate(read_list(trace, "turns")):
        where = f"training_trace.turns[{at}]"
        if not isinstance(turn, Mapping):
            raise invalid(f"{where} must be an object", where)
        prompt, completion, mask = (
            read_list(turn, key) for key in ("prompt_token_ids", "completion_token_ids", "loss_mask")
        )
        if not all(type(each) is int for each in (*prompt, *completion)):
            raise invalid(f"{where}: token ids must be whole numbers", where)
        if len(mask) != len(prompt) + len(completion) or not all(each in (0, 1) for each in mask):
            raise invalid(f"{where}: loss_mask must have 0 or 1 for each token of prompt and completion", where)
        if any(mask[: len(prompt)]):
            raise invalid(f"{where}: tokens of the prompt must not have a loss", where)
    return trace


def with_loss_of(trace: Body, streams: Sequence[TokenStream]) -> list[TokenStream]:
    """Returns the streams with a loss on the tokens that the trace trains only; streams without any are left out.
    Raises RequestRefused if the session has not sampled the tokens of a turn, or if no token is left."""
    masks: dict[_Key, list[list[bool]]] = {}
    for turn in trace["turns"]:
        prompt, completion = (tuple(turn[key]) for key in ("prompt_token_ids", "completion_token_ids"))
        masks.setdefault((prompt, completion), []).append([bool(each) for each in turn["loss_mask"][len(prompt) :]])
    found = [each for each in (_masked(stream, masks) for stream in streams) if any(each.mask)]
    if any(any(mask) for left in masks.values() for mask in left):
        raise invalid(
            "training_trace has a turn with tokens that this session has not sampled; give the trace of the requests "
            "that were sent with this session's key",
            "training_trace",
        )
    if not found:
        raise invalid("training_trace has no token with a loss", "training_trace")
    return found


def _masked(stream: TokenStream, masks: dict[_Key, list[list[bool]]]) -> TokenStream:
    """Returns a copy with the loss of the turns in `masks`, which are removed from there."""
    made = stream.copy()
    for turn in stream.turns:
        if turn.role != "assistant":
            continue
        key = (tuple(stream.tokens[: turn.start]), tuple(stream.tokens[turn.start : turn.end]))
        mask = masks[key].pop(0) if masks.get(key) else [False] * (turn.end - turn.start)
        for place, has_loss in enumerate(mask, turn.start):
            made.mask[place] = has_loss
            made.logprobs[place] = stream.logprobs[place] if has_loss else 0.0
    return made
