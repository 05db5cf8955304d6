"""Adapters, on whole and on quantised weights; and other ways to need less memory."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from dojang import models
from dojang.algos.grpo import GrpoConfig
from dojang.core.errors import ConfigError
from dojang.runs.export import export
from dojang.trainer.config import LoraConfig, TrainConfig
from dojang.trainer.lora import Adapters
from dojang.trainer.quantization import load_quantised
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group, Problem, Sample
from dojang.weight_sync.versions import WeightVersions
from error_bounds import CLOSE
from tiny_models import MODELS

peft = pytest.importorskip("peft")

LORA = LoraConfig(rank=4, alpha=8)
SHAPES = ((3, 4), (3, 7), (6, 2), (6, 9))


class Store(WeightVersions):
    """That remembers what it was sent."""

    def __init__(self) -> None:
        super().__init__(torch.float32)
        self.sent: list[tuple[set[str], set[str]]] = []

    def publish(self, version: int, tensors: Mapping[str, Tensor], factors: Mapping[str, Any] = {}) -> None:
        self.sent.append((set(tensors), set(factors)))
        super().publish(version, tensors, factors)


def published(trainer: TorchTrainer, store: Store) -> Mapping[str, Tensor]:
    """Weights that an engine gets now."""
    asyncio.run(trainer.publish(9))
    return store.fetch(9)


@pytest.fixture
def folder(micro_model: Callable[..., PreTrainedModel], tmp_path: Path) -> Path:
    micro_model().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def make(folder: Path, tokenizer: PreTrainedTokenizerBase) -> Callable[..., TorchTrainer]:
    def make(lora: LoraConfig | None = LORA, kl: float = 0.0, store: Any = None, **settings: Any) -> TorchTrainer:
        quantised = lora is not None and lora.base_bits == 4
        if quantised:
            pytest.importorskip("bitsandbytes")
            model = load_quantised(str(folder), torch.float32, torch.device("cpu"))
        else:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() if kl and not lora else None
        return TorchTrainer(
            model,
            plain,
            tokenizer,
            GrpoConfig(kl_coef=kl).make(max_tokens=9),
            store or WeightVersions(torch.float32),
            TrainConfig(lr=1e-2, lora=lora, **settings),
            total_updates=10,
            max_tokens=9,
            temperature=0.8,
            compute=torch.float32,
            base=str(folder),
        )

    return make


@pytest.fixture
def groups(make_sample: Callable[..., Sample], problem: Problem) -> list[Group]:
    draw = torch.Generator().manual_seed(0)

    def numbers(count: int) -> list[int]:
        return torch.randint(5, 290, (count,), generator=draw).tolist()

    made = [
        make_sample(
            prompt=numbers(prompt),
            answer=numbers(answer),
            logprobs=[-6.0 + 0.1 * place for place in range(answer)],
            advantage=(-1.0) ** index * (index + 1) / 3,
        )
        for index, (prompt, answer) in enumerate(SHAPES)
    ]
    return [Group(problem, 0, tuple(made))]


def step(trainer: TorchTrainer, groups: list[Group]) -> dict[str, float]:
    async def both() -> dict[str, float]:
        return {**await trainer.forward_backward(groups), **await trainer.optim_step()}

    return asyncio.run(both())


def scores(trainer: TorchTrainer, groups: list[Group]) -> list[float]:
    found = asyncio.run(trainer.score(groups[0].samples))
    return [value for row in found for value in row]


def logits(model: Any, groups: list[Group]) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=torch.tensor(groups[0].samples[0].tokens[None])).logits
    return found


def test_adapters_begin_as_the_model_itself(make: Callable[..., TorchTrainer], groups: list[Group]) -> None:
    assert scores(make(), groups) == scores(make(lora=None), groups)


def test_their_gradient_is_that_of_the_product(make: Callable[..., TorchTrainer], groups: list[Group]) -> None:
    adapted, plain = make(), make(lora=None)
    for each in (adapted, plain):
        asyncio.run(each.forward_backward(groups))
    layers = {name: module for name, module in adapted._model.named_modules() if hasattr(module, "lora_A")}
    assert len(layers) == 2 * 7
    for name, layer in layers.items():
        full_tensor = plain._model.get_parameter(f"{name}.weight").grad
        assert full_tensor is not None
        expected = 2.0 * full_tensor @ layer.lora_A["default"].weight.T  # alpha / rank
        torch.testing.assert_close(
            layer.lora_B["default"].weight.grad, expected, rtol=0, atol=CLOSE * float(expected.detach().abs().max())
        )


@pytest.mark.parametrize("bits", [16, 4])
def test_recomputing_changes_no_gradient(make: Callable[..., TorchTrainer], groups: list[Group], bits: int) -> None:
    found = []
    for setting in (False, 1, True):
        trainer = make(lora=LORA.model_copy(update={"base_bits": bits}), gradient_checkpointing=setting)
        figures = asyncio.run(trainer.forward_backward(groups))
        found.append((figures, [each.grad for each in trainer._trainable()]))
    for figures, gradients in found[1:]:
        assert figures == found[0][0]
        torch.testing.assert_close(gradients, found[0][1], rtol=0, atol=0)


def test_only_adapters_learn_and_what_is_saved_is_pefts(
    make: Callable[..., TorchTrainer], groups: list[Group], folder: Path, tmp_path: Path
) -> None:
    trainer = make()
    for _ in range(2):
        step(trainer, groups)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, parameter in base.named_parameters():
        own = dict(trainer._adapters.base())[name]  # type: ignore[union-attr]
        assert torch.equal(own, parameter)
    asyncio.run(trainer.save(tmp_path / "saved"))
    assert not (tmp_path / "saved" / "model.safetensors").exists()
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "saved")
    merged = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    merged.load_state_dict(dict(trainer._adapters.merged()), strict=False)  # type: ignore[union-attr]
    torch.testing.assert_close(logits(loaded, groups), logits(merged, groups), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(merged, groups), logits(loaded.unload(), groups), atol=1e-3)


def test_the_reference_is_the_model_without_them(make: Callable[..., TorchTrainer], groups: list[Group]) -> None:
    adapted = make(kl=0.5)
    first = step(adapted, groups)
    assert first["actor/kl_loss"] == 0.0
    before = scores(make(lora=None), groups)
    now = scores(adapted, groups)
    chosen = [place for place, value in enumerate(before) if value]
    gaps = torch.tensor([before[place] - now[place] for place in chosen], dtype=torch.float64)
    second = step(adapted, groups)
    assert second["actor/kl_loss"] == pytest.approx(float((gaps.exp() - gaps - 1).mean()), rel=1e-3)
    assert second["actor/kl_loss"] > 0


@pytest.mark.parametrize("bits", [16, 4])
def test_engines_get_the_same_either_way(
    make: Callable[..., TorchTrainer], groups: list[Group], folder: Path, bits: int
) -> None:
    fetched, sent = {}, {}
    for way in ("merged", "factors"):
        store = Store()
        trainer = make(lora=LORA.model_copy(update={"publish": way, "base_bits": bits}), store=store)
        for version in range(3):
            asyncio.run(trainer.publish(version))
            step(trainer, groups)
        asyncio.run(trainer.publish(3))
        fetched[way] = store.fetch(3)
        sent[way] = store.sent
        # What the engine holds says of the samples what the trainer says of them.
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        missing, unexpected = model.load_state_dict(fetched[way], strict=False)
        assert not unexpected
        assert set(missing) <= {"lm_head.weight"}  # which is the embedding
        sample = groups[0].samples[0]
        logp = (logits(model, groups)[0, :-1] / 0.8).log_softmax(-1)
        own = logp.gather(-1, torch.tensor(sample.tokens[1:])[:, None])[-sample.response_length :, 0]
        theirs = asyncio.run(trainer.score([sample]))[0][-sample.response_length :]
        torch.testing.assert_close(own, torch.tensor(theirs), rtol=1e-4, atol=1e-4)
    assert fetched["merged"].keys() == fetched["factors"].keys()
    for name, tensor in fetched["merged"].items():
        torch.testing.assert_close(tensor, fetched["factors"][name], rtol=1e-5, atol=1e-6)
    everything = set(fetched["merged"])
    assert sent["merged"] == [(everything, set())] * 4
    projections = {name for name in everything if name.endswith("_proj.weight")}
    assert sent["factors"] == [(everything, projections)] + [(set(), projections)] * 3


@pytest.mark.parametrize(
    "settings",
    [{}, {"lora": LORA.model_copy(update={"base_bits": 4})}, {"lora": None, "optimizer": "adamw8bit"}],
    ids=["lora", "qlora", "8 bits"],
)
def test_restored_adapters_continue_bit_exactly(
    make: Callable[..., TorchTrainer], groups: list[Group], tmp_path: Path, settings: dict[str, Any]
) -> None:
    if settings:
        pytest.importorskip("bitsandbytes")
    full_tensor, before, after = (make(**settings) for _ in range(3))
    expected = [step(full_tensor, groups) for _ in range(3)]
    for _ in range(2):
        step(before, groups)
    asyncio.run(before.save(tmp_path / "saved"))
    asyncio.run(after.restore(tmp_path / "saved"))
    assert step(after, groups) == expected[2]
    assert scores(after, groups) == scores(full_tensor, groups)


def test_forward_passes_without_gradients_leave_4_bit_weights_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """On processors with AVX512-BF16 bitsandbytes would replace them by less precise ones."""
    modules = pytest.importorskip("bitsandbytes.nn.modules")
    monkeypatch.setattr(modules, "has_avx512bf16", lambda: True)
    model = load_quantised(str(models.resolve("dojang-tiny")), torch.float32, torch.device("cpu")).eval()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    tokens = torch.arange(5, 25)[None]
    with torch.no_grad():
        found = model(input_ids=tokens).logits
    assert torch.equal(found, model.train()(input_ids=tokens).logits.detach())
    after = model.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())


def test_eight_bits_suffice_to_learn(make: Callable[..., TorchTrainer], groups: list[Group]) -> None:
    pytest.importorskip("bitsandbytes")
    precise, coarse = make(lora=None), make(lora=None, optimizer="adamw8bit")
    losses = {
        name: [step(each, groups)["actor/loss"] for _ in range(6)]
        for name, each in (("precise", precise), ("coarse", coarse))
    }
    fall = {name: found[0] - found[-1] for name, found in losses.items()}
    assert fall["coarse"] == pytest.approx(fall["precise"], rel=0.2)
    kept = {
        value.dtype
        for state in coarse._optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.numel() >= 4096
    }
    assert torch.uint8 in kept


def test_offload_does_not_change_updates(make: Callable[..., TorchTrainer], groups: list[Group]) -> None:
    here, away = make(lora=None, kl=0.1), make(lora=None, kl=0.1, offload=("optimizer", "reference"))
    for _ in range(3):
        assert step(here, groups) == step(away, groups)


@pytest.mark.filterwarnings("ignore:The following .* keys did not match")
def test_adapters_on_experts_are_refused() -> None:
    with torch.device("meta"), pytest.raises(ConfigError, match=r"layers\.0\.mlp\.experts, a stack of experts"):
        Adapters(MODELS["qwen3_moe"](), LoraConfig(), "")


def test_unknown_target_modules_are_refused(make: Callable[..., TorchTrainer]) -> None:
    with pytest.raises(ConfigError, match=r"train.lora.target_modules=\['nothing'\] do not fit the model"):
        make(lora=LoraConfig(target_modules=("nothing",)))


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "model.embed_tokens"])
def test_heads_and_embeddings_are_refused(make: Callable[..., TorchTrainer], target: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"train.lora.target_modules has {target.rpartition('.')[2]}; only projections"
    ):
        make(lora=LoraConfig(target_modules=(target, "q_proj")))


@pytest.mark.parametrize("bits", [16, 4])
def test_the_exported_model_is_the_trained_one(
    make: Callable[..., TorchTrainer], groups: list[Group], tmp_path: Path, bits: int
) -> None:
    store = Store()
    trainer = make(lora=LORA.model_copy(update={"base_bits": bits}), store=store)
    for _ in range(2):
        step(trainer, groups)
    asyncio.run(trainer.save(tmp_path / "saved"))
    export(tmp_path / "saved", tmp_path / "out", precision="float32", which=None)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    for name, tensor in published(trainer, store).items():
        torch.testing.assert_close(exported.get_parameter(name).detach(), tensor, rtol=1e-5, atol=1e-6)


FULL = LORA.model_copy(update={"modules_to_save": ("lm_head", "embed_tokens")})


@pytest.mark.parametrize("bits", [16, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_modules_to_save_are_trained_published_saved_and_exported(
    make: Callable[..., TorchTrainer], groups: list[Group], folder: Path, tmp_path: Path, bits: int, tied: bool
) -> None:
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    plain.config.tie_word_embeddings = tied
    if not tied:
        plain.lm_head.weight = torch.nn.Parameter(plain.get_input_embeddings().weight.detach().flip(0).clone())
    plain.save_pretrained(folder)
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    store, lora = Store(), FULL.model_copy(update={"base_bits": bits})
    trainer = make(lora, store=store)
    names = {"model.embed_tokens.weight"} | (set() if tied else {"lm_head.weight"})
    for _ in range(2):
        step(trainer, groups)
    sent = published(trainer, store)
    assert set(sent) == {name for name, _ in plain.named_parameters()}
    for name in names:
        assert not torch.equal(sent[name], before[name]), name
    asyncio.run(trainer.save(tmp_path / "saved"))
    again = make(lora)
    asyncio.run(again.restore(tmp_path / "saved"))
    assert scores(again, groups) == scores(trainer, groups)
    assert step(again, groups) == step(trainer, groups)
    export(tmp_path / "saved", tmp_path / "out", precision="float32", which=None)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert (exported.lm_head.weight is exported.get_input_embeddings().weight) == tied
    for name, tensor in exported.named_parameters():
        torch.testing.assert_close(tensor, sent[name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_modules_to_save_are_read_by_peft(
    make: Callable[..., TorchTrainer], groups: list[Group], folder: Path, tmp_path: Path
) -> None:
    store = Store()
    trainer = make(FULL, store=store)
    step(trainer, groups)
    asyncio.run(trainer.save(tmp_path / "saved"))
    mine = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    mine.load_state_dict(dict(published(trainer, store)), strict=False)
    other = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(other, str(tmp_path / "saved"))
    torch.testing.assert_close(logits(theirs, groups), logits(mine, groups), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["norm", "layers.0.input_layernorm", "input_layernorm"])
def test_modules_to_save_with_equal_last_names_are_evaluated_and_exported(
    make: Callable[..., TorchTrainer], groups: list[Group], tmp_path: Path, name: str
) -> None:
    store = Store()
    trainer = make(LORA.model_copy(update={"modules_to_save": (name,)}), store=store)
    step(trainer, groups)
    sent = published(trainer, store)
    asyncio.run(trainer.save(tmp_path / "saved"))
    export(tmp_path / "saved", tmp_path / "out", precision="float32", which=None)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    for each, tensor in exported.named_parameters():
        torch.testing.assert_close(tensor, sent[each], rtol=1e-5, atol=1e-6, msg=each)


def test_a_kl_penalty_beside_modules_to_save_is_to_the_initial_model(
    make: Callable[..., TorchTrainer], groups: list[Group]
) -> None:
    with pytest.raises(ValueError, match="needs a reference model"):
        make(FULL, kl=0.1)


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ({"modules_to_save": ["nothing"]}, "has nothing, which the model does not have"),
        ({"modules_to_save": ["q_proj"]}, "is quantised or has an adapter"),
    ],
)
def test_modules_that_cannot_be_trained_in_full_are_refused(
    make: Callable[..., TorchTrainer], lora: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make(LoraConfig.model_validate(lora))


def test_factors_alone_cannot_carry_modules_trained_in_full() -> None:
    with pytest.raises(ValueError, match="use publish=merged"):
        LoraConfig(modules_to_save=("lm_head",), publish="factors")
