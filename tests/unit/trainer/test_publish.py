"""Publishing with LoRA: the same weights as ever, and never a second model in memory."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase

from dojang.algos.grpo import GrpoConfig
from dojang.core.checksum import checksum
from dojang.core.lazy_weights import LazyWeights, joined
from dojang.engine.generate_engine import GenerateEngine
from dojang.engine.torch_engine import TorchEngine
from dojang.engine.weight_update import load_weights
from dojang.trainer.config import LoraConfig, TrainConfig
from dojang.trainer.quantization import dequantized, load_quantised
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group
from dojang.weight_sync.pack import encode_parts
from dojang.weight_sync.versions import WeightVersions
from dojang.weight_sync.weight_files import WeightFiles, read
from live_bytes import live_bytes
from weight_soak import DictEngine

pytest.importorskip("peft")

# Each weight has few of all numbers.
CONFIG = LlamaConfig(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=24,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
    initializer_range=0.1,
    pad_token_id=0,
)
MERGED = 64 * 160
"""Numbers of the largest weight with an adapter."""
LORA = LoraConfig(rank=1, alpha=4)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., tuple[TorchTrainer, WeightVersions]]:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIG).save_pretrained(tmp_path / "base")

    def make(
        lora: LoraConfig = LORA, dtype: torch.dtype = torch.float32, published: torch.dtype | None = None, **store: Any
    ) -> tuple[TorchTrainer, WeightVersions]:
        if lora.base_bits == 4:
            pytest.importorskip("bitsandbytes")
            model = load_quantised(str(tmp_path / "base"), dtype, torch.device("cpu"))
        else:
            model = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=dtype).eval()
        weights = WeightVersions(published or dtype, **store)
        trainer = TorchTrainer(
            model,
            None,
            None,  # type: ignore[arg-type]  # for saving only
            GrpoConfig().make(max_tokens=9),
            weights,
            TrainConfig(lr=1e-2, lora=lora),
            total_updates=10,
            max_tokens=9,
            temperature=1.0,
            compute=dtype,
        )
        shake(trainer)
        return trainer, weights

    return make


def shake(trainer: TorchTrainer) -> None:
    """Changes everything that is trained."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for each in trainer._trainable():
            each += 0.1 * torch.randn(each.shape, generator=draw).to(each.dtype)


def publish(trainer: TorchTrainer, version: int) -> None:
    asyncio.run(trainer.publish(version))


def merged_at_once(trainer: TorchTrainer, dtype: torch.dtype) -> dict[str, Tensor]:
    """All weights with the adapters merged, as peft's layers say."""
    found = {}
    layers = {f"{name}.base_layer": each for name, each in trainer._model.named_modules() if hasattr(each, "lora_A")}
    for name, parameter in trainer._model.named_parameters():
        if ".lora_" in name:
            continue
        weight, layer = dequantized(parameter), layers.get(name.removesuffix(".weight"))
        if parameter.requires_grad:
            weight = weight.to(trainer._model.dtype)
        if layer is not None:
            b, a = (each["default"].weight.detach() for each in (layer.lora_B, layer.lora_A))
            weight = (weight.to(b.dtype) + (b * layer.scaling["default"]) @ a).to(weight.dtype)
        found[name.replace(".base_layer.", ".")] = weight.to(dtype, copy=True)
    return found


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(("bits", "full"), [(16, ()), (4, ()), (16, ("embed_tokens", "norm"))])
@pytest.mark.parametrize(
    ("dtype", "published"),
    [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16)],
)
def test_published_weights_are_those_merged_at_once(
    make: Callable[..., Any], bits: int, full: tuple[str, ...], dtype: torch.dtype, published: torch.dtype
) -> None:
    lora = LORA.model_copy(update={"base_bits": bits, "modules_to_save": full})
    trainer, store = make(lora, dtype, published)
    publish(trainer, 0)
    expected = merged_at_once(trainer, published)
    found = store.fetch(0)
    assert isinstance(found, LazyWeights)
    assert same(found, expected)
    assert store.checksum(0) == checksum(expected)
    for name, shaped in found.weights.items():
        assert (shaped.like.shape, shaped.like.dtype) == (expected[name].shape, expected[name].dtype)


@pytest.mark.parametrize("way", ["merged", "factors"])
@pytest.mark.parametrize("full", [(), ("embed_tokens",)])
def test_a_version_keeps_its_values_while_training_goes_on(
    make: Callable[..., Any], way: str, full: tuple[str, ...]
) -> None:
    if way == "factors" and full:
        return  # refused: factors cannot carry them
    trainer, store = make(LORA.model_copy(update={"publish": way, "modules_to_save": full}), keep=2, deltas=2)
    publish(trainer, 0)
    before = {name: each.clone() for name, each in store.fetch(0).items()}
    shake(trainer)
    publish(trainer, 1)
    assert same(store.fetch(0), before)
    assert not same(store.fetch(1), before)
    changes = store.changes(0, 1)
    assert changes is not None
    assert changes.checksum == checksum(store.fetch(1))


@pytest.mark.parametrize("way", ["merged", "factors"])
@pytest.mark.parametrize("bits", [16, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_publishing_and_loading_take_the_memory_of_few_tensors(
    make: Callable[..., Any], way: str, bits: int, dtype: torch.dtype
) -> None:
    trainer, store = make(LORA.model_copy(update={"publish": way, "base_bits": bits}), dtype)
    engine = DictEngine(merged_at_once(trainer, dtype))
    whole = sum(each.nbytes for each in engine.weights.values())
    factors = sum(each.nbytes for each in trainer._trainable())
    shake(trainer)
    with live_bytes() as counted:
        for version in range(2):
            publish(trainer, version)
            asyncio.run(load_weights(engine.begin, store, version, base=None))
    assert same(engine.weights, store.fetch(1))
    # Factors of two versions, and one weight: as stored, its factors' product, and merged. With publish=factors the
    # sum is in float64.
    assert counted.peak <= 2 * factors + (12 if way == "merged" else 28) * MERGED < 0.3 * whole
    with live_bytes() as at_once:
        kept = dict(store.fetch(1))
    assert at_once.now > 0.8 * whole
    assert same(kept, engine.weights)


def test_files_and_packs_are_made_one_tensor_at_a_time(make: Callable[..., Any], tmp_path: Path) -> None:
    trainer, store = make()
    publish(trainer, 0)
    files = WeightFiles(tmp_path / "files")
    (tmp_path / "files").mkdir()
    whole = sum(each.nbytes for each in merged_at_once(trainer, torch.float32).values())

    async def nothing(*_: Any) -> None:
        pass

    update = files.begin(0, None, nothing, lambda: None)
    with live_bytes() as counted:
        asyncio.run(update.send(store.fetch(0)))
        path = files.write(update)
    assert counted.peak <= 2 * 4 * MERGED < 0.05 * whole
    assert same(read([path]), store.fetch(0))
    parts = encode_parts(store.pack(0))
    assert sum(len(memoryview(each).cast("B")) for each in parts) > whole
    files.close()


def test_trainers_reserve_the_factors_of_versions_and_one_merged_weight(make: Callable[..., Any]) -> None:
    trainer, _ = make()
    factors = sum(each.nbytes for each in trainer._trainable())
    assert trainer._publisher.version_bytes() == factors
    assert trainer._publisher.shared_bytes() == 8 * 64 * 160


@pytest.mark.parametrize("kind", [TorchEngine, GenerateEngine])
def test_a_merge_that_fails_leaves_the_engine_dirty_until_full_weights_come(
    make: Callable[..., Any],
    tokenizer: PreTrainedTokenizerBase,
    kind: type[TorchEngine] | type[GenerateEngine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, store = make()
    model: PreTrainedModel = AutoModelForCausalLM.from_config(CONFIG).eval()
    engine = kind(model, tokenizer, store, max_num_seqs=2)
    held = engine._scheduler.weights if isinstance(engine, TorchEngine) else engine._parameters
    publish(trainer, 1)
    good = store.fetch(1)
    layer = "model.layers.3.mlp.up_proj.weight"

    def scarce() -> Tensor:
        raise torch.OutOfMemoryError("no memory to merge")

    async def play() -> None:
        broken = LazyWeights({**good.weights, layer: good.weights[layer]._replace(make=scarce)})
        monkeypatch.setattr(store, "fetch", lambda version: broken)
        with pytest.raises(Exception, match="no memory to merge"):
            await engine.load(1)
        assert "update to version 1 failed" in engine._dirty
        monkeypatch.setattr(store, "fetch", lambda version: good)
        await engine.load(1)
        assert engine._dirty == ""
        assert same(dict(held), dict(good))
        await engine.close()

    asyncio.run(play())


def test_a_wrong_shape_is_refused_before_anything_is_merged(make: Callable[..., Any]) -> None:
    trainer, store = make()
    publish(trainer, 0)
    engine = DictEngine({name: each.clone() for name, each in store.fetch(0).items()})
    before = checksum(engine.weights)
    name = "model.norm.weight"

    async def play() -> None:
        update = await engine.begin(1)
        with live_bytes() as counted, pytest.raises(ValueError, match=r"shape \[3\]; the engine has \[64\]"):
            await update.send(joined(store.fetch(0), {name: torch.empty(3, device="meta")}))
        assert counted.peak == 0
        assert (checksum(engine.weights), engine.dirty) == (before, False)

    asyncio.run(play())


def test_a_published_version_can_be_trained_from_again(
    make: Callable[..., Any], make_group: Callable[..., Group]
) -> None:
    trainer, store = make()
    publish(trainer, 0)
    asyncio.run(trainer.forward_backward([make_group((0.0, 1.0), advantage=1.0)]))
    before = {name: each.clone() for name, each in store.fetch(0).items()}
    asyncio.run(trainer.optim_step())
    assert same(store.fetch(0), before)
