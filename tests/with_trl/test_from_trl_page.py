"""docs/from-trl.md names fields that TRL's GRPOConfig has, with the defaults it says."""

import dataclasses
import re
from pathlib import Path

import pytest

trl = pytest.importorskip("trl", reason="TRL is not installed here; make test-trl has it")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "from-trl.md").read_text()
OF_THE_TRAINER = {"peft_config"}
"""Arguments of GRPOTrainer, which the table names beside those of its configuration."""


def test_fields_of_the_table_exist() -> None:
    table = PAGE.partition("\n## Settings\n")[2].partition("\n## ")[0]
    theirs = [line.strip("|").split(" | ")[0] for line in table.splitlines() if line.startswith("| ")]
    named = {name for cell in theirs for name in re.findall(r"`([a-z_0-9]+)(?:=[^`]*)?`", cell)}
    assert len(named) > 50
    assert named - OF_THE_TRAINER <= {field.name for field in dataclasses.fields(trl.GRPOConfig)}


def test_defaults_are_as_the_page_says() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(trl.GRPOConfig)}
    said = {"learning_rate": 1e-6, "adam_beta2": 0.999, "gradient_checkpointing": True, "num_train_epochs": 3.0}
    said |= {"loss_type": "dapo", "use_bias_correction_kl": True, "vllm_importance_sampling_clip_max": 3.0, "beta": 0.0}
    assert {name: defaults[name] for name in said} == said
    assert str(defaults["lr_scheduler_type"]) in ("linear", "SchedulerType.LINEAR")
    assert defaults["max_completion_length"] == 512
