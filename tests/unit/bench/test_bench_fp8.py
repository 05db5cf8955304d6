import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import fp8
from dojang import models


def test_rows_compare_the_policies() -> None:
    source = models.resolve("dojang-tiny")
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(source)
    prompts = [tuple(tokenizer(text)["input_ids"]) for text in ("What is 12 + 34?", "What is 9 + 8?")]
    mine, plain = (fp8.play(model, tokenizer, prompts, 40, 2, each) for each in ("fp8", "none"))
    assert len(mine.found) == len(plain.found) == 4
    quantized, whole = (fp8.log_ratios(model, each.found) for each in (mine, plain))
    assert whole.abs().max() < 1e-3
    row = fp8.agreement_row(quantized, whole)
    assert row.value == quantized.abs().mean() > 10 * row.baseline_value
    assert row.ratio is not None
    assert row.ratio < 0.1
    speed = fp8.speed_row(2, [mine], [plain])
    assert (speed.case, speed.ratio) == ("2 samples at a time", speed.value / speed.baseline_value)


def test_agreement_of_ratios() -> None:
    row = fp8.agreement_row(torch.tensor([0.0, 0.5, -0.5, 0.1]), torch.tensor([0.01, -0.01, 0.0, 0.3, 0.0]))
    assert abs(row.value - 0.275) < 1e-6
    assert row.ratio == row.baseline_value / row.value < 1
    assert row.notes == ("largest 0.50, mean ratio 1.0901, 50.0% of 4 tokens outside 0.8 to 1.2, none: 20.0% of 5")
