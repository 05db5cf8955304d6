"""Run by an interpreter with anthropic: Anthropic's client with the policy server.

    python anthropic_client.py URL KEY

Prints as JSON what the client returned.
"""

import json
import sys
from typing import Any

from anthropic import Anthropic, BadRequestError

TOOL: Any = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
QUESTION: Any = {"role": "user", "content": "How is the weather?"}


def main() -> None:
    url, key = sys.argv[1:]
    client = Anthropic(base_url=url, api_key=key, max_retries=0)
    found: dict[str, Any] = {}
    create, common = client.messages.create, {"model": "policy", "max_tokens": 100, "system": "Be brief."}
    found["counted"] = client.messages.count_tokens(
        model="policy", system="Be brief.", messages=[QUESTION], tools=[TOOL]
    ).input_tokens
    call = create(**common, messages=[QUESTION], tools=[TOOL])
    found["input_tokens"] = call.usage.input_tokens
    found["call"] = [call.stop_reason, *(each.type for each in call.content)]
    result: Any = {"type": "tool_result", "tool_use_id": call.content[-1].id, "content": "sunny"}
    messages: Any = [QUESTION, {"role": "assistant", "content": call.content}, {"role": "user", "content": [result]}]
    with client.messages.stream(**common, messages=messages, tools=[TOOL], stop_sequences=["END"]) as stream:
        found["streamed"] = "".join(stream.text_stream)
        last = stream.get_final_message()
    found["stop"] = [last.stop_reason, last.stop_sequence]
    try:
        create(**common, messages=[QUESTION, {"role": "assistant", "content": "The"}])
    except BadRequestError as error:
        found["refused"] = error.body
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
