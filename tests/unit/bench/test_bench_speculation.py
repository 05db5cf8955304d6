import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import speculation
from dojang import models
from dojang.types import Sampling


def test_a_row_compares_the_same_texts() -> None:
    source = models.resolve("dojang-tiny")
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(source)
    prompts = [tuple(tokenizer(text)["input_ids"]) for text in ("What is 12 + 34?", "What is 9 + 8?")]
    mine, plain = (
        speculation.play(model, tokenizer, prompts, Sampling(0.0, 40), sequences=2, guesses=guesses)
        for guesses in (4, 0)
    )
    assert (len(mine.texts), plain.guesses, plain.right) == (4, 0, 0)
    assert 0 < mine.right <= mine.guesses
    assert mine.steps < plain.steps
    found = speculation.row(2, 4, [mine], [plain])
    assert (found.case, found.subject, found.baseline) == ("2 sequences at a time", "4 guesses", "no guesses")
    assert found.ratio == found.value / found.baseline_value
    assert "0 of 4 texts differ" in found.notes
