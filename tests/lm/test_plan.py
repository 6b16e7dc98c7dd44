"""``python -m grpo_bench.plan``: sizes as people write them, what to change, what is printed."""

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")

import torch
from test_memory import config

from grpo_bench import plan
from grpo_bench.lm import planning
from grpo_bench.lm.measure import Measured, limit_memory, with_spread
from grpo_bench.lm.memory import longest_rollout, predict
from grpo_bench.lm.planning import Change, changes
from grpo_bench.lm.setup import make_trainer
from grpo_bench.plan import device_of, memory_of


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16GB", 16 * 10**9),
        ("16GiB", 16 * 2**30),
        ("16 gib", 16 * 2**30),
        ("1.5KB", 1500),
        ("2TiB", 2**41),
        (4096, 4096),
        ("1e6", 10**6),
    ],
)
def test_memory_of(text, size):
    assert memory_of(text) == size


@pytest.mark.parametrize(
    "text", ["16G", "many", "0", "-3GB", "GB", "1.2.3GB", "1e400GB", "", "true"]
)
def test_memory_that_is_none(text):
    with pytest.raises(ValueError, match=r"memory=.*: expected 16GB, 16GiB or a number of bytes"):
        memory_of(text)


def names(found):
    return [str(change) for change in found]


def test_changes_come_with_the_least_invasive_first():
    full = config("algo=ppo", "model.dtype=float32", "env.train.episodes=16")
    assert names(changes(full, "cpu", 100)) == [
        "env.train.max_tokens=100",
        "model.gradient_checkpointing=true",
        "model.dtype=bfloat16",
        "env.train.episodes=4",
        "env.generation.max_new_tokens=4",
        "algo.critic=lora",
        "algo.critic=shared",
        "model.lora.rank=16",
    ]
    for device, optimizer in (("cpu", "adamw_plain"), ("cuda", "adamw_8bit")):
        assert f"model.optimizer={optimizer}" in names(changes(config(), device, 100))
    # what is there already is not proposed
    least = config(
        *("model.lora.rank=8", "model.gradient_checkpointing=true", "env.train.episodes=4"),
        *("env.generation.max_new_tokens=1", "env.train.max_tokens=100"),
    )
    assert names(changes(least, "cpu", 100)) == []


def test_a_change_leaves_the_configuration_as_it_was():
    before = config()
    after = Change({"model.lora.rank": 16, "model.name": "x"}, "").of(before)
    assert (before.model.lora.rank, after.model.lora.rank) == (0, 16)
    assert after.env == before.env


def test_every_change_is_one_that_runs_and_takes_no_more():
    full = config("algo=ppo", "model.dtype=float32", "env.train.episodes=16")
    found = predict(full)
    *smaller, adapters = changes(full, "cpu", found.group_tokens)
    assert str(adapters) == "model.lora.rank=16"  # half of tiny's width: not smaller there
    predict(adapters.of(full))
    for change in smaller:
        assert predict(change.of(full)).peak <= found.peak, change


def test_device_of():
    assert device_of("cpu") == "cpu"
    assert device_of("cuda:1") == "cuda"
    with pytest.raises(ValueError, match="device=tpu: expected auto, cpu or cuda"):
        device_of("tpu")


def planned(arguments, monkeypatch, capsys):
    """What the command prints, the process said to take 1 GiB."""
    monkeypatch.setattr(planning, "process_bytes", lambda config: 2**30)
    monkeypatch.setattr(sys, "argv", ["plan", "model=tiny", "device=cpu", *arguments])
    plan.main()
    return capsys.readouterr().out


def test_says_what_fits(monkeypatch, capsys):
    told = planned(["memory=16GB"], monkeypatch, capsys)
    assert "tiny, all weights trained, grpo on arithmetic_text, cpu: peak 1.0" in told
    assert "Fits into 14.90 GiB (16.0 GB)." in told
    assert "process" in told
    assert "change" not in told


def test_says_what_to_change(monkeypatch, capsys):
    told = planned(["memory=1GB", "algo=ppo"], monkeypatch, capsys)
    assert "Does not fit into 0.93 GiB (1.0 GB)." in told
    for change in ("model.lora.rank=16", "algo.critic=shared"):
        assert change in told
    assert "all of these" in told  # since nothing brings the process below 1 GiB
    assert "yes" not in told


def test_with_nothing_left_to_change(monkeypatch, capsys):
    least = [
        *("model.lora.rank=4", "model.gradient_checkpointing=true", "env.train.episodes=8"),
        *("env.generation.max_new_tokens=1", "env.train.max_tokens=57"),  # the longest prompt
    ]
    told = planned([*least, "memory=1MB"], monkeypatch, capsys)
    assert "Does not fit into" in told and "=true" not in told


def test_the_process_is_measured_without_the_names_of_layers():
    named = config("model.lora.rank=4", "model.lora.target_modules=[c_attn]")
    assert planning.small(named).model.lora.target_modules == "all-linear"


def test_without_a_size_says_only_what_it_takes(monkeypatch, capsys):
    told = planned([], monkeypatch, capsys)
    assert "fit" not in told.lower()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("memory=16G", "memory=16G: expected 16GB"),
        ("algo=a2c", "expected grpo or ppo"),
        ("env=vlm", "env=vlm and a model: expected a language model"),
        ("~model", "env=arithmetic_text and no model: expected a language model"),
        ("env.train.episodes=7", "env.train.episodes=7"),
        ("model.dtype=float16", "model.dtype='float16'"),
        ("env.generation.backend=vllm", "env.generation.backend=vllm: expected native"),
    ],
)
def test_bad_values(argument, message, monkeypatch):
    first = [] if argument == "~model" else ["model=tiny"]
    monkeypatch.setattr(sys, "argv", ["plan", *first, argument])
    with pytest.raises(SystemExit) as stopped:
        plan.main()
    assert message in str(stopped.value)


def test_process_and_limit_are_real():
    """A fresh process takes steps of tiny; one that may not take what it needs says so."""
    tiny = planning.small(config("algo=ppo_shared"))
    found = Measured(**planning.measured(tiny, "cpu", limit=4 * 2**30))
    assert 100 * 2**20 < found.peak < 2 * 2**30
    assert 1 <= found.tokens <= 8
    big = Change({"env.train.episodes": 2**16}, "").of(tiny)
    with pytest.raises(MemoryError):
        planning.measured(big, "cpu", limit=2**30)


@pytest.mark.parametrize(("device", "card"), [("cuda", 3), ("cuda:1", 1)])
def test_the_limit_of_a_card(device, card, monkeypatch):
    """torch's own function, which takes no "cuda", on a card of 32 GiB that is not there."""
    told = []
    of_32_gib = SimpleNamespace(total_memory=32 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: of_32_gib)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda.memory, "_lazy_init", lambda: None)
    tell = lambda *given: told.append(given)  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_setMemoryFraction", tell, raising=False)
    limit_memory(16 * 2**30, device)
    limit_memory(64 * 2**30, device)
    assert told == [(0.5, card), (1.0, card)]


def test_the_first_of_each_group_is_paid():
    rollout = with_spread(longest_rollout(make_trainer(config())))
    assert rollout.outcome.reward.tolist() == [1, 0, 0, 0, 1, 0, 0, 0]
