"""Columns of the rollout files and of the token values of a run directory, a row per sample."""

import pyarrow as pa

__all__ = ["ROLLOUT_COLUMNS", "rollout_schema", "token_values_schema"]

ROLLOUT_COLUMNS: dict[str, str] = {
    "step": "int32",
    "prompt_index": "int64",
    "index": "int32",
    "problem": "string",
    "data_source": "string",
    "question": "string",
    "prompt": "string",
    "response": "string",
    "tokens": "list<int32>",
    "mask": "list<bool>",
    "logprobs": "list<float64>",
    "response_length": "int32",
    "version": "int64",
    "finish": "string",
    "role": "string",
    "turn": "int32",
    "outcome": "string",
    "reward": "float64",
    "reward_parts": "map<string, float64>",
    "passed": "int32",
    "total": "int32",
    "advantage": "float64",
    "detail": "string",
    "isolation": "string",
    "spans": "list<span>",
    "tests": "list<test>",
    "turns": "list<turn>",
}
_SPAN = {"version": pa.int32(), "start": pa.int32(), "end": pa.int32()}
_TURN = {"role": pa.string(), "start": pa.int32(), "end": pa.int32(), "reward": pa.float64()}
_TEST = {
    "test": pa.int32(),
    "outcome": pa.string(),
    "cpu_s": pa.float32(),
    "wall_s": pa.float32(),
    "memory_mb": pa.float32(),
    "exit_code": pa.int32(),
    "signal": pa.string(),
    "detail": pa.string(),
    "output": pa.string(),
    "errors": pa.string(),
}


def rollout_schema() -> pa.Schema:
    """Returns ROLLOUT_COLUMNS as an Arrow schema."""
    types = {
        "int32": pa.int32(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "string": pa.string(),
        "list<int32>": pa.list_(pa.int32()),
        "list<bool>": pa.list_(pa.bool_()),
        "list<float64>": pa.list_(pa.float64()),
        "map<string, float64>": pa.map_(pa.string(), pa.float64()),
        "list<span>": pa.list_(pa.struct(_SPAN.items())),
        "list<turn>": pa.list_(pa.struct(_TURN.items())),
        "list<test>": pa.list_(pa.struct(_TEST.items())),
    }
    return pa.schema([(name, types[kind]) for name, kind in ROLLOUT_COLUMNS.items()])


def token_values_schema() -> pa.Schema:
    """Returns the columns of the trainer's log-probs and entropies: a value per sampled token, in the order of the
    tokens. The first four columns find the sample in the rollout file of the same step."""
    key = {"prompt_index": pa.int64(), "index": pa.int32(), "role": pa.string(), "turn": pa.int32()}
    return pa.schema({**key, "trainer_logprobs": pa.list_(pa.float32()), "entropies": pa.list_(pa.float32())})
