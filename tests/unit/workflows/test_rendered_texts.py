from dojang.types import Message
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.rendered_texts import RenderedTexts


def conversation(text: str) -> list[Message]:
    return [Message("user", text)]


def test_texts_used_least_recently_are_dropped() -> None:
    texts = RenderedTexts(max_characters=10)
    for name in "abc":
        texts.put(conversation(name), 3 * name)
    assert texts.get(conversation("a")) == "aaa"
    texts.put(conversation("d"), "ddd")
    assert texts.get(conversation("b")) is None
    assert [texts.get(conversation(name)) for name in "acd"] == ["aaa", "ccc", "ddd"]


def test_a_text_that_is_too_long_is_not_kept() -> None:
    texts = RenderedTexts(max_characters=10)
    texts.put(conversation("a"), 11 * "a")
    assert texts.get(conversation("a")) is None
    texts.put(conversation("b"), "b")
    assert texts.get(conversation("b")) == "b"


def test_a_turn_applies_the_chat_template_once(tokenizer, monkeypatch) -> None:
    renderer, rendered = ChatRenderer(tokenizer, context=None, max_tokens=1), []
    apply = renderer._apply_template
    monkeypatch.setattr(
        renderer, "_apply_template", lambda messages, **how: rendered.append(1) or apply(messages, **how)
    )
    messages = conversation("1+2")
    renderer.render(messages)
    renderer.text_of(messages, ())  # the ends of turns and of thinking are found once
    rendered.clear()
    for reply in ("3", "4", "5"):
        more = conversation(f"no, not {reply}")
        assert renderer.continue_chat(messages, tokenizer.encode(reply), reply, more) is not None
        messages += [Message("assistant", reply), *more]
    assert len(rendered) == 3
