"""Server-sent events. A reply is sampled as a whole, then sent in pieces, as clients that stream expect."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from starlette.responses import StreamingResponse

__all__ = ["stream"]


def stream(events: Iterable[Mapping[str, Any]], *, named: bool) -> StreamingResponse:
    """Returns events as a response: `named` after their type (Anthropic), or followed by [DONE] (OpenAI)."""

    async def lines() -> Any:
        for each in _lines(events, named):
            yield each

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


def _lines(events: Iterable[Mapping[str, Any]], named: bool) -> Iterator[str]:
    for each in events:
        name = f"event: {each['type']}\n" if named else ""
        yield f"{name}data: {json.dumps(each, ensure_ascii=False)}\n\n"
    if not named:
        yield "data: [DONE]\n\n"
