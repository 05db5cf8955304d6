import typing

import pytest
from pydantic import BaseModel

from dojang.config.key_docs import Key, key_lines, keys
from dojang.config.run_config import RunConfig
from dojang.core.section import Section


def sections(model: type[BaseModel] = RunConfig) -> set[type[BaseModel]]:
    """Every section class below a configuration."""
    found = {model}
    for field in model.model_fields.values():
        for member in typing.get_args(field.annotation) or (field.annotation,):
            if isinstance(member, type) and issubclass(member, BaseModel):
                found |= sections(member)
    return found


def is_choice(key: Key) -> bool:
    """Whether the key is the name by which a section is chosen: its help is the section's own."""
    return bool(key.only) and key.only.startswith(f"{key.name}=")


@pytest.mark.parametrize("key", [each for each in keys() if not is_choice(each)], ids=lambda key: key.name)
def test_every_setting_has_a_help_text(key: Key) -> None:
    assert len(key.help) > 10
    assert key.help.rstrip().endswith(".")


@pytest.mark.parametrize("section", sorted(sections(), key=lambda each: each.__name__), ids=lambda each: each.__name__)
def test_every_section_is_described_and_strict(section: type[BaseModel]) -> None:
    assert issubclass(section, Section)
    assert section.__doc__
    assert section.model_config["frozen"]
    assert section.model_config["extra"] == "forbid"


def test_keys_are_written_as_a_user_types_them() -> None:
    found = {(key.name, key.only): key for key in keys()}
    assert found["train.lr", ""].kind == "float"
    assert found["train.lr", ""].default == "1e-06"
    assert found["model.name", ""].default == "required"
    assert found["train.schedule", ""].kind == "constant | linear | cosine"
    assert found["data.load_with", "data.name=custom"].default == "required"
    assert found["data.digits", "data.name=arithmetic"].default == "2"
    assert found["rollout.engine.kv_cache_gb", "rollout.engine.name=torch, vllm"].kind == "float | none"
    assert len(found) == len(list(keys()))


def test_settings_shared_by_several_choices_are_listed_once() -> None:
    (kl,) = (key for key in keys() if key.name == "algo.kl_coef")
    assert kl.only.startswith("algo.name=grpo, dr_grpo, dapo, ")
    assert "custom" not in kl.only
    highs = {key.only: key.default for key in keys() if key.name == "algo.clip_high"}
    assert highs["algo.name=dapo"] == "0.28"
    assert "dapo" not in next(only for only, default in highs.items() if default == "0.2")


def test_the_listing_says_when_a_key_applies() -> None:
    lines = list(key_lines())
    assert "steps: int = 100" in lines
    assert any(line.startswith("data.digits: int = 2  [only with data.name=arithmetic]") for line in lines)
    assert all(len(line.splitlines()) == 1 for line in lines)
