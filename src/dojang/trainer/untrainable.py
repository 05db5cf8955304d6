"""Model families that can be sampled from but not trained, by the model_type of config.json. Imports no torch.

The trainer refuses any model whose packed log-probs differ (forward.py); this table lets a dry run say it.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["UNTRAINABLE", "why_untrainable"]

_FIXED_ATTENTION = "transformers does not let its attention be replaced by that of packed samples"
_PLAN_LOST = "its layers in transformers do not pass on how samples are packed"
_MIXES_TOKENS = "its layers mix tokens outside of attention, so packed samples would mix"
UNTRAINABLE: Mapping[str, str] = {
    **dict.fromkeys(("bloom", "codegen", "falcon", "gpt_neo", "gptj", "mpt", "xglm"), _FIXED_ATTENTION),
    **dict.fromkeys(("nemotron", "stablelm"), _PLAN_LOST),
    **dict.fromkeys(("lfm2", "mamba", "minimax", "qwen3_next"), _MIXES_TOKENS),
    "gpt_oss": "packed attention has no attention sinks",
    "phi": "its output head has a bias, which the trainer's log-probs lack",
}
"""Reasons by model_type."""


def why_untrainable(config: Mapping[str, Any]) -> str:
    """Reason why a model with this config.json cannot be trained; empty if none is known."""
    return UNTRAINABLE.get(str(config.get("model_type")), "")
