"""Worker process that scores answers with reasoning-gym (worker_pool.py).

    {"generator": "maze", "settings": {}, "entry": "{...}", "text": "... <answer>7</answer>"}  ->  {"score": 1.0}
                                                         or  {"score": null}: no answer in tags, {"error": "..."}

The last answer in tags counts: the library's rule.
"""

import ast
import json
import math
from collections.abc import Callable
from functools import cache
from typing import Any

from dojang.tasks.worker_process import serve

__all__ = ["scorer"]


def scorer() -> Callable[[Any], dict[str, Any]]:
    from reasoning_gym.factory import create_dataset
    from reasoning_gym.utils import extract_answer

    dataset = cache(lambda generator, settings: create_dataset(generator, **json.loads(settings)))

    def scored(question: Any) -> dict[str, Any]:
        answer = extract_answer(question["text"])
        if answer is None:
            return {"score": None}
        made_by = dataset(question["generator"], json.dumps(question["settings"], sort_keys=True))
        score = float(made_by.score_answer(answer, ast.literal_eval(question["entry"])))
        if not math.isfinite(score):
            raise ValueError(f"the score is {score}")
        return {"score": score}

    return scored


if __name__ == "__main__":
    serve(scorer)
