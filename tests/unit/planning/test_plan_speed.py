"""Seconds against what was measured on an H200, and what they must not do."""

from dataclasses import replace

import pytest
from plan_subjects import H200_QWEN25, H200_SMOLLM2, subject

from dojang.planning.efficiency import PRODUCTS
from dojang.planning.estimate import estimate
from dojang.planning.instances import INSTANCES, find_instance
from dojang.planning.shapes import Shape, find_shape
from dojang.planning.speed import Machine, generate_s, optimizer_s, update_s
from dojang.planning.tokens_per_step import Lengths

H200 = INSTANCES["h200"]
QWEN3_06B = Shape(1024, 28, 16, 8, 128, 3072, 151936, 2048, "qwen3", tied=True)


@pytest.mark.parametrize(
    ("shape", "rows", "context", "ms"),
    [  # docs/performance.md
        (H200_SMOLLM2, 1, 256, 0.789),
        (H200_SMOLLM2, 64, 1024, 1.265),
        (H200_SMOLLM2, 512, 512, 2.823),
        (H200_SMOLLM2, 2048, 1024, 13.653),
        (H200_QWEN25, 8, 512, 0.994),
        (H200_QWEN25, 512, 1024, 3.657),
        (H200_QWEN25, 2048, 256, 6.594),
        (QWEN3_06B, 1, 256, 1.372),
        (QWEN3_06B, 512, 1024, 15.635),
    ],
)
def test_decoding_steps_took_about_what_is_planned(shape: Shape, rows: int, context: int, ms: float) -> None:
    assert 1e3 * Machine(H200).decode_s(shape, rows, context) == pytest.approx(ms, rel=0.13)


@pytest.mark.parametrize(
    ("shape", "prompts", "prompt", "length", "micro", "recompute", "seconds"),
    [  # docs/training.md: 512 samples of 256 tokens, or 8 of 8192
        (H200_SMOLLM2, 64, 48, 256, 14633, "false", 1.35),
        (H200_QWEN25, 64, 48, 256, 14624, "false", 2.27),
        (H200_SMOLLM2, 1, 512, 8192, 8704, "true", 1.19),
        (H200_QWEN25, 1, 512, 8192, 8704, "true", 1.82),
    ],
)
def test_updates_took_about_what_is_planned(
    shape: Shape, prompts: int, prompt: int, length: int, micro: int, recompute: str, seconds: float
) -> None:
    settings = (
        f"rollout.prompts_per_step={prompts}",
        f"rollout.max_tokens={length}",
        f"train.max_tokens_per_microbatch={micro}",
    )
    asked = subject(
        "smollm2-code",
        *settings,
        f"train.gradient_checkpointing={recompute}",
        shape=shape,
        prompt=prompt,
        longest_prompt=prompt,
    )
    found, player = estimate(asked, H200), asked.planned_models()["policy"]
    planned = update_s(Machine(H200), player, found.work, "policy", found.layout)
    planned += optimizer_s(Machine(H200), player, shape.parameters, found.layout)
    assert planned == pytest.approx(seconds, rel=0.1)


def test_layers_with_gradient_checkpointing_save_memory_and_take_time() -> None:
    def planned(setting: str) -> tuple[float, float]:
        asked = subject("smollm2-code", f"train.gradient_checkpointing={setting}", shape=H200_SMOLLM2)
        found = estimate(asked, H200)
        seconds = update_s(Machine(H200), asked.planned_models()["policy"], found.work, "policy", found.layout)
        return seconds, found.needs.parts["activations"]

    some = [planned(setting) for setting in ("0", "10", "20", "30")]
    assert some == sorted(some)
    assert [memory for _, memory in some] == sorted((memory for _, memory in some), reverse=True)
    assert (some[0], some[-1]) == (planned("false"), planned("true"))


def test_the_rollouts_of_the_benchmark_took_about_what_is_planned() -> None:
    times = estimate(subject("smollm2-code", "rollout.max_tokens=256", shape=H200_SMOLLM2), H200).times
    assert times.answered / times.generate == pytest.approx(252_000, rel=0.15)


def test_fewer_slots_and_longer_answers_take_longer() -> None:
    machine, lengths = Machine(H200), Lengths(48, 64, 128, 256)
    few, many = (generate_s(machine, H200_SMOLLM2, lengths, 512, 64, slots) for slots in (32, 512))
    assert few > many
    longer = generate_s(machine, H200_SMOLLM2, replace(lengths, answer=256), 512, 64, 512)
    assert longer > many


def test_a_step_is_the_sum_of_its_parts_and_a_run_of_its_steps() -> None:
    times = estimate(subject("smollm2-code"), H200).times
    assert times.step == pytest.approx(times.rollout + times.update + times.publish)
    assert times.evaluations == 7
    assert 3600 * times.hours == pytest.approx(60 * times.step + 7 * times.evaluation)
    assert times.usd is None


def test_cost_is_price_times_hours_times_machines() -> None:
    asked = subject("codefu-7b-stage1")
    two = estimate(asked, INSTANCES["p4de.24xlarge"], nodes=2)
    assert two.times.usd == pytest.approx(2 * 27.44705 * two.times.hours)
    dear = estimate(asked, INSTANCES["p4de.24xlarge"].priced(100.0), nodes=2)
    assert dear.times.usd == pytest.approx(200 * two.times.hours)


def test_judging_takes_cores() -> None:
    few, many = (estimate(subject("smollm2-code"), INSTANCES[name]).times for name in ("g6.xlarge", "g6.4xlarge"))
    assert few.judge == pytest.approx(4 * many.judge)
    elsewhere = estimate(subject("smollm2-code", "judge.url=[http://there:8642]"), INSTANCES["g6.xlarge"]).times
    assert elsewhere.judge == 0


def test_judging_overlaps_with_generation() -> None:
    times = estimate(subject("smollm2-code", "rollout.engine.max_num_seqs=64"), H200).times
    assert times.waves == 8
    assert times.rollout == pytest.approx(max(times.judge, times.generate + times.judge / 8))


def test_extra_passes_cost_time() -> None:
    def learn(*settings: str) -> float:
        return estimate(subject("smollm2-gsm8k", *settings), H200).times.update

    plain = learn()
    for setting in (
        "algo.kl_coef=0.1",
        "algo.name=m2po",
        "algo.name=ppo",
        "train.gradient_checkpointing=true",
        "train.offload=[optimizer]",
    ):
        assert learn(setting) > plain, setting
    assert learn("train.lora={}", "train.gradient_checkpointing=false") < 1.5 * plain


def test_slow_links_are_seen() -> None:
    asked = subject("codefu-7b-post", "runtime={name: ray, trainers: 4, engines: 4}")
    fast, slow = (estimate(asked, INSTANCES[name]).times.update for name in ("p5.48xlarge", "g6e.48xlarge"))
    assert slow > 3 * fast


def test_instances_are_found_by_sagemakers_name_too() -> None:
    assert find_instance("ml.p4de.24xlarge") is INSTANCES["p4de.24xlarge"]


def test_benchmarks_count_into_the_hours() -> None:
    """In 100 steps there are 5 evaluations: before, after 25, 50 and 75, and after the last."""
    benchmark = "eval.benchmarks.extra={data: {name: arithmetic}, problems: 256, samples: 2, temperature: 1.0}"
    plain, more = (
        estimate(subject("quickstart", "steps=100", "eval.problems=64", *overrides), H200).times
        for overrides in ([], [benchmark])
    )
    assert 3600 * (more.hours - plain.hours) == pytest.approx(5 * 256 * 2 * plain.evaluation / 64)


def test_sft_trains_on_one_completion_per_row_and_samples_in_evaluations_alone() -> None:
    few, many = (estimate(subject("quickstart-sft", f"rollout.group_size={n}"), H200) for n in (1, 8))
    assert few.times == many.times
    assert few.work.sequences == 64
    assert few.times.rollout == 0
    assert few.times.evaluation > 0


@pytest.mark.parametrize(
    ("recipe", "machine"),
    [(("codefu-7b-stage1", "rollout.max_tokens=512"), "p5.48xlarge"), (("smollm2-gsm8k",), "h200")],
)
def test_a_local_teacher_reads_every_token_once(recipe: tuple[str, ...], machine: str) -> None:
    """2 x parameters x tokens: the products of a forward pass. Attention (little, in short sequences), activations
    and kernels come on top."""
    name = "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"
    shape, _ = find_shape(name)
    assert shape is not None
    plain = estimate(subject(*recipe), INSTANCES[machine])
    taught = estimate(subject(*recipe, f"distillation={{teacher: {name}}}"), INSTANCES[machine])
    assert plain.layout.gpu is not None
    tokens = plain.work.read("policy")
    flops = 1e12 * plain.layout.gpu.tflops * PRODUCTS * plain.layout.ranks
    products = 2 * shape.parameters * tokens / flops
    assert 0.9 * products < taught.times.teacher < 2 * products  # the embedding is no product
    assert taught.times.update == pytest.approx(plain.times.update)
    assert taught.times.step - plain.times.step == pytest.approx(taught.times.teacher)
    assert taught.times.as_json()["teacher_s"] == taught.times.teacher
    assert plain.times.teacher == 0


def test_a_teacher_of_the_size_of_a_reference_model_takes_as_long() -> None:
    policy = "Qwen/Qwen2.5-0.5B"
    plain, reference, teacher, own = (
        estimate(subject("smollm2-gsm8k", f"model.name={policy}", *settings), H200).times
        for settings in (
            (),
            ("algo.kl_coef=0.1",),
            (f"distillation={{teacher: {policy}}}",),
            ("distillation={teacher: policy, hint: '{reference}'}",),
        )
    )
    assert teacher.teacher == pytest.approx(reference.update - plain.update, rel=0.01)
    assert own.teacher == teacher.teacher


def test_a_teacher_on_servers_takes_no_time_here() -> None:
    times = estimate(subject("smollm2-gsm8k", "distillation={url: [http://there:8000]}"), H200).times
    assert times.teacher == 0


def test_the_teacher_overlaps_with_rollouts_like_the_update() -> None:
    name = "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"
    times = estimate(subject("smollm2-gsm8k", f"distillation={{teacher: {name}}}"), H200).times
    assert times.overlap_gain == pytest.approx(times.step / max(times.rollout, times.teacher + times.update))
