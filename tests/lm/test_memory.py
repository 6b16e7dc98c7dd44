"""The planned memory of a step: its parts by hand, and its peak as that of a real step."""

import pytest

pytest.importorskip("transformers")

from hydra import compose, initialize_config_dir

from grpo_bench.config import CONF, resolved
from grpo_bench.lm import memory
from grpo_bench.lm.memory import COMPONENTS, Moments, Prediction, predict
from grpo_bench.lm.setup import make_trainer
from grpo_bench.meter import module_bytes
from grpo_bench.meter.tensors import LiveBytes

# tiny, by hand: the embedding, which is the head as well; of each layer q and o (32 x 32), k and v
# (16 x 32), gate, up and down (96 x 32), two norms; the last norm.
WIDTH, HEADS_KV, HEAD, LAYERS = 32, 2, 8, 2
PER_LAYER = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 96 * 32 + 2 * 32
N = 259 * 32 + LAYERS * PER_LAYER + 32
TENSORS = 1 + 9 * LAYERS + 1
MATRICES = ((32, 32), (32, 32), (16, 32), (16, 32), (96, 32), (96, 32), (32, 96))
ADAPTERS = 4  # of rank: so many numbers for each row and column of a matrix
N_LORA = LAYERS * ADAPTERS * sum(rows + columns for rows, columns in MATRICES)


def config(*overrides):
    """A run of tiny in bfloat16: 2 problems, 4 completions of each, 8 tokens."""
    small = (
        *("env.train.episodes=8", "env.train.group_size=4", "env.generation.max_new_tokens=8"),
        *("env=arithmetic_text", "budget=smoke", "model=tiny"),
    )
    with initialize_config_dir(str(CONF), version_base="1.3"):
        chosen = compose("config", [*small, *overrides])
        if chosen.algo.kind == "grpo":
            chosen.algo.group_size = 4
        return resolved(chosen)


def highest(prediction, component):
    """Of a component, over the moments."""
    return max(parts.get(component, 0) for parts in prediction.moments.values())


ROTARY = 2 * 4 * 4  # bytes of two buffers of 4 float32 numbers, the frequencies of positions


def test_parts_of_full_fine_tuning():
    found = predict(config("algo.kl=k3", "+algo.kl_coef=0.1"))
    buffers = module_bytes(make_trainer(config()).lm.model) - 2 * N
    assert buffers == ROTARY
    assert highest(found, "weights") == 2 * N + buffers
    assert highest(found, "reference") == 2 * N + buffers
    # two moments, the master and the count of steps, in float32
    assert found.moments["generation"]["optimizer"] == 3 * 4 * N + 4 * TENSORS
    # in bfloat16, and all of them in float32 for one bucket
    assert found.moments["optimizer step"]["gradients"] >= 2 * N
    assert "critic" not in found.components


def test_parts_of_lora():
    lora = (f"model.lora.rank={ADAPTERS}", "algo.kl=k3", "+algo.kl_coef=0.1")
    found = predict(config(*lora))
    whole = predict(config())
    assert highest(found, "weights") == highest(whole, "weights") + 2 * N_LORA
    assert highest(found, "reference") == 0  # the policy with its adapters off
    tensors = 2 * LAYERS * len(MATRICES)
    assert found.moments["generation"]["optimizer"] == 3 * 4 * N_LORA + 4 * tensors
    assert "logprobs" in found.moments


@pytest.mark.parametrize(
    ("algo", "critic"),
    [
        ("ppo", 2 * N + 4 * 33),
        ("ppo_shared", 4 * 33),  # a head of 32 weights and a bias in float32
        ("lm/ppo_lora", None),
    ],
)
def test_parts_of_critics(algo, critic):
    found = predict(config(f"algo={algo}"))
    at_first = highest(found, "critic")
    trainer = make_trainer(config(f"algo={algo}"))
    own = sum(p.numel() * p.element_size() for p in trainer.critic.own_parameters())
    assert own <= at_first <= own + ROTARY
    if critic is not None:
        assert own == critic
    on_reference = predict(config(f"algo={algo}", "model.lora.rank=4"))
    if algo == "lm/ppo_lora":  # stands on the policy's base: adapters and a head, no weights
        assert highest(on_reference, "critic") < 2 * N


def test_kv_cache_and_rollout():
    chosen = config("env.generation.max_new_tokens=100")
    found = predict(chosen)
    trainer = make_trainer(chosen)
    rollout = memory.longest_rollout(trainer)
    longest = len(rollout.prompts[0])
    columns = longest + 100 - 1  # nothing follows the last token
    assert found.moments["generation"]["kv_cache"] == (
        2 * LAYERS * 8 * HEADS_KV * columns * HEAD * 2
    )
    # ids and log-probabilities of 8 x 100 tokens; lengths and truncations of 8 completions
    assert found.moments["update"]["rollout"] == 800 * (8 + 4) + 8 * (8 + 1)
    assert found.group_tokens == longest + 4 * 99
    # the longest of all prompts in the sample, for every problem
    sample = trainer.task.prompts(trainer.task.problem_ids("train")[:200])
    assert longest >= max(map(len, sample))


KINDS = [
    ("algo=grpo",),
    ("algo=grpo", "algo.kl=k3", "+algo.kl_coef=0.1"),
    ("algo=grpo", "model.lora.rank=4"),
    ("algo=grpo", "model.gradient_checkpointing=true", "model.dtype=float32"),
    ("algo=grpo", "model.optimizer=adamw_plain"),
    ("algo=ppo",),
    ("algo=ppo_shared",),
    ("algo=lm/ppo_lora", "model.lora.rank=4"),
]


@pytest.mark.parametrize("overrides", KINDS, ids=[" ".join(kind) for kind in KINDS])
def test_a_real_step_takes_as_much(overrides, monkeypatch):
    """Its own tensors, counted in the same way, over two updates of the same rollout."""
    monkeypatch.setenv(memory.MALLOC_VARIABLE, "131072")
    chosen = config(*overrides)
    found = predict(chosen)
    live = LiveBytes(lambda tensor: "all")
    with live:
        trainer = make_trainer(chosen, phases=Moments(live))
        rollout = memory.longest_rollout(trainer)
        for _ in range(2):
            trainer.update(rollout)
    for name in ("logprobs", "critic", "update"):
        planned = sum(found.moments.get(name, {}).values())
        if name == "update":
            planned = max(planned, sum(found.moments["optimizer step"].values()))
        real = sum(live.peaks.get(name, {}).values())
        assert planned == pytest.approx(real, rel=0.02), name


def test_checkpoints_take_less():
    plain, checkpointed = (
        predict(config(f"model.gradient_checkpointing={flag}")) for flag in ("false", "true")
    )
    assert highest(checkpointed, "activations") < 0.7 * highest(plain, "activations")


def test_what_malloc_keeps_is_of_cpus_with_glibc(monkeypatch):
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.delenv(memory.MALLOC_VARIABLE, raising=False)
    moments = predict(config()).moments
    most = max(m.get("activations", 0) + m.get("logits", 0) for m in moments.values())
    kept = {name: parts.get("malloc", 0) for name, parts in moments.items()}
    assert kept.pop("load") == 0
    assert set(kept.values()) == {round(memory.MALLOC * most)}  # it stays
    assert "malloc" not in predict(config(), "cuda").moments["update"]
    monkeypatch.setenv(memory.MALLOC_VARIABLE, "131072")
    assert "malloc" not in predict(config()).moments["update"]
    monkeypatch.delenv(memory.MALLOC_VARIABLE)
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("", ""))
    assert "malloc" not in predict(config()).moments["update"]


def test_moments_in_the_type_of_the_weights():
    found = predict(config("model.optimizer=adamw_plain"))
    assert found.moments["generation"]["optimizer"] == 2 * 2 * N + 4 * TENSORS


def test_eight_bits():
    found = predict(config("model.optimizer=adamw_8bit"), "cuda")
    big = [259 * 32]  # of 4,096 numbers or more: the embedding alone
    small = N - sum(big)
    expected = sum(2 * n + 2 * 4 * -(-n // 256) for n in big) + 2 * 4 * small
    assert found.moments["generation"]["optimizer"] == expected


def test_load_counts_the_file_that_is_converted(tmp_path):
    trainer = make_trainer(config("model.dtype=float32"))
    trainer.lm.model.save_pretrained(tmp_path)
    trainer.lm.tokenizer.save_pretrained(tmp_path)
    stored = (f"model.source={tmp_path}", "model.name=mine", "model=pretrained")
    assert predict(config(*stored)).moments["load"]["file"] == 4 * N
    assert list(predict(config(*stored), "cuda").moments["load"]) == ["weights"]
    same = predict(config(*stored, "model.dtype=float32"))
    assert same.moments["load"].get("file", 0) == 0


def test_prediction():
    moments = {"load": {"weights": 5}, "update": {"gradients": 3, "weights": 5, "malloc": 1}}
    found = Prediction(moments, group_tokens=7)
    assert (found.peak, found.moment) == (9, "update")
    assert list(found.components) == ["weights", "gradients", "malloc"]  # as in tables
    assert found.beside(10).peak == 19
    assert found.beside(10).without("malloc").components["process"] == 10
    assert found.without("malloc").peak == 8
    assert set(found.components) <= set(COMPONENTS)
