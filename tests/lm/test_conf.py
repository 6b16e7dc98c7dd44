"""conf/model: its files are what ``load_model`` takes."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from hydra import compose, initialize_config_dir

import grpo_bench.run  # noqa: F401  (registers the launcher)
from grpo_bench.config import CONF, LanguageConfig, resolved
from grpo_bench.config.schema import ModelConfig
from grpo_bench.lm.lora import Lora
from grpo_bench.lm.setup import lora_of
from grpo_bench.lm.shapes import SHAPES


def chosen(*overrides: str) -> ModelConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = resolved(compose("config", ["env=arithmetic_text", *overrides]))
    assert isinstance(config, LanguageConfig)
    return config.model


@pytest.mark.parametrize("name", ["smollm2_135m", *SHAPES])
def test_every_model_has_its_file(name: str) -> None:
    config = chosen(f"model={name}")
    assert lora_of(config.lora) == Lora()
    assert config == ModelConfig(
        name=name,
        source=name,
        dtype="bfloat16",
        optimizer="adamw",
        sharded=False,
        gradient_checkpointing=False,
        save=name not in SHAPES,  # random weights are worth nothing
        lora=config.lora,
    )


def test_these_are_all() -> None:
    files = {path.stem for path in (CONF / "model").glob("*.yaml")}
    assert files == {"smollm2_135m", "pretrained", *SHAPES}


@pytest.mark.parametrize(
    "name",
    [
        *("model.dtype", "model.optimizer", "model.save", "model.lora.alpha", "env.examples"),
        *("env.train.max_tokens", "env.generation.temperature", "env.evaluation.batch_size"),
    ],
)
def test_a_key_that_is_missing_is_told(name: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["model=tiny", "env=arithmetic_text", f"~{name}"])
    with pytest.raises(ValueError, match=f"{name}: missing, expected a value"):
        resolved(config)


def test_a_key_of_the_model_that_nothing_reads() -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["model=tiny", "env=arithmetic_text", "+model.optimiser=adamw"])
    with pytest.raises(ValueError, match=r"model\.optimiser=adamw: unknown, nothing"):
        resolved(config)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], r"model\.name=None: expected a name"),
        (["model.source=org/mine"], r"model\.name=None: expected a name"),
        (["model.name=mine"], r"model\.source=None: expected a name"),
    ],
)
def test_a_model_of_yours_is_named_and_is_not_ours(given: list[str], message: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["env=arithmetic_text", "model=pretrained", *given])
    with pytest.raises(ValueError, match=message):
        resolved(config)


def test_adapters_by_name() -> None:
    config = chosen("model=tiny", "model.lora.rank=2", "model.lora.target_modules=[q_proj]")
    assert lora_of(config.lora) == Lora(2, 32, ("q_proj",))
