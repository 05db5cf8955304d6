"""Low-rank adapters (LoRA) on the projections of a frozen model, which may be kept in four bits (QLoRA).

    y = W x + scale * B A x          A and B are trained in float32; scale = alpha / rank

On disk an adapter is peft's: adapter_config.json and adapter_model.safetensors.
"""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from dojang.core.errors import ConfigError
from dojang.core.lazy_weights import LazyWeight, LazyWeights
from dojang.trainer.config import LoraConfig
from dojang.trainer.fsdp import full_tensor, is_sharded
from dojang.trainer.quantization import dequantized, dequantized_like

__all__ = ["BASE", "Adapters", "load_peft"]

_ADAPTER = "default"
_WEIGHTS = "adapter_model.safetensors"
BASE = "adapter_base.json"
"""File with the precision of the base weights."""


class Adapters:
    """LoRA adapters of one model; the constructor injects them."""

    def __init__(self, model: PreTrainedModel, config: LoraConfig, base: str) -> None:
        peft = load_peft("train.lora")
        _check_targets(model, config.target_modules)
        self._settings = peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            target_modules=list(config.target_modules) or "all-linear",
            base_model_name_or_path=base,
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)  # the same initial adapters in every run and on every rank
            try:
                peft.inject_adapter_in_model(self._settings, model)
            except ValueError as error:  # no such module
                raise ConfigError(
                    f"train.lora.target_modules={list(config.target_modules)} do not fit the model: {error}"
                ) from error
        shared = _unfreeze(model, config.modules_to_save, config.base_bits)
        self._settings.modules_to_save = _names_for_peft(model, shared) or None
        self._full = {f"{name}.{key}": each for name, some in shared.items() for key, each in some.items()}
        self._model, self._precision = model, model.dtype
        self._bits, self._dtype = config.base_bits, str(model.dtype).removeprefix("torch.")
        for _, parameter in self._trainable():
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
        self._gathered: dict[str, Tensor] = {}
        """Frozen weights that are sharded over the ranks, gathered once: they never change."""
        self._layers: dict[str, Any] = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, peft.tuners.lora.LoraLayer) and _ADAPTER in module.scaling
        }
        known = {name.replace(".base_layer.", ".") for name, _ in model.named_parameters()}
        if unmerged := [name for name in self._layers if f"{name}.weight" not in known]:
            raise ConfigError(
                f"train.lora would adapt {unmerged[0].removesuffix('.base_layer')}, a stack of experts, which cannot "
                "be merged; set train.lora.target_modules=[q_proj,k_proj,v_proj,o_proj]"
            )

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Disables the adapters: the frozen base model alone."""
        scales = {name: layer.scaling[_ADAPTER] for name, layer in self._layers.items()}
        for layer in self._layers.values():
            layer.scaling[_ADAPTER] = 0.0
        try:
            yield
        finally:
            for name, layer in self._layers.items():
                layer.scaling[_ADAPTER] = scales[name]

    def base(self, *, keep: bool = True) -> LazyWeights:
        """Full base weights without adapters, under their own names, as they are now: frozen ones are taken from the
        model, and dequantised, whenever they are read. All ranks must call this; those with `keep` get the weights."""
        found = {}
        for name, parameter in self._model.named_parameters():
            own = name.replace(".base_layer.", ".")
            if not parameter.requires_grad:
                found[own] = self._frozen(own, parameter, keep=keep)
            elif name in self._full:
                found[own] = _made(full_tensor(parameter.detach()).to(self._precision, copy=True))
        return LazyWeights(found if keep else {})

    def _frozen(self, name: str, parameter: Tensor, *, keep: bool) -> LazyWeight:
        if not is_sharded(parameter):
            return LazyWeight(dequantized_like(parameter), partial(dequantized, parameter))
        if name not in self._gathered:
            whole = full_tensor(parameter.detach())
            self._gathered[name] = whole if keep else whole.to("meta")
        return _made(self._gathered[name])

    def factors(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name of each adapted weight and the two factors of its update: scale * B, and A."""
        for name, layer in self._layers.items():
            b, a = (full_tensor(each[_ADAPTER].weight.detach()) for each in (layer.lora_B, layer.lora_A))
            yield f"{name}.weight", b * layer.scaling[_ADAPTER], a

    def merged(self, *, keep: bool = True) -> LazyWeights:
        """All weights with the adapters as they are now, each merged whenever it is read, so that no second model is
        held. All ranks must call this; those with `keep` get the weights."""
        added = {name: (b, a.clone()) for name, b, a in self.factors()}
        weights = dict(self.base(keep=keep).weights)
        for name, weight in weights.items():
            if name in added:
                weights[name] = LazyWeight(weight.like, partial(_merged, weight.make, *added[name]))
        return LazyWeights(weights)

    def missing_base_bytes(self) -> int:
        """Bytes of the sharded base weights that `base` will gather."""
        if self._gathered:
            return 0
        frozen = (each for each in self._model.parameters() if not each.requires_grad and is_sharded(each))
        return sum(each.numel() * each.itemsize for each in frozen)

    def merge_bytes(self) -> int:
        """Bytes that merging the largest weight takes: the product of its factors, and the merged weight."""
        sizes = [
            layer.lora_B[_ADAPTER].weight.shape[0] * layer.lora_A[_ADAPTER].weight.shape[1]
            for layer in self._layers.values()
        ]
        return max(sizes, default=0) * (4 + self._precision.itemsize)

    def save(self, path: Path, *, write: bool) -> None:
        """Saves the adapters. All ranks must call this; one of them writes. The precision of the base weights is
        written too: adapters fit only that precision."""
        state = {_peft_name(name): full_tensor(each.detach()).cpu().contiguous() for name, each in self._trainable()}
        for name, twin in self._tied_names().items():  # peft expects a shared weight under each of its names
            state[_peft_name(name)] = state[_peft_name(twin)].clone()
        if write:
            self._settings.save_pretrained(str(path))
            save_file(state, path / _WEIGHTS, metadata={"format": "pt"})
            (path / BASE).write_text(json.dumps({"bits": self._bits, "dtype": self._dtype}))

    def read(self, path: Path) -> dict[str, Tensor]:
        """Reads the saved adapters, under the model's own names."""
        state = load_file(path / _WEIGHTS)
        return {name: state[_peft_name(name)] for name, _ in self._trainable()}

    def _tied_names(self) -> dict[str, str]:
        """Other names of tied weights trained in full, with the name each is listed by."""
        named = dict(self._model.named_parameters(remove_duplicate=False))
        listed = {id(each): name for name, each in self._trainable()}
        return {name: listed[id(named[name])] for name in self._full if name not in listed.values()}

    def _trainable(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return ((name, each) for name, each in self._model.named_parameters() if each.requires_grad)


def _made(weight: Tensor) -> LazyWeight:
    return LazyWeight(weight, lambda: weight)


def _merged(make: Callable[[], Tensor], b: Tensor, a: Tensor) -> Tensor:
    """Adds b @ a to a weight in the precision of the adapters, in place of the product: that is the largest part."""
    weight, product = make(), b @ a
    same = torch.promote_types(weight.dtype, product.dtype) is product.dtype
    return product.add_(weight if same else weight.to(product.dtype)).to(weight.dtype)


def _unfreeze(model: PreTrainedModel, names: Sequence[str], bits: int) -> dict[str, dict[str, torch.nn.Parameter]]:
    """Unfreezes the named modules and all that share their weights; returns their parameters by module."""
    modules = dict(model.named_modules())
    found = {each for name in names for each in modules if each == name or each.endswith(f".{name}")}
    if missing := [name for name in names if not any(each == name or each.endswith(f".{name}") for each in found)]:
        raise ConfigError(f"train.lora.modules_to_save has {', '.join(missing)}, which the model does not have")
    chosen = {id(each) for name in found for each in modules[name].parameters()}
    shared: dict[str, dict[str, torch.nn.Parameter]] = {}
    for name, module in modules.items():
        own = dict(module.named_parameters(recurse=name in found))
        if name in found or any(id(each) in chosen for each in own.values()):
            inner = list(module.modules()) if name in found else [module]
            if any(hasattr(each, "base_layer") or (bits == 4 and _is_quantised(model, each)) for each in inner):
                raise ConfigError(
                    f"train.lora.modules_to_save has {name}, which is quantised or has an adapter; name others, or "
                    "leave it out of train.lora.target_modules"
                )
            inside = any(name.startswith(f"{each}.") for each in found)  # listed with the outer module
            if own and not inside:
                shared[name] = own
            for each in own.values():
                each.requires_grad_(True)
    return shared


def _is_quantised(model: PreTrainedModel, module: torch.nn.Module) -> bool:
    """Whether a module is quantised: all projections except the output head."""
    return isinstance(module, torch.nn.Linear) and module is not model.get_output_embeddings()  # type: ignore[no-untyped-call]


def _names_for_peft(model: PreTrainedModel, chosen: Collection[str]) -> list[str]:
    """Names that select exactly these modules. peft compares the ends of names, so `norm` also selects
    `input_layernorm`: use a module's last name where it is unambiguous, else its full path."""
    every = [name for name, _ in model.named_modules(remove_duplicate=False)]
    last = {name: name.rpartition(".")[2] for name in chosen}
    enough = {each: all(name in chosen for name in every if name.endswith(each)) for each in set(last.values())}
    return sorted({each if enough[each] else name for name, each in last.items()})


def _check_targets(model: PreTrainedModel, targets: Sequence[str]) -> None:
    ends = (model.get_input_embeddings(), model.get_output_embeddings())  # type: ignore[no-untyped-call]
    named = [name.rpartition(".")[2] for name, module in model.named_modules() if any(module is each for each in ends)]
    if refused := sorted(set(named) & {target.rpartition(".")[2] for target in targets}):
        raise ConfigError(
            f"train.lora.target_modules has {', '.join(refused)}; only projections inside layers can have adapters"
        )


def _peft_name(name: str) -> str:
    """Name of a weight in peft's file."""
    return f"base_model.model.{name.replace(f'.{_ADAPTER}.', '.')}"


def load_peft(purpose: str) -> Any:
    """Imports peft, an optional dependency."""
    try:
        import peft
    except ImportError as error:
        raise ConfigError(f"{purpose} needs peft ({error}): pip install 'dojang[lora]'") from error
    return peft
