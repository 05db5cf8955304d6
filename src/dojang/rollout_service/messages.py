"""Messages between rollout workers and the trainer's process: strict JSON.

GET  /run         RunDescription: settings of the run
POST /join        JoinRequest -> JoinReply
POST /heartbeat   HeartbeatRequest -> HeartbeatReply; waits for a new version
POST /lease       LeaseRequest -> LeaseReply; waits for a prompt
POST /deliver     a group (loop/group_codec.py) -> DeliverReply
GET  /weights/POLICY/VERSION?base=N&merge=0   a weight pack (weight_sync/pack.py); Range resumes
POST /leave       LeaveRequest
"""

import hashlib
import json
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = [
    "DeliverReply",
    "HeartbeatReply",
    "HeartbeatRequest",
    "JoinReply",
    "JoinRequest",
    "LeaseMessage",
    "LeaseReply",
    "LeaseRequest",
    "LeaveRequest",
    "MessageError",
    "ModelDescription",
    "RunDescription",
    "digest_of",
    "parse",
]

_MOST_NAME = 200
_MOST_PROMPTS = 100_000


class MessageError(ValueError):
    """JSON that is no such message."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class ModelDescription(_Message):
    """Properties that the models of trainer and workers must share, so that the same weights are the same policy."""

    architecture: dict[str, Any]
    """Settings of the model (its config.json) that change its log-probs."""
    tokenizer: str
    """Digest of the tokenizer."""


class RunDescription(_Message):
    """Settings from which a worker builds its part of the run."""

    dojang: str
    """Version of dojang."""
    config: dict[str, Any]
    models: dict[str, ModelDescription]
    """The policies whose weights are sent, by name."""

    @property
    def digest(self) -> str:
        return digest_of(self.model_dump())


class JoinRequest(_Message):
    """A worker that has built its parts."""

    name: str = Field(max_length=_MOST_NAME // 2)
    """Host and process, for logs."""
    dojang: str
    run: str
    """Digest of the RunDescription that it was built from."""
    data: str
    """Digest of the training problems."""


class JoinReply(_Message):
    """Identifies the worker in all further requests."""

    worker: str
    version: int
    """Newest version of the weights."""


class LeaseRequest(_Message):
    """Asks for a prompt."""

    worker: str = Field(max_length=_MOST_NAME)


class LeaseMessage(_Message):
    """A prompt to sample."""

    prompt_index: int = Field(ge=0)
    attempt: int = Field(ge=0)
    version: int
    """Lowest version of the weights that may sample a token."""


class LeaseReply(_Message):
    """A prompt; None if none may start yet."""

    lease: LeaseMessage | None
    ended: bool
    """Whether the run has ended: no further prompt will come."""


class HeartbeatRequest(_Message):
    """Renews the leases of a worker."""

    worker: str = Field(max_length=_MOST_NAME)
    prompts: list[int] = Field(max_length=_MOST_PROMPTS)
    """Prompts that it samples."""
    version: int
    """Newest version that it knows of: the reply waits for another one."""


class HeartbeatReply(_Message):
    """Newest version of the weights."""

    version: int
    ended: bool


class DeliverReply(_Message):
    """Answer of the rollout queue."""

    answer: Literal["taken", "known", "late"]


class LeaveRequest(_Message):
    """A worker that ends."""

    worker: str = Field(max_length=_MOST_NAME)
    error: str = Field(default="", max_length=10_000)
    """Why it failed; empty if it did not."""


M = TypeVar("M", bound=_Message)


def parse(kind: type[M], data: bytes) -> M:
    """Parses a message. MessageError if it is malformed."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise MessageError(f"no {kind.__name__}: {where + ': ' if where else ''}{first['msg']}") from None


def digest_of(tree: Any) -> str:
    """Digest of JSON data, independent of the order of keys."""
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
