"""The loop with real parts: a micro model, a real trainer, files on disk."""

import asyncio
import itertools
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.algos.dppo import DppoConfig
from dojang.algos.grpo import GrpoConfig
from dojang.algos.policy_gradient import PolicyGradientConfig
from dojang.algos.ppo import PpoConfig
from dojang.core.errors import ConfigError, HealthError, Interrupted, TrainingError
from dojang.core.run_dir import RunDir
from dojang.engine.torch_engine import TorchEngine
from dojang.loop.advantages import compute_advantages
from dojang.loop.checkpoint_ranking import CheckpointRanking
from dojang.loop.config import HealthConfig
from dojang.loop.evaluate import Benchmark
from dojang.loop.health_check import HealthCheck
from dojang.loop.parity_check import ParityCheck
from dojang.loop.prompt_sampler import problem_at
from dojang.loop.rollout import sample_batch
from dojang.loop.rollout_workers import LocalWorkers
from dojang.loop.run import Run
from dojang.loop.run_state import State, load_state
from dojang.loop.stream_producer import StreamProducer
from dojang.loop.train import train
from dojang.loop.update import has_gradient, update
from dojang.protocols import RolloutEngine, Trainer
from dojang.track.file_tracker import FileTracker
from dojang.trainer.config import CriticConfig, TrainConfig
from dojang.trainer.critic import Critic
from dojang.trainer.thread_trainer import ThreadTrainer
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Completion, Group, Message, Metrics, Outcome, Problem, Sample, Sampling, Verdict
from dojang.weight_sync.versions import WeightVersions
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.single_turn import SingleTurn
from scripted_engine import ScriptedEngine

Grade = Callable[[Problem, str], Awaitable[Verdict]]
Script = Callable[[str, int, Sampling], str]

TRAIN = [Problem(f"train/{at}", "toys", (Message("user", f"toy {at}"),), None) for at in range(5)]
TEST = [Problem(f"test/{at}", "toys", (Message("user", f"test {at}"),), None) for at in range(3)]
EVAL_SEED = 2**32


class GradedBy:
    """A task made of one function."""

    def __init__(self, grade: Grade) -> None:
        self._grade = grade

    def problems(self, split: str) -> Sequence[Problem]:
        return TRAIN if split == "train" else TEST

    async def grade(self, problem: Problem, text: str) -> Verdict:
        return await self._grade(problem, text)


class Noted:
    """An engine that notes when a request has been answered."""

    def __init__(self, engine: RolloutEngine, events: list[str]) -> None:
        self._engine = engine
        self._events = events

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        completions = await self._engine.generate(prompt, n, sampling)
        self._events.append("generated")
        return completions

    async def load(self, version: int) -> None:
        await self._engine.load(version)

    async def close(self) -> None:
        await self._engine.close()


def accepted(yes: bool) -> Verdict:
    return Verdict(Outcome.ACCEPTED, 1.0, passed=1) if yes else Verdict(Outcome.WRONG, 0.0)


async def by_parity(problem: Problem, text: str) -> Verdict:
    """About half of what a random model writes."""
    return accepted(sum(text.encode()) % 2 == 0)


async def says_good(problem: Problem, text: str) -> Verdict:
    return accepted(text == "good")


def mixed(prompt: str, index: int, sampling: Sampling) -> str:
    return "good" if index % 2 else "bad"


@pytest.fixture
def make_run(
    micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> Callable[..., Run]:
    """Wires a run; with a `script` the engine says that, without one it samples from the model."""

    def make(
        name: str = "run",
        *,
        grade: Grade = says_good,
        script: Script | None = mixed,
        events: list[str] | None = None,
        max_num_seqs: int = 64,
        steps: int = 2,
        prompts_per_step: int = 3,
        minibatches: int = 1,
        eval_every: int = 1,
        save_every: int = 1,
        patience_steps: int = 10,
        max_resample_rounds: int = 0,
        lag: int = 0,
        overlap: bool = False,
        stream: bool = False,
        algo: PolicyGradientConfig | None = None,
        warmup: int = 0,
        ranking: CheckpointRanking = CheckpointRanking(),  # noqa: B008 -- frozen
    ) -> Run:
        weights = WeightVersions(torch.float64, keep=lag + 1)
        algorithm = (algo or GrpoConfig(max_resample_rounds=max_resample_rounds)).make(max_tokens=9)
        settings = TrainConfig(lr=1e-2, minibatches=minibatches, critic=CriticConfig(lr=1e-2, warmup_steps=warmup))
        critic = None
        if algorithm.requirements.critic:
            critic = Critic(micro_model(torch.float64), algorithm, settings, compute=torch.float64)
        engine: RolloutEngine
        if script is None:
            engine = TorchEngine(micro_model(torch.float64), tokenizer, weights, max_num_seqs=max_num_seqs)
        else:
            engine = ScriptedEngine(tokenizer, script)
        if events is not None:
            engine = Noted(engine, events)
        task = GradedBy(grade)
        renderer = ChatRenderer(tokenizer, context=512, max_tokens=8)

        def workflow(samples: int, temperature: float, seed: int) -> SingleTurn:
            sampling = Sampling(temperature, max_tokens=8, seed=seed)
            return SingleTurn(engine, task, renderer, group_size=samples, sampling=sampling)

        directory = RunDir(tmp_path / name)
        directory.path.mkdir(exist_ok=True)
        trainer: Trainer = TorchTrainer(
            micro_model(torch.float64),
            None,
            tokenizer,
            algorithm,
            weights,
            settings,
            total_updates=steps * minibatches,
            max_tokens=9,
            temperature=1.0,
            compute=torch.float64,
            critic=critic,
            token_values=True,
        )
        if lag or overlap or stream:
            trainer = ThreadTrainer(trainer, torch.device("cpu"))
        sampled = workflow(4, 1.0, 0)

        def problem(prompt_index: int) -> Problem:
            return problem_at(TRAIN, 0, prompt_index)

        return Run(
            seed=0,
            steps=steps,
            prompts_per_step=prompts_per_step,
            minibatches=minibatches,
            eval_every=eval_every,
            save_every=save_every,
            problems=TRAIN,
            held_out=TEST,
            workflow=sampled,
            eval_workflow=workflow(1, 0.0, EVAL_SEED),
            engine=engine,
            algorithm=algorithm,
            trainer=trainer,
            tracker=FileTracker(directory, tokenizer),
            health=HealthCheck(HealthConfig(patience_steps=patience_steps)),
            directory=directory,
            lag=lag,
            workers=[LocalWorkers(sampled, engine, problem)] if stream else [],
            critic=critic is not None,
            ranking=ranking,
        )

    return make


def play(run: Run, state: State | None = None, stop: asyncio.Event | None = None) -> State:
    async def to_the_end() -> State:
        try:
            return await train(run, state or State(), stop or asyncio.Event())
        finally:
            await run.engine.close()

    return asyncio.run(asyncio.wait_for(to_the_end(), timeout=60))


def rows(run: Run) -> list[dict[str, float]]:
    return [json.loads(line) for line in run.directory.metrics.read_text().splitlines()]


def training_rows(run: Run) -> list[dict[str, float]]:
    return [row for row in rows(run) if "critic/rewards/mean" in row]


def torch_trainer(run: Run) -> TorchTrainer:
    trainer = run.trainer._trainer if isinstance(run.trainer, ThreadTrainer) else run.trainer
    assert isinstance(trainer, TorchTrainer)
    return trainer


def parameters(run: Run) -> dict[str, torch.Tensor]:
    """Of the policy."""
    return {name: each.detach().clone() for name, each in torch_trainer(run)._model.named_parameters()}


def opinions(run: Run) -> list[torch.Tensor]:
    """The parameters of the critic, if there is one."""
    critic = torch_trainer(run)._critic
    return [] if critic is None else [each.detach().clone() for each in critic._value_model.parameters()]


def linked(run: Run, name: str) -> str:
    return (run.directory.checkpoints / name).resolve().name


def test_problems_that_cannot_teach_are_replaced_by_others(make_run: Callable[..., Run]) -> None:
    """All answers to two problems of three are good; of those posed instead, one can teach, and then another."""
    asked: list[str] = []

    def script(prompt: str, index: int, sampling: Sampling) -> str:
        if sampling.temperature and index == 0:
            asked.append(prompt)
        return "bad" if index % 2 and len(asked) in (1, 4, 6) else "good"

    run = make_run(script=script, steps=1, max_resample_rounds=3)
    state = play(run)
    assert len(asked) == state.prompt_index == 6  # 3, then the 2 that were missing, then 1
    assert len(set(asked)) == len(TRAIN) == 5  # the sixth is the first of another pass
    (row,) = training_rows(run)
    assert row["groups/total"] == 6
    assert row["groups/zero_variance"] == 3


def test_there_is_an_end_to_posing_more(make_run: Callable[..., Run]) -> None:
    run = make_run(script=lambda *_: "good", steps=1, max_resample_rounds=2, prompts_per_step=2)
    assert play(run).prompt_index == 6


def test_grading_goes_on_while_other_problems_are_still_being_generated(make_run: Callable[..., Run]) -> None:
    events: list[str] = []

    async def noted(problem: Problem, text: str) -> Verdict:
        events.append("graded")
        return await by_parity(problem, text)

    run = make_run(script=None, grade=noted, events=events, max_num_seqs=4, prompts_per_step=5, steps=1)
    play(run)
    training = events[2 * len(TEST) : -2 * len(TEST)]  # an evaluation before and one after
    assert training.count("generated") == 5
    assert training.count("graded") == 20
    last_generated = len(training) - 1 - training[::-1].index("generated")
    assert training.index("graded") < last_generated


def test_a_run_learns_and_records_every_step(make_run: Callable[..., Run]) -> None:
    run = make_run(script=None, grade=by_parity, steps=3, eval_every=2)
    before = parameters(run)
    state = play(run)
    assert (state.step, state.prompt_index) == (3, 9)
    assert sorted(state.scores) == [0, 2, 3]
    assert [row["step"] for row in training_rows(run)] == [1, 2, 3]
    assert [row["step"] for row in rows(run) if "val/accuracy/toys" in row] == [0, 2, 3]
    assert all(row["groups/zero_variance"] < row["groups/total"] == 3 for row in training_rows(run))
    assert any(not torch.equal(value, before[name]) for name, value in parameters(run).items())
    for step in (1, 2, 3):
        table = pq.read_table(run.directory.rollouts("train", step)).to_pylist()
        assert len(table) == 12
        assert {row["version"] for row in table} == {step - 1}  # on-policy: drawn from the newest weights
        assert {row["prompt_index"] for row in table} == set(range(3 * step - 3, 3 * step))


def test_the_trainers_values_of_each_token_are_recorded(make_run: Callable[..., Run]) -> None:
    run = make_run(script=None, grade=by_parity, minibatches=2)
    play(run)
    for step in (1, 2):
        table = pq.read_table(run.directory.token_values("train", step)).to_pylist()
        found = {(row["prompt_index"], row["index"], row["role"], row["turn"]): row for row in table}
        for row in pq.read_table(run.directory.rollouts("train", step)).to_pylist():
            values = found.pop((row["prompt_index"], row["index"], row["role"], row["turn"]), None)
            if values is None:  # its minibatch had no gradient
                assert row["advantage"] == 0
                continue
            assert len(values["trainer_logprobs"]) == len(values["entropies"]) == row["response_length"]
            if row["index"] == 0 and row["prompt_index"] % 3 == 0:  # in the first minibatch: engine and trainer agree
                sampled = [each for each, chosen in zip(row["logprobs"], row["mask"], strict=True) if chosen]
                assert values["trainer_logprobs"] == pytest.approx(sampled, abs=1e-5)
            assert min(values["entropies"]) > 0
        assert not found


def test_on_policy_log_probs_are_those_of_the_trainer(make_run: Callable[..., Run]) -> None:
    run = make_run(script=None, grade=by_parity, steps=2)
    play(run)
    for row in training_rows(run):
        assert row["actor/logp_gap"] == pytest.approx(0.0, abs=1e-10)
        assert row["actor/logprob_diff/mean"] == pytest.approx(0.0, abs=1e-10)
        assert row["actor/logprob_diff/max"] == pytest.approx(0.0, abs=1e-9)
        assert row["actor/pg_clipfrac"] == 0.0


def test_a_pair_that_does_not_agree_is_refused_before_anything_runs(
    make_run: Callable[..., Run], tokenizer: PreTrainedTokenizerBase
) -> None:
    def checked(run: Run) -> Run:
        renderer = ChatRenderer(tokenizer, context=512, max_tokens=8)
        parity_check = ParityCheck(run.engine, run.trainer, renderer, run.problems, Sampling(1.0, 8), tolerance=1e-6)
        return replace(run, parity_checks=[parity_check])

    play(checked(make_run("good", script=None, grade=by_parity, steps=1)))
    broken = checked(make_run("broken", grade=by_parity, steps=1))  # its engine says it was sure of every token
    with pytest.raises(TrainingError, match=r"log-probs differ by \d.* on average and \d.* at most, where 1e-06"):
        play(broken)
    assert not (broken.directory.path / "metrics.jsonl").exists()


def test_an_engine_that_has_the_weights_already_is_not_sent_them(make_run: Callable[..., Run]) -> None:
    def published(run: Run) -> bool:
        play(run)
        assert isinstance(run.trainer, TorchTrainer)
        try:
            return bool(run.trainer._weights.fetch(0))
        except LookupError:
            return False

    assert published(make_run("others", steps=0))
    assert not published(replace(make_run(steps=0), weights_synced=True))
    assert published(
        replace(make_run(steps=0), weights_synced=True)
    )  # a checkpoint is there: those may be other weights


def test_groups_whose_rewards_are_equal_are_counted_and_left_out(make_run: Callable[..., Run]) -> None:
    def script(prompt: str, index: int, sampling: Sampling) -> str:
        return mixed(prompt, index, sampling) if "toy 3" in prompt else "bad"

    run = make_run(script=script, steps=1, prompts_per_step=5)
    play(run)
    [row] = training_rows(run)
    assert (row["groups/total"], row["groups/zero_variance"]) == (5.0, 4.0)
    alone = replace(make_run("alone", script=script, steps=1), problems=[TRAIN[3]], prompts_per_step=1)
    play(alone)
    for name, value in parameters(run).items():
        assert torch.equal(value, parameters(alone)[name])


def one_of_five(prompt: str, index: int, sampling: Sampling) -> str:
    return mixed(prompt, index, sampling) if "toy 3" in prompt else "bad"


def trained_on(run: Run) -> list[int]:
    """Number of groups that each optimizer step has been given."""
    counts, forward_backward = list[int](), run.trainer.forward_backward

    async def counted(groups: Sequence[Group]) -> Metrics:
        counts.append(len(groups))
        return await forward_backward(groups)

    run.trainer.forward_backward = counted  # type: ignore[method-assign]
    play(run)
    return counts


def test_a_loss_with_other_terms_trains_on_groups_whose_rewards_are_equal(make_run: Callable[..., Run]) -> None:
    everywhere = [
        make_run(
            f"pull-{pull}", script=one_of_five, steps=1, prompts_per_step=5, minibatches=5, algo=DppoConfig(pull=pull)
        )
        for pull in (0.0, 0.1)
    ]
    assert [trained_on(run) for run in everywhere] == [[5], [1] * 5]
    filtered = make_run(
        "max_resample_rounds",
        script=one_of_five,
        steps=1,
        prompts_per_step=5,
        algo=DppoConfig(pull=0.1, max_resample_rounds=1),
    )
    assert trained_on(filtered) == [2]  # dynamic sampling: one of the first five groups, and one of four more


def test_steps_without_a_group_to_train_on_count_in_the_schedule(make_run: Callable[..., Run]) -> None:
    run = make_run(script=one_of_five, steps=2, prompts_per_step=5, minibatches=5)
    assert isinstance(run.trainer, TorchTrainer)
    run.trainer._config = TrainConfig(lr=1e-2, schedule="linear", minibatches=5)
    play(run)
    assert [row["actor/lr"] for row in training_rows(run)] == pytest.approx([1e-2, 5e-3])


def test_a_step_without_any_signal_changes_no_weights(make_run: Callable[..., Run]) -> None:
    run = make_run(script=lambda prompt, index, sampling: "good", steps=2, prompts_per_step=5)
    before = parameters(run)
    state = play(run)
    assert state.step == 2
    assert [row["groups/zero_variance"] for row in training_rows(run)] == [5.0, 5.0]
    assert not any(name.startswith("actor/") for row in training_rows(run) for name in row)
    for name, value in parameters(run).items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("minibatches", [1, 2, 3])
def test_updates_is_the_number_of_optimizer_steps_per_batch(make_run: Callable[..., Run], minibatches: int) -> None:
    run = make_run(minibatches=minibatches, steps=2, prompts_per_step=3)
    play(run)
    assert torch_trainer(run)._updates == 2 * minibatches


def test_hopeless_rewards_end_the_run_before_they_are_learned_from(make_run: Callable[..., Run]) -> None:
    run = make_run(script=lambda prompt, index, sampling: "bad", patience_steps=2, steps=5)
    with pytest.raises(HealthError, match="in the last 2 steps no group had rewards that differ"):
        play(run)
    assert [row["step"] for row in training_rows(run)] == [1]


def test_judge_errors_are_counted_and_never_trained_on(make_run: Callable[..., Run]) -> None:
    async def moody(problem: Problem, text: str) -> Verdict:
        if text == "lost":
            return Verdict(Outcome.JUDGE_ERROR, None, detail="the judge is moody")
        return accepted(text == "good")

    def script(prompt: str, index: int, sampling: Sampling) -> str:
        return ("good", "lost", "bad", "bad")[index]

    run = make_run(script=script, grade=moody, steps=1)
    play(run)
    [row] = training_rows(run)
    assert row["judge/errors"] == 3.0
    table = pq.read_table(run.directory.rollouts("train", 1)).to_pylist()
    assert [row["index"] for row in table] == [0, 2, 3, 1] * 3  # the judged ones first
    lost = [row for row in table if row["response"] == "lost"]
    assert [(row["outcome"], row["reward"], row["advantage"]) for row in lost] == [("judge_error", None, 0.0)] * 3


def test_stopping_abandons_the_step_saves_and_raises(make_run: Callable[..., Run]) -> None:
    stop = asyncio.Event()

    async def never_ends(problem: Problem, text: str) -> Verdict:
        if problem in TRAIN and len(posed) >= 2 * 3 * 2:  # the third step: two different answers to each problem
            stop.set()
            await asyncio.sleep(3600)
        if problem in TRAIN:
            posed.append(problem)
        return accepted(text == "good")

    posed: list[Problem] = []
    run = make_run(grade=never_ends, steps=10, save_every=100, eval_every=100)
    with pytest.raises(Interrupted, match="stopped after step 2 of 10; everything is saved"):
        play(run, stop=stop)
    assert linked(run, "last") == "step-000002"
    assert load_state(run.directory.checkpoints / "last", run.health, run.problem).prompt_index == 6


def test_stopping_before_the_first_evaluation_leaves_something_to_resume(make_run: Callable[..., Run]) -> None:
    async def started_and_stopped(problem: Problem, text: str) -> Verdict:
        stop.set()
        await asyncio.sleep(3600)
        raise AssertionError

    stop = asyncio.Event()
    run = make_run(grade=started_and_stopped)
    with pytest.raises(Interrupted, match="stopped after step 0 of 2"):
        play(run, stop=stop)
    again = make_run()
    state = load_state(again.directory.checkpoints / "last", again.health, again.problem)
    assert state == State()
    assert play(again, state).step == 2


@pytest.mark.parametrize("algo", [GrpoConfig(), PpoConfig(lam=0.9)], ids=["grpo", "ppo"])
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_resumed_run_is_the_run_that_was_never_interrupted(
    make_run: Callable[..., Run], lag: int, algo: PolicyGradientConfig
) -> None:
    settings: dict[str, Any] = {
        "algo": algo,
        "script": None,
        "steps": 4,
        "eval_every": 2,
        "save_every": 2,
        "prompts_per_step": 3,
        "minibatches": 2,
        "lag": lag,
    }
    whole = make_run("whole", grade=by_parity, **settings)
    finished = play(whole)

    async def stops(problem: Problem, text: str) -> Verdict:
        graded.append(text)
        if len(graded) > len(TEST) + 12 * 2 + len(TEST) + 12:  # in the fourth step
            stop.set()
        return await by_parity(problem, text)

    graded: list[str] = []
    stop = asyncio.Event()
    first = make_run("parts", grade=stops, **settings)
    with pytest.raises(Interrupted):
        play(first, stop=stop)
    second = make_run("parts", grade=by_parity, **settings)
    found = second.directory.last_checkpoint()
    assert found is not None
    state = load_state(found, second.health, second.problem)
    assert 1 <= state.step <= 4
    second.directory.rewind(state.step, state.evaluated())
    asyncio.run(second.trainer.restore(found))
    assert play(second, state) == finished
    for name, value in parameters(whole).items():
        assert torch.equal(value, parameters(second)[name]), name
    torch.testing.assert_close(opinions(whole), opinions(second), rtol=0, atol=0)
    assert figures(whole) == figures(second)
    for step in range(1, 5):
        assert pq.read_table(whole.directory.rollouts("train", step)).equals(
            pq.read_table(second.directory.rollouts("train", step))
        )


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_batch_k_is_sampled_with_version_k_minus_lag(make_run: Callable[..., Run], lag: int) -> None:
    run = make_run(script=None, grade=by_parity, steps=5, minibatches=2, lag=lag, overlap=True, eval_every=3)
    learned: list[tuple[int, set[int]]] = []
    trainer = torch_trainer(run)
    forward_backward = trainer.forward_backward

    async def noted(groups: Sequence[Group]) -> Metrics:
        versions = {span.version for group in groups for sample in group.samples for span in sample.spans}
        learned.append((trainer._updates, versions))
        return await forward_backward(groups)

    trainer.forward_backward = noted  # type: ignore[method-assign]
    state = play(run)
    assert (state.step, state.prompt_index) == (5, 15)  # as many prompts as without a lag
    assert learned == [(2 * batch + at, {max(0, batch - lag)}) for batch in range(5) for at in range(2)]
    assert [row["staleness/max"] for row in training_rows(run)] == [min(batch, lag) for batch in range(5)]


def rollouts(run: Run) -> list[Any]:
    return [pq.read_table(run.directory.rollouts("train", at + 1)).to_pylist() for at in range(run.steps)]


def figures(run: Run) -> list[dict[str, float]]:
    """All metrics but times."""
    return [
        {name: value for name, value in row.items() if not name.startswith(("timing_s", "perf"))} for row in rows(run)
    ]


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_overlapping_changes_nothing_but_the_order_of_work(make_run: Callable[..., Run], lag: int) -> None:
    """The oracle is the definition, one thing at a time: batch k is sampled with version k - lag, then trained on."""
    run = make_run("overlap", script=None, grade=by_parity, steps=4, lag=lag, overlap=True, eval_every=2)
    play(run)
    plain = make_run("plain", script=None, grade=by_parity, steps=4, lag=lag, eval_every=2)
    trainer, batches = torch_trainer(plain), dict[int, list[Group]]()

    async def one_at_a_time() -> None:
        await trainer.publish(0)
        for version in range(4):
            await plain.engine.load(version)
            for batch in range(len(batches), min(4, version + lag + 1)):
                batches[batch], _ = await sample_batch(plain, 3 * batch)
            groups = compute_advantages(plain.algorithm, batches[version])
            plain.tracker.groups(version + 1, "train", groups)
            await update(plain, groups)
            await trainer.publish(version + 1)
        await plain.engine.close()

    asyncio.run(one_at_a_time())
    for name, value in parameters(plain).items():
        assert torch.equal(value, parameters(run)[name]), name
    assert rollouts(run) == rollouts(plain)


def test_lag_0_is_the_synchronous_run_bit_for_bit(make_run: Callable[..., Run]) -> None:
    runs = [make_run(str(overlap), script=None, grade=by_parity, steps=3, overlap=overlap) for overlap in (False, True)]
    states = [play(run) for run in runs]
    assert states[0] == states[1]
    assert figures(runs[0]) == figures(runs[1])
    assert rollouts(runs[0]) == rollouts(runs[1])
    for name, value in parameters(runs[0]).items():
        assert torch.equal(value, parameters(runs[1])[name]), name


def test_the_next_batch_is_sampled_while_the_trainer_works(make_run: Callable[..., Run]) -> None:
    run = make_run(script=None, grade=by_parity, steps=3, lag=1, eval_every=10, save_every=10)
    trainer = torch_trainer(run)
    forward_backward, sampled = trainer.forward_backward, threading.Event()
    generate = run.engine.generate

    async def noted(prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        found = await generate(prompt, n, sampling)
        if sampling.prompt_index == 5 and sampling.seed != EVAL_SEED:  # the last prompt of the second batch
            sampled.set()
        return found

    async def waits(groups: Sequence[Group]) -> Metrics:
        assert sampled.wait(20), "the second batch was not sampled during the first update"
        return await forward_backward(groups)

    run.engine.generate = noted  # type: ignore[method-assign]
    trainer.forward_backward = waits  # type: ignore[method-assign]
    assert play(run).step == 3


def test_an_error_of_the_rollouts_ends_the_run(make_run: Callable[..., Run]) -> None:
    run = make_run(script=None, grade=by_parity, steps=3, lag=1)
    load = run.engine.load

    async def fails(version: int) -> Metrics | None:
        if version == 1:
            raise RuntimeError("the engine is lost")
        return await load(version)

    run.engine.load = fails  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the engine is lost"):
        play(run)


def test_a_resumed_run_may_have_another_lag(make_run: Callable[..., Run]) -> None:
    stop = asyncio.Event()

    async def stops(problem: Problem, text: str) -> Verdict:
        if problem in TRAIN and (graded := next(count)) > 40:
            stop.set()
            assert graded < 200, "the run does not stop"
        return await by_parity(problem, text)

    count = itertools.count()
    first = make_run(grade=stops, script=None, steps=9, lag=3, eval_every=9, save_every=9)
    with pytest.raises(Interrupted):
        play(first, stop=stop)
    found = first.directory.last_checkpoint()
    assert found is not None
    for lag in (0, 4):
        again = make_run(f"lag-{lag}", grade=by_parity, script=None, steps=9, lag=lag, overlap=True, eval_every=9)
        state = load_state(found, again.health, again.problem)
        assert len(state.pending) == 3
        asyncio.run(again.trainer.restore(found))
        assert play(again, state).prompt_index == 27


def test_last_and_best_are_kept_and_nothing_else(make_run: Callable[..., Run]) -> None:
    # Right on the held-out problems after the first and the third step, wrong otherwise.
    evaluations = iter([False, True, False, True, False])
    now = [False]

    def script(prompt: str, index: int, sampling: Sampling) -> str:
        if sampling.seed != EVAL_SEED:
            return mixed(prompt, index, sampling)
        if "test 0" in prompt:
            now[0] = next(evaluations)
        return "good" if now[0] else "bad"

    run = make_run(script=script, steps=4)
    state = play(run)
    assert state.scores == {0: 0.0, 1: 1.0, 2: 0.0, 3: 1.0, 4: 0.0}
    assert linked(run, "best") == "step-000003"  # ties go to the later step
    assert linked(run, "last") == "step-000004"
    kept = sorted(path.name for path in run.directory.checkpoints.iterdir())
    assert kept == ["best", "last", "step-000003", "step-000004"]


def test_the_best_step_is_saved_even_when_no_save_is_due(make_run: Callable[..., Run]) -> None:
    def script(prompt: str, index: int, sampling: Sampling) -> str:
        if sampling.seed != EVAL_SEED:
            training.append(prompt)
            return mixed(prompt, index, sampling)
        return "good" if len(training) == 1 * 3 * 4 else "bad"

    training: list[str] = []
    run = make_run(script=script, steps=3, save_every=100)
    play(run)
    assert linked(run, "best") == "step-000001"
    assert linked(run, "last") == "step-000003"


@pytest.mark.parametrize("answer", ["bad", "good"])
@pytest.mark.parametrize("count", [1, 2])
def test_where_accuracy_never_changes_the_model_trained_longest_is_the_best(
    make_run: Callable[..., Run], answer: str, count: int
) -> None:
    run = make_run(
        script=lambda prompt, index, sampling: answer if sampling.seed == EVAL_SEED else mixed(prompt, index, sampling),
        steps=3,
        save_every=100,
        ranking=CheckpointRanking(count=count),
    )
    play(run)
    assert linked(run, "best") == linked(run, "last") == "step-000003"
    assert kept(run) == [2, 3][-count:]


EXTRA = [Problem(f"extra/{at}", "books", (Message("user", f"extra {at}"),), "") for at in range(2)]


def with_benchmark(run: Run, every: int = 2) -> Run:
    return replace(run, benchmarks=[Benchmark("extra", every, EXTRA, run.eval_workflow)])


def test_benchmarks_are_evaluated_at_their_own_steps_and_count_into_nothing_else(make_run: Callable[..., Run]) -> None:
    def script(prompt: str, index: int, sampling: Sampling) -> str:
        return "good" if "extra 0" in prompt else "bad" if "extra" in prompt else mixed(prompt, index, sampling)

    plain = make_run("plain", script=script, steps=5, eval_every=3)
    run = with_benchmark(make_run("more", script=script, steps=5, eval_every=3))
    play(plain)
    state = play(run)
    found = [row for row in rows(run) if "timing_s/eval/extra" in row]
    assert [row["step"] for row in found] == [0, 2, 4, 5]
    assert all(
        row.keys()
        == {"step", "val/accuracy/extra", "val/test_score/extra", "val/judge_errors/extra", "timing_s/eval/extra"}
        for row in found
    )
    assert {(row["val/accuracy/extra"], row["val/test_score/extra"]) for row in found} == {(0.5, 0.5)}
    assert state.benchmarks == {"extra": dict.fromkeys((0, 2, 4, 5), 0.5)}
    held_out = [
        [(row["step"], row["val/accuracy"], row["val/reward"]) for row in rows(each) if "val/accuracy" in row]
        for each in (plain, run)
    ]
    assert held_out[0] == held_out[1]
    assert [step for step, *_ in held_out[1]] == [0, 3, 5]
    table = pq.read_table(run.directory.rollouts("test-extra", 4)).to_pylist()
    assert [(row["problem"], row["data_source"], row["outcome"]) for row in table] == [
        *(("extra/0", "books", "accepted"), ("extra/1", "books", "wrong"))
    ]


def test_checkpoints_can_be_ranked_by_a_benchmark(make_run: Callable[..., Run]) -> None:
    right = iter([0, 2, 1, 0])  # after steps 0, 2, 4 and 5

    def script(prompt: str, index: int, sampling: Sampling) -> str:
        if "extra 0" in prompt:
            now[0] = next(right)
        if "extra" in prompt:
            return "good" if int(prompt.split("extra ")[1][0]) < now[0] else "bad"
        return mixed(prompt, index, sampling)

    now = [0]
    run = with_benchmark(
        make_run(
            script=script,
            steps=5,
            eval_every=100,
            save_every=100,
            ranking=CheckpointRanking("val/accuracy/extra", count=2),
        )
    )
    play(run)
    assert linked(run, "best") == "step-000002"
    assert kept(run) == [2, 4, 5]


@pytest.mark.parametrize("at", range(1, 9))
def test_a_run_stopped_while_it_evaluates_on_a_benchmark_goes_on_exactly(make_run: Callable[..., Run], at: int) -> None:
    settings = {"steps": 3, "eval_every": 2, "save_every": 1, "script": None}
    whole = with_benchmark(make_run("whole", grade=by_parity, **settings), every=1)
    finished = play(whole)
    stop, asked = asyncio.Event(), [0]

    async def stops(problem: Problem, text: str) -> Verdict:
        asked[0] += problem.id.startswith("extra")
        if asked[0] == at:
            stop.set()
        return await by_parity(problem, text)

    first = with_benchmark(make_run("parts", grade=stops, **settings), every=1)
    with pytest.raises(Interrupted):
        play(first, stop=stop)
    second = with_benchmark(make_run("parts", grade=by_parity, **settings), every=1)
    last = second.directory.last_checkpoint()
    assert last is not None
    state = load_state(last, second.health, second.problem)
    second.directory.rewind(state.step, state.evaluated())
    asyncio.run(second.trainer.restore(last))
    assert play(second, state) == finished

    def recorded(run: Run) -> list[dict[str, float]]:
        return [
            {name: value for name, value in row.items() if not name.startswith(("timing_s", "perf"))}
            for row in rows(run)
        ]

    assert recorded(second) == recorded(whole)
    assert sorted(path.name for path in (second.directory.path / "rollouts").iterdir()) == sorted(
        path.name for path in (whole.directory.path / "rollouts").iterdir()
    )


def scored(scores: Sequence[int]) -> Script:
    """Right on so many of the three held-out problems after each step, and in training as often as at the last one."""
    evaluations = iter(scores)
    now = [0]

    def script(prompt: str, index: int, sampling: Sampling) -> str:
        if sampling.seed != EVAL_SEED:
            return "good" if index <= now[0] else "bad"
        if "test 0" in prompt:
            now[0] = next(evaluations)
        return "good" if int(prompt.split("test ")[1][0]) < now[0] else "bad"

    return script


def kept(run: Run) -> list[int]:
    return sorted(run.directory.saved())


@pytest.mark.parametrize(
    ("ranking", "first", "survive"),
    [
        (CheckpointRanking(), 3, [3, 6]),
        (CheckpointRanking(count=2), 3, [3, 5, 6]),  # of three equals the latest
        (CheckpointRanking(count=3), 3, [3, 4, 5, 6]),
        (CheckpointRanking(mode="min", count=2), 2, [2, 6]),
        (CheckpointRanking("val/accuracy/toys", count=2), 3, [3, 5, 6]),
    ],
)
def test_as_many_of_the_best_are_kept_as_asked_for(
    make_run: Callable[..., Run], ranking: CheckpointRanking, first: int, survive: list[int]
) -> None:
    run = make_run(script=scored([1, 2, 0, 3, 2, 2, 1]), steps=6, save_every=100, ranking=ranking)
    play(run)
    assert kept(run) == survive
    assert linked(run, "best") == f"step-{first:06d}"
    assert linked(run, "last") == "step-000006"


@pytest.mark.parametrize(("mode", "first", "survive"), [("max", 4, [2, 4, 7]), ("min", 7, [6, 7])])
def test_a_figure_of_training_chooses_among_the_checkpoints_there_are(
    make_run: Callable[..., Run], mode: str, first: int, survive: list[int]
) -> None:
    # In step 1 as many are right as at the evaluation before it, and so on. Step 4 is saved, steps 3 and 5 are not.
    run = make_run(
        script=scored([1, 1, 2, 2, 2, 0, 0, 0]),
        steps=7,
        save_every=2,
        ranking=CheckpointRanking("critic/rewards/mean", mode, 2),
    )
    saved: list[int] = []
    save = run.trainer.save

    async def noted(path: Path) -> None:
        saved.append(int(path.name.split("-")[1].removesuffix(".tmp")))
        await save(path)

    run.trainer.save = noted  # type: ignore[method-assign]
    play(run)
    rewards = {int(row["step"]): row["critic/rewards/mean"] for row in training_rows(run)}
    assert rewards == {1: 0.5, 2: 0.5, 3: 0.75, 4: 0.75, 5: 0.75, 6: 0.25, 7: 0.25}
    assert saved == [0, 2, 4, 6, 7]
    assert kept(run) == survive
    assert linked(run, "best") == f"step-{first:06d}"


def test_a_resumed_run_keeps_what_the_uninterrupted_one_keeps(make_run: Callable[..., Run]) -> None:
    scores = [1, 2, 0, 3, 2, 2, 1]
    settings = {"save_every": 100, "ranking": CheckpointRanking(count=2)}
    whole = make_run("whole", script=scored(scores), steps=6, **settings)
    play(whole)
    for stop in range(1, 6):
        name = f"parts-{stop}"
        first = make_run(name, script=scored(scores), steps=stop, **settings)
        play(first)
        second = make_run(name, script=scored(scores[stop + 1 :]), steps=6, **settings)
        found = second.directory.last_checkpoint()
        assert found is not None
        asyncio.run(second.trainer.restore(found))
        play(second, load_state(found, second.health, second.problem))
        assert kept(second) == kept(whole)
        assert linked(second, "best") == linked(whole, "best")


def test_another_metric_chooses_anew_when_a_run_is_resumed(make_run: Callable[..., Run]) -> None:
    play(make_run(script=scored([1, 3, 2]), steps=2, ranking=CheckpointRanking(count=3)))
    again = make_run(script=scored([2]), steps=3, ranking=CheckpointRanking("val/accuracy", "min", 1))
    found = again.directory.last_checkpoint()
    assert found is not None
    state = load_state(found, again.health, again.problem)
    asyncio.run(again.trainer.restore(found))
    play(replace(again, steps=2), state)
    assert linked(again, "best") == "step-000000"  # at once, and nothing is deleted yet
    assert kept(again) == [0, 1, 2]
    again = make_run(script=scored([2]), steps=3, ranking=CheckpointRanking("val/accuracy", "min", 1))
    asyncio.run(again.trainer.restore(found))
    play(again, state)
    assert kept(again) == [0, 3]


def test_a_metric_that_nothing_on_disk_has_leaves_the_old_best_where_it_is(make_run: Callable[..., Run]) -> None:
    run = make_run(script=scored([1, 3, 2]), steps=2)
    state = play(run)
    for path in run.directory.saved().values():  # as before there was a choice
        saved = json.loads((path / "state.json").read_text())
        del saved["figures"]
        (path / "state.json").write_text(json.dumps(saved))
    again = make_run(script=scored([2]), steps=3, eval_every=100, ranking=CheckpointRanking("actor/loss", "min"))
    asyncio.run(again.trainer.restore(again.directory.checkpoints / "last"))
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(Interrupted):
        play(again, state, stop)
    assert linked(again, "best") == "step-000001"
    asyncio.run(again.trainer.restore(again.directory.checkpoints / "last"))
    again = make_run(script=scored([2]), steps=3, ranking=CheckpointRanking("actor/loss", "min"))
    play(again, state)
    assert linked(again, "best") == "step-000003"
    assert kept(again) == [3]


@pytest.mark.parametrize(
    ("metric", "steps", "words"),
    [
        ("val/accuracy/toy", [0], "Did you mean val/accuracy/toys"),
        ("critic/reward/mean", [0, 1], "Did you mean critic/rewards/mean"),
        ("nonsense", [0, 1], "This run reports: actor/.* val/accuracy"),
    ],
)
def test_a_metric_there_is_not_ends_the_run_as_soon_as_it_is_known(
    make_run: Callable[..., Run], metric: str, steps: list[int], words: str
) -> None:
    run = make_run(ranking=CheckpointRanking(metric), steps=9)
    with pytest.raises(ConfigError, match=f"checkpoint.metric={metric} is no metric of this run.*{words}"):
        play(run)
    assert [row["step"] for row in rows(run)] == steps


def test_figures_of_the_weights_way_are_recorded_and_are_no_learning(make_run: Callable[..., Run]) -> None:
    """A step that taught nothing has no figures of learning, and that is no mistake in checkpoint.metric."""
    run = make_run(ranking=CheckpointRanking("actor/loss", "min"), script=lambda *_: "good", steps=1)
    load = run.engine.load

    async def told(version: int) -> dict[str, float]:
        await load(version)
        return {"weights/bytes": 7.0}

    run.engine.load = told  # type: ignore[method-assign]
    play(run)
    assert [row.get("weights/bytes") for row in training_rows(run)] == [7.0]
    assert "actor/loss" not in training_rows(run)[0]


def test_a_crash_between_a_checkpoint_and_its_links_is_mended(make_run: Callable[..., Run]) -> None:
    scores = [1, 3, 2, 3]
    ranking = CheckpointRanking(count=2)
    run = make_run(script=scored(scores), steps=3, ranking=ranking)

    def crash(name: str, step: int) -> None:
        if step == 3:
            raise SystemExit(9)
        RunDir.point(run.directory, name, step)

    run.directory.point = crash  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        play(run)
    assert (linked(run, "best"), linked(run, "last")) == ("step-000001", "step-000002")
    again = make_run(steps=3, ranking=ranking)
    found = again.directory.last_checkpoint()
    assert found is not None
    assert found.name == "step-000003"
    asyncio.run(again.trainer.restore(found))
    play(again, load_state(found, again.health, again.problem))
    assert (linked(again, "best"), linked(again, "last")) == ("step-000003", "step-000003")  # a tie: the later step


def test_a_finished_run_has_nothing_left_to_do(make_run: Callable[..., Run]) -> None:
    run = make_run(steps=1)
    state = play(run)
    again = make_run(steps=1)
    recorded = again.directory.metrics.read_text()
    asyncio.run(again.trainer.restore(again.directory.checkpoints / "last"))
    assert play(again, load_state(again.directory.checkpoints / "last", again.health, again.problem)) == state
    assert again.directory.metrics.read_text() == recorded


def test_links_that_a_crash_left_behind_are_mended(make_run: Callable[..., Run]) -> None:
    run = make_run(steps=2)
    state = play(run)
    ranking = linked(run, "best")
    for name in ("last", "best"):
        (run.directory.checkpoints / name).unlink()
    again = make_run(steps=2)
    found = again.directory.last_checkpoint()
    assert found is not None
    asyncio.run(again.trainer.restore(found))
    play(again, load_state(found, again.health, again.problem))
    assert linked(again, "last") == f"step-{state.step:06d}"
    if ranking == linked(run, "last"):
        assert linked(again, "best") == ranking


def test_a_run_that_is_past_its_last_step_just_ends(make_run: Callable[..., Run]) -> None:
    play(make_run(steps=3))
    shorter = make_run(steps=2)
    found = shorter.directory.last_checkpoint()
    assert found is not None
    assert play(shorter, load_state(found, shorter.health, shorter.problem)).step == 3


def test_what_teaches_is_what_the_algorithm_credits(
    make_run: Callable[..., Run], make_group: Callable[..., Group]
) -> None:
    run, everybody_right = make_run(), make_group([1.0, 1.0])
    assert not has_gradient(run, everybody_right)
    credited = replace(everybody_right, samples=tuple(replace(each, advantage=0.5) for each in everybody_right.samples))
    assert has_gradient(run, credited)  # an algorithm with a baseline of its own may have something to say
    with_critic = make_run("critic", algo=PpoConfig())
    assert has_gradient(with_critic, everybody_right)
    assert not has_gradient(with_critic, make_group([], errors=["lost"]))


def alike_within_groups(prompt: str, index: int, sampling: Sampling) -> str:
    return "good" if "toy 3" in prompt else "bad"


def test_with_a_critic_all_groups_teach(make_run: Callable[..., Run]) -> None:
    run = make_run(script=alike_within_groups, algo=PpoConfig(), steps=3, prompts_per_step=5, patience_steps=2)
    before, opinion = parameters(run), opinions(run)
    play(run)  # the gate sees rewards that differ, if only from problem to problem
    assert any(not torch.equal(value, before[name]) for name, value in parameters(run).items())
    assert all(not torch.equal(*both) for both in zip(opinions(run), opinion, strict=True))
    for row in training_rows(run):
        assert row["groups/zero_variance"] == 0.0
        assert row["critic/returns/mean"] == pytest.approx(0.2, abs=0.1)  # of tokens, so not quite a fifth
        assert row["critic/advantages/mean"] == pytest.approx(0.0, abs=1e-9)
        assert row["critic/advantages/min"] < 0 < row["critic/advantages/max"]
        assert {"critic/vf_loss", "critic/vf_clipfrac", "critic/grad_norm", "critic/values/mean"} <= set(row)


def test_rewards_that_are_all_alike_are_hopeless_to_a_critic_too(make_run: Callable[..., Run]) -> None:
    run = make_run(script=lambda *_: "bad", algo=PpoConfig(), patience_steps=2, steps=5)
    with pytest.raises(HealthError, match=r"no group had rewards that differ \(they were all 0\)"):
        play(run)


def test_the_critic_is_asked_just_before_it_learns(make_run: Callable[..., Run]) -> None:
    """What waits knows nothing of it; what is learned from knows what it thought before the first of two updates."""
    run = make_run(script=None, grade=by_parity, algo=PpoConfig(), steps=3, minibatches=2, lag=1)
    events: list[tuple[str, int]] = []
    trainer = torch_trainer(run)
    compute_values, forward_backward = trainer.compute_values, trainer.forward_backward

    async def compute_values_logged(samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        assert not any(sample.values.size or sample.advantages.size or sample.returns.size for sample in samples)
        events.append(("compute_values", trainer._updates))
        return await compute_values(samples)

    async def learned(groups: Sequence[Group]) -> Metrics:
        assert all(len(each.advantages) == len(each.tokens) for group in groups for each in group.samples)
        events.append(("learn", trainer._updates))
        return await forward_backward(groups)

    trainer.compute_values = compute_values_logged  # type: ignore[method-assign]
    trainer.forward_backward = learned  # type: ignore[method-assign]
    play(run)
    assert events == [
        (what, at + more) for at in (0, 2, 4) for what, more in (("compute_values", 0), ("learn", 0), ("learn", 1))
    ]


def test_while_the_critic_warms_up_the_policy_stays_as_it_is(make_run: Callable[..., Run]) -> None:
    run = make_run(script=None, grade=by_parity, algo=PpoConfig(), steps=2, warmup=2)
    before, opinion = parameters(run), opinions(run)
    play(run)
    torch.testing.assert_close(parameters(run), before, rtol=0, atol=0)
    assert all(not torch.equal(*both) for both in zip(opinions(run), opinion, strict=True))
    assert [row["version"] for row in pq.read_table(run.directory.rollouts("train", 2)).to_pylist()] == [1] * 12


def prompts_of(run: Run) -> list[int]:
    """Prompt index of every group that was trained on, step by step."""
    return [index for step in rollouts(run) for index in dict.fromkeys(row["prompt_index"] for row in step)]


def test_a_streaming_run_names_workers_that_have_not_started(make_run: Callable[..., Run]) -> None:
    class Waiting(LocalWorkers):
        def describe(self) -> str:
            return "rollout worker 2 of 2 not started"

    run = make_run(script=None, grade=by_parity, steps=1, stream=True)
    (workers,) = run.workers
    assert isinstance(workers, LocalWorkers)
    waiting = Waiting(workers._workflow, workers._engine, workers._problem)

    async def described() -> str:
        async with StreamProducer(replace(run, workers=[*run.workers, waiting]), State(), loaded=None) as producer:
            await run.trainer.publish(0)
            await producer.announce(0)
            return producer.describe()

    said = asyncio.run(described())
    assert said.startswith("batch 0 lacks ")
    assert said.endswith("; rollout worker 2 of 2 not started")


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_streaming_run_trains_every_prompt_once_within_the_lag(make_run: Callable[..., Run], lag: int) -> None:
    run = make_run(script=None, grade=by_parity, steps=5, lag=lag, stream=True, eval_every=3)
    state = play(run)
    assert (state.step, state.prompt_index) == (5, 15)
    assert prompts_of(run) == list(range(15))
    assert all(row["staleness/max"] <= lag for row in training_rows(run))
    assert [row["rollout_queue/learned"] for row in training_rows(run)] == [0, 3, 6, 9, 12]
    versions = [{row["version"] for row in step} for step in rollouts(run)]
    assert all(step - lag <= min(found) <= max(found) <= step for step, found in enumerate(versions))


def test_dynamic_sampling_replaces_groups_of_a_streaming_run(make_run: Callable[..., Run]) -> None:
    def script(prompt: str, index: int, sampling: Sampling) -> str:
        return "bad" if index % 2 and sampling.prompt_index % 2 else "good"  # even prompts have no signal

    run = make_run(script=script, steps=2, lag=1, stream=True, max_resample_rounds=3, eval_every=9)
    play(run)
    assert prompts_of(run) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert [row["groups/zero_variance"] for row in training_rows(run)] == [3, 3]


def test_a_streaming_run_goes_on_after_a_stop_and_after_a_kill(make_run: Callable[..., Run]) -> None:
    """All prompts are trained on once, and groups judged after the checkpoint are not sampled again."""
    stop = asyncio.Event()
    count = itertools.count()

    async def stops(problem: Problem, text: str) -> Verdict:
        if problem in TRAIN and next(count) == 40:
            stop.set()
        return await by_parity(problem, text)

    settings: dict[str, Any] = {"script": None, "steps": 8, "lag": 2, "stream": True, "eval_every": 8}
    first = make_run(grade=stops, save_every=2, **settings)
    with pytest.raises(Interrupted):
        play(first, stop=stop)
    second = make_run(grade=by_parity, save_every=2, **settings)
    found = second.directory.last_checkpoint()
    assert found is not None
    state = load_state(found, second.health, second.problem)
    assert state.ledger is not None
    second.directory.rewind(state.step, state.evaluated())
    asyncio.run(second.trainer.restore(found))

    class Killed(BaseException):
        """Nothing is saved after it."""

    publish = second.trainer.publish

    async def killed(version: int) -> None:
        if version == state.step + 3:
            raise Killed
        await publish(version)

    second.trainer.publish = killed  # type: ignore[method-assign]
    with pytest.raises(Killed):
        play(second, state)
    third = make_run(grade=by_parity, save_every=2, **settings)
    found = third.directory.last_checkpoint()
    assert found is not None
    state = load_state(found, third.health, third.problem)
    third.directory.rewind(state.step, state.evaluated())
    asyncio.run(third.trainer.restore(found))
    finished = play(third, state)
    assert (finished.step, finished.prompt_index) == (8, 24)
    assert prompts_of(third) == list(range(24))
    assert all(row["staleness/max"] <= 2 for row in training_rows(third))


def test_a_run_can_be_resumed_in_another_mode(make_run: Callable[..., Run]) -> None:
    for first, second in (({"lag": 2}, {"lag": 1, "stream": True}), ({"lag": 2, "stream": True}, {"lag": 1})):
        name = f"stream-{'stream' in first}"
        play(make_run(name, script=None, grade=by_parity, steps=3, **first))
        again = make_run(name, script=None, grade=by_parity, steps=6, **second)
        found = again.directory.last_checkpoint()
        assert found is not None
        state = load_state(found, again.health, again.problem)
        asyncio.run(again.trainer.restore(found))
        assert play(again, state).step == 6
        assert prompts_of(again) == list(range(18))


def test_an_error_of_a_streaming_rollout_ends_the_run(make_run: Callable[..., Run]) -> None:
    def script(prompt: str, index: int, sampling: Sampling) -> str:
        if sampling.prompt_index == 4 and sampling.seed != EVAL_SEED:
            raise RuntimeError("the engine is lost")
        return mixed(prompt, index, sampling)

    with pytest.raises(RuntimeError, match="the engine is lost"):
        play(make_run(script=script, steps=3, lag=1, stream=True))
