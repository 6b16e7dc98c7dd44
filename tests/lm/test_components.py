"""What a record says of the bytes of each part, against the numbers of parameters."""

import pytest

pytest.importorskip("transformers")


from grpo_bench.config import composed
from grpo_bench.lm.run import component_bytes
from grpo_bench.lm.setup import make_trainer

# tiny: 259 x 32 embeddings, and in each of two layers 2 x 32 x 32 + 2 x 32 x 16 for attention,
# 3 x 32 x 96 and two norms; one norm at the end
WEIGHTS = 259 * 32 + 2 * (3 * 32 * 32 + 3 * 32 * 96 + 2 * 32) + 32
FREQUENCIES = 2 * 4 * 4  # buffers of the rotary embedding, twice four numbers
HEAD = 33  # a weight for each feature, and a bias, in float32


def components(*overrides):
    small = ["env.train.episodes=8", "env.generation.max_new_tokens=4", "model.dtype=float32"]
    chosen = ["model=tiny", "env=arithmetic_text", "budget=smoke", *small, *overrides]
    trainer = make_trainer(composed(*chosen))
    while not trainer.gradient_steps:
        trainer.update(trainer.collect(), remaining=1.0)
    parts = component_bytes(trainer)
    return {name.removeprefix("memory/").removesuffix("_bytes"): n for name, n in parts.items()}


def test_ppo_holds_twice_what_grpo_holds_and_a_head():
    grpo = components(
        "algo=grpo", "algo.kl=k1_reward", "++algo.kl_coef=0.1", "++algo.ent_coef=0.01"
    )
    ppo = components("algo=ppo")
    assert grpo["policy"] == grpo["reference"] == 4 * WEIGHTS + FREQUENCIES
    assert grpo["gradient"] == 4 * WEIGHTS
    assert "critic" not in grpo
    assert ppo["critic"] == 4 * (WEIGHTS + HEAD)
    assert ppo["gradient"] == 4 * (2 * WEIGHTS + HEAD)
    assert ppo["optimizer"] >= 2 * ppo["gradient"]


def test_of_adapters_only_they_have_gradients():
    lora = components("algo=ppo_shared", "model.lora.rank=4")
    assert lora["gradient"] == lora["policy"] - 4 * WEIGHTS - FREQUENCIES + 4 * HEAD
    assert lora["critic"] == 4 * HEAD
