"""A policy server with a scripted or random engine, and clients of it, for tests."""

import copy
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
from transformers import PreTrainedTokenizerBase

from dojang.environments.episode import Episode
from dojang.environments.policy_server.routes import make_app
from dojang.environments.policy_server.server import serving
from dojang.environments.policy_server.session import ClientSampling, Session, SessionRules
from dojang.environments.policy_server.sessions import RunSessions
from dojang.types import Completion, Sampling
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.section import RolloutPolicy

TOOLS_TEMPLATE = (
    "{% if tools %}<|system|>{{ tools | tojson }}<|end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|user|>{% endif %}\n"
    "<result>\n{{ m.content }}\n</result>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|end|>\n{% endif %}"
    "{% else %}<|{{ m.role }}|>\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CALL = ' <tool_call>\n{"arguments": {"city":  "Ulm\\u00e9"}, "name": "weather"}\n</tool_call>'
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def with_tools(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Returns a tokenizer whose chat template writes tools, calls and results."""
    own = copy.deepcopy(tokenizer)
    own.chat_template = TOOLS_TEMPLATE
    return own


class RandomEngine:
    """Samples random text or tool calls, mostly not as the tokenizer would split them; remembers prompts."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, seed: int = 0, *, thinking: str = "", call: str = CALL
    ) -> None:
        self._tokenizer, self._random, self._thinking, self._call = tokenizer, random.Random(seed), thinking, call
        self.prompts: list[tuple[int, ...]] = []
        self.samplings: list[Sampling] = []

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        self.prompts.append(tuple(prompt))
        self.samplings.append(sampling)
        return [self._complete() for _ in range(n)]

    def _complete(self) -> Completion:
        text = self._random.choice(["the answer is 7", " maybe ", "é日本\n"]) + str(self._random.randrange(1000))
        text = self._thinking + text
        if self._random.random() < 0.5:
            text += self._call
        tokens = [each for letter in text for each in self._tokenizer.encode(letter, add_special_tokens=False)]
        tokens.append(self._tokenizer.eos_token_id)
        logprobs = tuple(-self._random.random() for _ in tokens)
        return Completion(tuple(tokens), logprobs, text, "stop", len(self.prompts))

    async def load(self, version: int) -> None: ...

    async def close(self) -> None: ...


def policy_of(engine: object, tokenizer: PreTrainedTokenizerBase, **limits: int) -> RolloutPolicy:
    """Returns a policy. `limits`: max_tokens, context."""
    most = limits.get("max_tokens", 100)
    renderer = ChatRenderer(tokenizer, context=limits.get("context"), max_tokens=most)
    return RolloutPolicy(engine, renderer, Sampling(temperature=1.0, max_tokens=most, seed=1))  # type: ignore[arg-type]


@dataclass
class Served:
    """A served session and clients of it."""

    url: str
    key: str
    session: Session
    client: openai.AsyncOpenAI
    http: httpx.AsyncClient


@asynccontextmanager
async def served(
    policy: RolloutPolicy, *, max_turns: int = 1000, client_sampling: ClientSampling = "refuse"
) -> AsyncIterator[Served]:
    """Serves one session of a run."""
    sessions = RunSessions()
    session = Session(policy, SessionRules(max_turns, client_sampling), place=5)
    async with serving(make_app(sessions, "policy"), "127.0.0.1", 0) as url:
        with sessions.open(session) as key:
            client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
            headers = {"authorization": f"Bearer {key}"}
            async with client, httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as http:
                yield Served(url, key, session, client, http)


async def talk_openai(at: Served, seed: int, turns: int = 10) -> None:
    """Ten requests of OpenAI's client, which sends back messages as the client library parsed them."""
    chance = random.Random(seed)
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "what is 3 + 4?"}]
    for _ in range(turns):
        reply = await at.client.chat.completions.create(model="policy", messages=messages, tools=[WEATHER])  # type: ignore[list-item]
        message = reply.choices[0].message
        if message.tool_calls:
            # As frameworks do it: other white space, no content, arguments parsed and written again.
            calls = [each.model_dump() for each in message.tool_calls]
            for each in calls:
                each["function"]["arguments"] = json.dumps(json.loads(each["function"]["arguments"]), indent=1)
            messages.append({"role": "assistant", "content": message.content, "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": each["id"], "content": "sunny\n"} for each in calls]
        else:
            messages.append(message.model_dump(exclude_none=True))
            messages.append({"role": "user", "content": chance.choice(["go on", [{"type": "text", "text": "é?"}]])})


def check(engine: RandomEngine, session: Session, *, streams: int | None) -> None:
    """Asserts that every prompt and every reply is a part of a recorded stream; `streams` is their number, if known."""
    episode = Episode(0, 1.0)
    episode.add_streams(session.streams)
    samples = episode.samples()
    assert streams is None or len(samples) == streams
    found = [tuple(sample.tokens.tolist()) for sample in samples]
    for prompt in engine.prompts:
        assert any(stream[: len(prompt)] == prompt for stream in found)
    replies = [turn for sample in samples for turn in sample.turns if turn.role == "assistant"]
    assert len(replies) == len(engine.prompts), "every reply is trained once"
    for sample in samples:
        assert (sample.logprobs[sample.mask] < 0).all()
        assert (sample.logprobs[~sample.mask] == 0).all()
        for span in sample.spans:
            assert sample.mask[span.start : span.end].all()
