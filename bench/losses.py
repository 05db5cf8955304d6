"""Every loss and advantage beside TRL's and veRL's own code, on the same random ragged batch.

The subject is the largest difference, in float64: of a loss its value and its gradient with respect to every token's
log-prob, averaging included; of an advantage every token's. TRL is asked by `GRPOTrainer._compute_loss`, veRL by the
functions of `verl.trainer.ppo`. Losses are given the same advantages, so that each row compares one thing.

    python bench/losses.py                      # with trl and verl installed, or one of them
    python bench/losses.py --verl DIR           # veRL's source in DIR, without installing it (needs tensordict, ray)
    python bench/losses.py --markdown           # the table of docs/algorithms.md
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dojang.algos.cispo import CispoConfig
from dojang.algos.dppo import DppoConfig
from dojang.algos.grpo import DapoConfig, DrGrpoConfig, GrpoConfig
from dojang.algos.gspo import GspoConfig
from dojang.algos.importance_correction import (
    Geometric,
    IcePop,
    Opsm,
    SequenceMis,
    SequenceRejection,
    SequenceTis,
    TokenRejection,
    TokenTis,
)
from dojang.algos.m2po import M2poConfig
from dojang.algos.policy_gradient import PolicyGradientConfig
from dojang.algos.sapo import SapoConfig
from losses_batch import Batch, Found, advantages_of, gae_of, loss_of, random_batch, value_loss_of
from machine import Row, arguments, report

SEEDS = 5
"""Random batches per row, of which the largest difference counts."""
Theirs = Callable[[Batch, Tensor], Found] | None
"""What another library makes of a batch and its advantages; None if it has nothing like it."""


@dataclass(frozen=True)
class Case:
    """One row: what is compared, and how TRL and veRL are asked for the same."""

    name: str
    ours: Callable[[Batch], Found]
    trl: Theirs = None
    verl: Theirs = None
    alike: bool = False
    """Whether the batch has a group without variance."""
    scale: float = 1.0
    """Of rewards: large where different epsilons beside a standard deviation are not to count."""
    note: str = ""


def cases(trl: bool, verl: bool) -> list[Case]:
    """All rows; those of a library that is missing have nothing to compare with."""
    ask_trl = __import__("losses_trl") if trl else None
    ask_verl = __import__("losses_verl") if verl else None

    def in_trl(**settings: object) -> Theirs:
        return None if ask_trl is None else lambda batch, credit: ask_trl.loss(batch, credit, **settings)

    def in_verl(kind: str, mode: str = "token-mean", **settings: object) -> Theirs:
        return None if ask_verl is None else lambda batch, credit: ask_verl.loss(batch, credit, kind, mode, **settings)

    def adv_trl(kind: str) -> Theirs:
        return None if ask_trl is None else lambda batch, _: ask_trl.advantages(batch, kind)

    def adv_verl(kind: str) -> Theirs:
        return None if ask_verl is None else lambda batch, _: ask_verl.advantages(batch, kind)

    def case(name: str, config: PolicyGradientConfig, trl: Theirs, verl: Theirs, **more: object) -> Case:
        return Case(name, lambda batch: loss_of(config, batch), trl, verl, **more)  # type: ignore[arg-type]

    def corrected(each: object, trl: Theirs, verl: Theirs, **more: object) -> Case:
        config = GrpoConfig(old_logprobs="trainer", corrections=(each,))  # type: ignore[arg-type]
        return case(f"correction {each.name}", config, trl, verl, **more)  # type: ignore[attr-defined]

    def credited(name: str, trl: str = "", verl: str = "", **more: object) -> Case:
        ask = (adv_trl(trl) if trl else None, adv_verl(verl) if verl else None)
        return Case(f"advantage {name}", lambda batch: advantages_of(name, batch), *ask, alike=True, **more)  # type: ignore[arg-type]

    masked = "veRL's mask as a weight; veRL also leaves rejected tokens out of the divisor"
    scaled = "with rewards of a million: TRL adds 1e-4 to standard deviations, veRL and dojang 1e-6"
    by_sample = "likewise; veRL normalises the sum over tokens, the paper and TRL over samples"
    return [
        case("grpo", GrpoConfig(), in_trl(loss_type="dapo"), in_verl("vanilla")),
        case(
            "grpo, average=sequences",
            GrpoConfig(loss_aggregation="sequences"),
            in_trl(loss_type="grpo"),
            in_verl("vanilla", "seq-mean-token-mean"),
        ),
        case(
            "grpo, dual_clip=3", GrpoConfig(dual_clip=3), in_trl(loss_type="dapo", delta=3.0), in_verl("vanilla", c=3.0)
        ),
        case(
            "dr_grpo",
            DrGrpoConfig(),
            in_trl(loss_type="dr_grpo"),
            in_verl("vanilla", "seq-mean-token-sum-norm"),
            alike=True,
        ),
        case("dapo", DapoConfig(), in_trl(loss_type="dapo", high=0.28), in_verl("vanilla", high=0.28)),
        case(
            "gspo",
            GspoConfig(),
            in_trl(loss_type="grpo", level="sequence", low=3e-4, high=4e-4),
            in_verl("gspo", low=3e-4, high=4e-4),
        ),
        case("cispo", CispoConfig(), in_trl(loss_type="cispo", high=5.0), in_verl("cispo", low=1.0, high=4.0)),
        case("sapo", SapoConfig(), in_trl(loss_type="sapo"), in_verl("sapo")),
        case("dppo_tv", DppoConfig(), None, in_verl("dppo_tv", c=20.0)),
        case("m2po", M2poConfig(), None, None, note="in neither; compared with its paper in the tests"),
        *(
            case(
                f"grpo, kl=0.1, {estimator}",
                GrpoConfig(kl_coef=0.1, kl_estimator=estimator),  # type: ignore[arg-type]
                in_trl(loss_type="dapo", beta=0.1) if estimator == "k3" else None,
                in_verl("vanilla", kl=0.1, estimator=estimator),
                alike=True,
            )
            for estimator in ("k1", "k2", "k3", "k3+")
        ),
        case(
            "grpo, kl=0.1, use_bias_correction_kl",
            GrpoConfig(kl_coef=0.1, use_bias_correction_kl=True),
            in_trl(loss_type="dapo", beta=0.1, unbiased=True),
            None,
            alike=True,
        ),
        corrected(TokenTis(), in_trl(mode="token_truncate", cap=2.0), in_verl("vanilla", weights=("token", 2.0))),
        corrected(
            SequenceTis(), in_trl(mode="sequence_truncate", cap=2.0), in_verl("vanilla", weights=("sequence", 2.0))
        ),
        corrected(
            SequenceMis(), in_trl(mode="sequence_mask", cap=3.0), in_verl("vanilla", weights=("sequence", "1e-9_3"))
        ),
        corrected(
            IcePop(), in_trl(mode="token_mask", cap=5.0, floor=0.5), in_verl("vanilla", weights=("token", "0.5_5"))
        ),
        corrected(TokenRejection(), None, in_verl("vanilla", reject=("token_k1", "0.2_2")), note=masked),
        corrected(SequenceRejection(), None, in_verl("vanilla", reject=("seq_sum_k1", f"{1 / 3}_1e9")), note=masked),
        corrected(Geometric(), None, in_verl("vanilla", reject=("seq_mean_k1", f"{1 / 1.01}_{1 / 0.99}")), note=masked),
        case(
            "correction opsm",
            GrpoConfig(corrections=(Opsm(),)),
            in_trl(loss_type="dapo", opsm=0.1, old="behaviour"),
            None,
        ),
        Case("ppo, advantages (GAE)", gae_of, None, adv_verl("gae")),
        Case(
            "ppo, value loss",
            value_loss_of,
            None,
            None if ask_verl is None else lambda batch, _: ask_verl.value_loss(batch),
        ),
        credited("grpo", "group", "grpo", scale=1e6, note=scaled),
        credited("mean", "none", "dr_grpo"),
        credited("rloo", "", "rloo"),
        credited("reinforce++-tokens", "", "reinforce_plus_plus"),
        credited("reinforce++-baseline-tokens", "", "reinforce_plus_plus_baseline"),
        credited("gdpo", "gdpo", "", scale=1e6, note=by_sample),
        credited("maxrl", note="in neither; compared with its paper in the tests"),
    ]


def difference(case: Case, theirs: Theirs) -> float | None:
    """Largest over all batches; None if there is nothing to compare with."""
    if theirs is None:
        return None
    worst = 0.0
    for seed in range(SEEDS):
        batch = random_batch(seed, alike=case.alike, scale=case.scale)
        mine = case.ours(batch)
        other = theirs(batch, mine.advantage_BT)
        worst = max(worst, *(float((a - b).abs().max()) for a, b in zip(mine.values, other.values, strict=True)))
    return worst


def found_modules(source: str | None) -> dict[str, str]:
    """Versions of the libraries that are there; says which is missing, and why."""
    if source is not None:
        sys.path.insert(0, source)
    found: dict[str, str] = {}
    for name in ("trl", "verl"):
        try:
            found[name] = str(__import__(name).__version__)
        except ImportError as error:
            print(f"{name} is missing ({error}): its column stays empty; pip install {name}", file=sys.stderr)
    return found


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--verl", metavar="DIR", help="folder with veRL's source, instead of an installed verl")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    options = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    found = found_modules(options.verl)
    table = [
        (case, {"trl": difference(case, case.trl), "verl": difference(case, case.verl)})
        for case in cases("trl" in found, "verl" in found)
    ]
    if options.markdown:
        print(f"| | TRL {found.get('trl', '(missing)')} | veRL {found.get('verl', '(missing)')} | |\n|---|---|---|---|")
        for case, gaps in table:
            cells = ["-" if gap is None else f"{gap:.1e}" for gap in gaps.values()]
            print(f"| {case.name} | {' | '.join(cells)} | {case.note} |")
        return
    rows = [
        Row(case.name, "dojang", name, gap, 0.0, "largest difference", None, case.note)
        for case, gaps in table
        for name, gap in gaps.items()
        if gap is not None
    ]
    report("losses", rows, options.json)


if __name__ == "__main__":
    main()
