"""What vLLM answers becomes completions; on a card, with the policy's own log-probabilities."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from support.tiny import PROMPTS

from grpo_bench.lm.generation import generate
from grpo_bench.lm.logprobs import completion_logprobs
from grpo_bench.lm.lora import Lora
from grpo_bench.lm.models import load_model
from grpo_bench.lm.parallel import World
from grpo_bench.lm.vllm_backend import VllmGenerator, check_backend, completions_of, generator_of

EOS = 2


class SamplingParams(SimpleNamespace):
    """As vLLM's: what it was made with."""


class Engine:
    """Answers completion i of prompt p with i + 1 tokens: its number, then EOS; the last one of a
    group is cut off instead. The log-probability of token t is -t / 8, beside that of another."""

    last: Engine

    def __init__(self, **settings: Any) -> None:
        self.settings, self.loaded, self.resets = settings, {}, 0
        Engine.last = self

    def apply_model(self, function: Any) -> None:
        function(SimpleNamespace(load_weights=self.loaded.update))

    def reset_prefix_cache(self) -> None:
        self.resets += 1

    def generate(self, prompts: Any, sampling: Any, use_tqdm: bool) -> list[Any]:
        self.prompts, self.sampling = prompts, sampling
        return [
            SimpleNamespace(outputs=[self.member(i, how) for i in range(how.n)]) for how in sampling
        ]

    def member(self, i: int, how: SamplingParams) -> Any:
        cut_off = i + 1 == how.n
        tokens = [*([5 + i] * i), 5 + i if cut_off else how.stop_token_ids[0]]
        logprobs = [
            {token: SimpleNamespace(logprob=-t / 8), token + 1: SimpleNamespace(logprob=9.0)}
            for t, token in enumerate(tokens)
        ]
        reason = "length" if cut_off else "stop"
        return SimpleNamespace(token_ids=tuple(tokens), logprobs=logprobs, finish_reason=reason)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card and vLLM, as far as the backend can tell."""
    module = ModuleType("vllm")
    module.__spec__ = ModuleSpec("vllm", None)
    vars(module).update(LLM=Engine, SamplingParams=SamplingParams)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "")  # put back what it sets


def test_answers_become_completions(vllm: None) -> None:
    lm = load_model("tiny", dtype="float32")
    generator = torch.Generator().manual_seed(0)
    made = VllmGenerator(lm)(lm.model, PROMPTS[:2], 3, 3, 0.5, [EOS], generator)
    rows = [[EOS, 0, 0], [6, EOS, 0], [7, 7, 7]]
    assert made.ids.tolist() == rows * 2
    assert made.length.tolist() == [1, 2, 3] * 2
    assert made.truncated.tolist() == [False, False, True] * 2
    assert made.logp.tolist() == [[0, 0, 0], [0, -0.125, 0], [0, -0.125, -0.25]] * 2
    assert (made.ids.dtype, made.logp.dtype) == (torch.long, torch.float32)
    assert made.group_size == 3
    assert made.mask.sum(dim=1).equal(made.length)


def test_an_eos_that_is_the_last_token_of_the_limit_is_an_end(vllm: None) -> None:
    """Whatever vLLM gives as the reason: some versions look at the limit first."""
    member = SimpleNamespace(token_ids=(5, EOS), logprobs=[], finish_reason="length")
    made = completions_of([member, member], 2, 0.0, [EOS], torch.device("cpu"))
    assert made.truncated.tolist() == [False, False]
    made = completions_of([member, member], 2, 0.0, [EOS + 1], torch.device("cpu"))
    assert made.truncated.tolist() == [True, True]


def test_greedy_has_log_probability_0(vllm: None) -> None:
    lm = load_model("tiny", dtype="float32")
    made = VllmGenerator(lm)(lm.model, PROMPTS[:1], 3, 3, 0.0, [EOS], torch.Generator())
    assert made.ids.any() and not made.logp.any()


def test_what_vllm_is_asked(vllm: None) -> None:
    lm = load_model("tiny")
    backend, settings = VllmGenerator(lm), Engine.last.settings
    assert settings["dtype"] == "bfloat16"
    assert settings["logprobs_mode"] == "processed_logprobs"
    assert settings["gpu_memory_utilization"] == 0.3
    assert settings["max_model_len"] == 512  # the model's
    seeds = []
    for seed in (0, 0, 1):
        generator = torch.Generator().manual_seed(seed)
        backend(lm.model, PROMPTS, 2, 7, 0.5, [EOS, 1], generator)
        asked = Engine.last.sampling
        assert [p["prompt_token_ids"] for p in Engine.last.prompts] == PROMPTS
        assert {(s.n, s.max_tokens, s.temperature, s.logprobs) for s in asked} == {(2, 7, 0.5, 0)}
        assert all(s.stop_token_ids == [EOS, 1] and s.ignore_eos for s in asked)
        seeds.append([s.seed for s in asked])
    assert seeds[0] == seeds[1] != seeds[2]
    assert len(set(seeds[0])) == len(PROMPTS)


def test_the_copy_follows_the_policy(vllm: None) -> None:
    """With its adapters added: W + 8 / 2 (1 1) in every place."""
    lm = load_model("tiny", dtype="float32", lora=Lora(2, 8, ("q_proj",)))
    backend, engine = VllmGenerator(lm), Engine.last
    layer = lm.model.model.layers[0].self_attn.q_proj
    with torch.no_grad():
        layer.lora_A["default"].weight.fill_(1.0)
        layer.lora_B["default"].weight.fill_(1.0)
    backend(lm.model, PROMPTS, 2, 3, 0.5, [EOS], torch.Generator())
    assert engine.loaded.keys() == load_model("tiny").model.state_dict().keys()
    found = engine.loaded["model.layers.0.self_attn.q_proj.weight"]
    torch.testing.assert_close(found, layer.base_layer.weight + 8)
    assert engine.resets == 1


def test_without_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"backend=vllm: needs a CUDA device; expected native"):
        check_backend("vllm", World())


def test_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs vLLM, pip install vllm"):
        check_backend("vllm", World())


def test_backends_by_name(vllm: None) -> None:
    lm = load_model("tiny")
    assert generator_of("native", lm) is generate
    assert isinstance(generator_of("vllm", lm), VllmGenerator)
    for name in ("native", "vllm"):
        check_backend(name, World())
    check_backend("native", World(1, 2))
    with pytest.raises(ValueError, match="with torchrun: expected native"):
        check_backend("vllm", World(1, 2))
    with pytest.raises(ValueError, match="backend='hf': expected native or vllm"):
        check_backend("hf", World())


@pytest.mark.gpu
def test_it_is_the_policy_that_is_drawn_from() -> None:
    pytest.importorskip("vllm")
    lm = load_model("135m", device="cuda")
    prompts = [[5, 9, 7], [3], [8, 8, 1, 30, 12]]
    backend = VllmGenerator(lm)
    generator = torch.Generator().manual_seed(0)
    drawn = backend(lm.model, prompts, 4, 16, 0.7, [EOS], generator)
    ours = completion_logprobs(lm.model, prompts, drawn, 0.7).logp.detach()
    assert (ours - drawn.logp)[drawn.mask].abs().mean() < 0.05
