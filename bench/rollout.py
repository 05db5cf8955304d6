"""Rollout speed of the torch engine beside transformers' `generate`: same model, prompts and samples.

The engine returns log-probs, so `generate` is asked for them too. Rounds are interleaved, so that a busy machine
slows both alike; the median counts.
"""

import asyncio
import statistics
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dojang import models
from dojang.engines.torch import TorchEngine
from dojang.types import Sampling
from dojang.weights.memory import MemoryWeights
from machine import Row, arguments, report


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", default="dojang-tiny")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    source = models.resolve(options.model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype).to(device).eval()
    engine = TorchEngine(model, tokenizer, MemoryWeights(dtype), slots=options.prompts * options.samples)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": f"What is {17 + 3 * place} + {58 + place}?"}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for place in range(options.prompts)
    ]

    def ours(turn: int) -> int:
        sampling = Sampling(temperature=1.0, max_tokens=options.tokens, seed=turn)

        async def all_prompts() -> int:
            groups = await asyncio.gather(*(engine.generate(prompt, options.samples, sampling) for prompt in prompts))
            return sum(len(each.tokens) for group in groups for each in group)

        return asyncio.run(all_prompts())

    def theirs(turn: int) -> int:
        torch.manual_seed(turn)
        tokenizer.padding_side = "left"
        batch = tokenizer.pad({"input_ids": prompts}, return_tensors="pt").to(device)
        with torch.inference_mode():
            output = model.generate(
                **batch,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                num_return_sequences=options.samples,
                max_new_tokens=options.tokens,
                output_logits=True,
                return_dict_in_generate=True,
            )
            model.compute_transition_scores(output.sequences, output.logits, normalize_logits=True)
        written = output.sequences[:, batch["input_ids"].shape[1] :]
        ended = (written == tokenizer.eos_token_id).cumsum(-1)
        return int(((ended == 0) | ((ended == 1) & (written == tokenizer.eos_token_id))).sum())

    speeds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for turn in range(options.rounds + 1):  # the first round warms up and does not count
        for name, play in (("ours", ours), ("theirs", theirs)):
            started = time.perf_counter()
            tokens = play(turn)
            if turn:
                speeds[name].append(tokens / (time.perf_counter() - started))
    mine, baseline = statistics.median(speeds["ours"]), statistics.median(speeds["theirs"])
    case = f"{options.model}, {options.prompts} prompts x {options.samples}, up to {options.tokens} tokens"
    row = Row(case, "torch engine", "transformers generate", mine, baseline, "tokens/s", mine / baseline)
    report("rollout", [row], options.json)


if __name__ == "__main__":
    main()
