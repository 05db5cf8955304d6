"""Sampling parameters of training and evaluation, and which algorithms support top-p, top-k and min-p."""

from dojang.config.eval_config import SamplingConfig
from dojang.config.rollout_config import RolloutConfig
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.protocols import Algorithm
from dojang.types import Sampling

__all__ = ["check_truncation", "eval_sampling", "train_sampling"]

EVAL_STREAM = 2**32
"""Offset added to the seed, which is smaller: evaluation uses a separate random stream, as do roles and turns of a
workflow (workflows/coder_tester.py)."""

_BY_SEQUENCE = ("geometric", "opsm")


def train_sampling(config: RunConfig, seed: int, *, stops: bool = True) -> Sampling:
    """Sampling of rollouts. `stops`: completions end at the stop strings of the data and the stop line of the task."""
    return _sampling(config, config.rollout, seed, stops=stops)


def eval_sampling(config: RunConfig) -> Sampling:
    """Sampling of answers to held-out problems."""
    return _sampling(config, config.eval, config.seed + EVAL_STREAM)


def check_truncation(config: RunConfig, algorithm: Algorithm) -> None:
    """Raises ConfigError if rollouts use top-p, top-k or min-p and the loss would mistake the cut-off probability for
    an off-policy difference: the trainer's log-probs are of the full distribution."""
    rollout = config.rollout
    if not train_sampling(config, 0).truncated:
        return
    cut = [f"rollout.{key}={getattr(rollout, key):g}" for key in ("top_p", "top_k", "min_p") if _cuts(rollout, key)]
    if not algorithm.requirements.old_logprobs:
        remedy = "use another algo.name" if config.algo.name in ("m2po", "custom") else "set algo.old_logprobs=trainer"
        raise ConfigError(
            f"{', '.join(cut)}: tokens are sampled from a truncated distribution, so their log-probs exceed the "
            f"trainer's, and algo.name={config.algo.name} computes its importance ratios with them; {remedy}"
        )
    wholesale = [
        each.name
        for each in getattr(config.algo, "corrections", ())
        if each.name.startswith("sequence") or each.name in _BY_SEQUENCE
    ]
    if wholesale:
        raise ConfigError(
            f"{', '.join(cut)} with algo.corrections {', '.join(wholesale)}: the probability that truncation cuts off "
            "accumulates over a sequence, and nearly all sequences would be masked; use token_tis, or remove the "
            "truncation"
        )


def _cuts(rollout: RolloutConfig, key: str) -> bool:
    return bool(getattr(rollout, key) != RolloutConfig.model_fields[key].default)


def _sampling(
    config: RunConfig, settings: RolloutConfig | SamplingConfig, seed: int, *, stops: bool = True
) -> Sampling:
    return Sampling(
        settings.temperature,
        config.rollout.max_tokens,
        seed,
        stop=config.data.stop if stops else (),
        stop_line=config.workflow.stop_line(config.task.stop_line()) if stops else None,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
    )
