"""RunConfig -> Sampling: how training and evaluations draw, and which algorithms can learn from truncated samples."""

from dojang.config.eval_config import SamplingConfig
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.loop.config import RolloutConfig
from dojang.protocols import Algorithm
from dojang.types import Sampling

__all__ = ["RETRY_STREAM", "TESTER_STREAM", "check_truncation", "eval_sampling", "train_sampling"]

EVAL_STREAM, TESTER_STREAM, RETRY_STREAM = 2**32, 2**33, 2**34
"""Added to the seed, which is smaller, so that evaluations never share random numbers with training, nor a tester, nor
second attempts, with first ones."""

_BY_SEQUENCE = ("geometric", "opsm")


def train_sampling(config: RunConfig, seed: int, stop: tuple[str, ...] = ()) -> Sampling:
    """Sampling of rollouts."""
    return _sampling(config.rollout, config.rollout.max_tokens, seed, stop)


def eval_sampling(config: RunConfig) -> Sampling:
    """Sampling of answers to held-out problems."""
    return _sampling(config.eval, config.rollout.max_tokens, config.seed + EVAL_STREAM, config.data.stop)


def check_truncation(config: RunConfig, algorithm: Algorithm) -> None:
    """ConfigError if rollouts are drawn with top-p, top-k or min-p and the loss would take the probability they cut off
    for a change of the policy: the trainer's log-probs are those of the whole distribution."""
    rollout = config.rollout
    if not train_sampling(config, 0).truncated:
        return
    cut = [f"rollout.{key}={getattr(rollout, key):g}" for key in ("top_p", "top_k", "min_p") if _cuts(rollout, key)]
    if not algorithm.needs_old:
        remedy = "use another algo.name" if config.algo.name in ("m2po", "custom") else "set algo.old_logprobs=trainer"
        raise ConfigError(
            f"{', '.join(cut)}: tokens are drawn from a truncated distribution, so their log-probs are above the "
            f"trainer's, and algo.name={config.algo.name} would take its ratios to them; {remedy}"
        )
    wholesale = [
        each.name
        for each in getattr(config.algo, "corrections", ())
        if each.name.startswith("sequence") or each.name in _BY_SEQUENCE
    ]
    if wholesale:
        raise ConfigError(
            f"{', '.join(cut)} with algo.corrections {', '.join(wholesale)}: the probability that truncation cuts off "
            "adds up over a sequence, and nearly all sequences would be left out; use token_tis, or leave the "
            "truncation out"
        )


def _cuts(rollout: RolloutConfig, key: str) -> bool:
    return bool(getattr(rollout, key) != RolloutConfig.model_fields[key].default)


def _sampling(how: RolloutConfig | SamplingConfig, most: int, seed: int, stop: tuple[str, ...]) -> Sampling:
    return Sampling(how.temperature, most, seed, stop=stop, top_k=how.top_k, top_p=how.top_p, min_p=how.min_p)
