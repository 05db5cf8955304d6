"""Your own rows: train and evaluate on a list of dicts, with the answer checked as a number.

    python examples/own_dataset.py

`dataset` also takes a pandas DataFrame, a pyarrow Table, a datasets.Dataset, a path (.jsonl, .json, .csv, .parquet) or
a hub id. A row has a `prompt` (text or messages) and an `answer`; other columns reach reward functions by their names.
"""

import random

import dojang


def make_rows(count: int, seed: int) -> list[dict[str, str]]:
    """Sums of two numbers below 50, in the words that dojang-tiny knows."""
    numbers = random.Random(seed)
    pairs = [(numbers.randrange(10, 50), numbers.randrange(10, 50)) for _ in range(count)]
    return [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in pairs]


def main() -> None:
    train, test = make_rows(400, seed=0), make_rows(50, seed=1)
    before = dojang.evaluate("dojang-tiny", dataset=test, max_tokens=32)
    result = dojang.train(
        model="dojang-tiny",
        dataset=train,
        eval_dataset=test,
        task="answer_line",
        algo="grpo",
        steps=12,
        rollout={"prompts_per_step": 16, "group_size": 8, "max_tokens": 32},
        train={"lr": 6e-4},
        eval={"every": 6},
    )
    after = dojang.evaluate(result.best_model or "dojang-tiny", dataset=test, max_tokens=32)
    print(f"right answers: {before.accuracy.value:.0%} before training, {after.accuracy.value:.0%} after")
    print(f"chart: {result.run_dir}/reward.png")


if __name__ == "__main__":
    main()
