"""Models: their shapes, types and tokens; LoRA and the reference; what is loaded from where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

import grpo_bench.run  # noqa: F401  (registers the launcher)
from grpo_bench.config import composed
from grpo_bench.config.content import BUILT_IN, content_of
from grpo_bench.lm import shapes
from grpo_bench.lm.lora import Lora, Reference, adapters
from grpo_bench.lm.models import SMOLLM2, load_model
from grpo_bench.lm.optimizer import make_optimizer
from grpo_bench.lm.shapes import SHAPES, byte_tokenizer, random_model
from grpo_bench.meter.memory import module_bytes
from grpo_bench.records import run_folder

IDS = torch.tensor([[1, 5, 2, 9, 2, 40], [7, 2, 2, 2, 100, 258]])  # 2 is EOS, and padding
CHAT = [{"role": "user", "content": "What is 17 + 25?"}]


def logits(model: PreTrainedModel) -> Tensor:
    """(2, 6, V), with a graph."""
    return model(IDS, use_cache=False).logits


def gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    """Of the mean squared logit, by name, for what is trained."""
    model.zero_grad()
    logits(model).float().square().mean().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def trained(model: PreTrainedModel) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def disturb(model: PreTrainedModel) -> None:
    """Move everything that is trained."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=generator) / 10)


# -- random shapes --------------------------------------------------------------------------------

# vocabulary x width + layers x (query and output + key and value + the MLP's three + two norms) +
# the last norm; the output layer is the embedding
PARAMETERS = {
    "tiny": 259 * 32 + 2 * (2 * 32**2 + 2 * 32 * 16 + 3 * 32 * 96 + 2 * 32) + 32,
    "135m": 134_515_008,  # as the hub counts SmolLM2-135M
    "360m": 361_821_120,  # and SmolLM2-360M
    "1b": 1_235_814_400,  # and Llama-3.2-1B
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float32", 4)])
def test_parameters_of_the_shapes(name: str, dtype: str, size: int) -> None:
    model = load_model(name, dtype=dtype, device="meta").model
    assert model.num_parameters() == PARAMETERS[name]
    assert {p.device.type for p in model.parameters()} == {"meta"}
    rotary = 2 * 4 * (model.config.head_dim // 2)  # buffers of frequencies, in float32
    assert module_bytes(model) == PARAMETERS[name] * size + rotary


def test_random_weights_are_drawn_from_the_seed_alone() -> None:
    before = torch.get_rng_state()
    models = [load_model("tiny", dtype="float32", seed=seed).model for seed in (3, 3, 4)]
    assert torch.equal(torch.get_rng_state(), before)
    first, same, other = (logits(model) for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_random_weights_are_normal_and_norms_are_one() -> None:
    model = load_model("tiny").model
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    for weight in model.parameters():
        if weight.dim() == 1:
            assert (weight == 1).all()
        else:  # 512 elements or more: 4 standard errors of a standard deviation are 13 %
            assert weight.float().std().item() == pytest.approx(0.02, rel=0.13)
            assert weight.float().mean().item() == pytest.approx(0, abs=4 * 0.02 / 512**0.5)


def test_a_large_matrix_repeats_its_draws_but_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "DRAWN", 1009)  # 8,288 elements are 8 times that, and 216
    weight = load_model("tiny").model.lm_head.weight
    flat = weight.flatten()
    assert torch.equal(flat[1009:], flat[:-1009])
    assert len(weight.unique(dim=0)) == 259


def test_positions_count() -> None:
    """The rotary frequencies are there, though no weights were loaded: theta^(-2i/8)."""
    model = load_model("tiny").model
    wanted = torch.tensor([10_000.0 ** (-i / 4) for i in range(4)])
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, wanted)


# -- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["17 + 25 = 42", "", "  é🙂\n\n<|im_end|>\t|"])
def test_a_token_for_each_byte(text: str) -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text.replace("<|im_end|>", "_").encode())
    assert tokenizer.decode(ids) == text


def test_bytes_and_special_tokens() -> None:
    tokenizer = byte_tokenizer()
    assert len(tokenizer) == SHAPES["tiny"]["vocab_size"] == 259
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>"]) == [0, 1]
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 2
    assert tokenizer.decode([2, 2], skip_special_tokens=True) == ""
    assert tokenizer.decode([259, 49_151]) == ""  # of a larger vocabulary


def test_a_chat() -> None:
    tokenizer = load_model("tiny").tokenizer
    text = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    wanted = "<|im_start|>user\nWhat is 17 + 25?<|im_end|>\n<|im_start|>assistant\n"
    assert text == wanted


# -- dropout, padding, ends -----------------------------------------------------------------------


def saved(folder: Path, model: PreTrainedModel) -> str:
    """A folder as users have them, with the byte tokenizer."""
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def llama(**settings: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPES["tiny"], **settings))


def test_nothing_is_dropped_whatever_the_configuration_says(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=259, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    assert [config.attn_pdrop, config.resid_pdrop, config.embd_pdrop] == [0.1] * 3
    sources = [
        saved(tmp_path / "gpt2", GPT2LMHeadModel(config)),
        saved(tmp_path / "llama", llama(attention_dropout=0.5)),
    ]
    for source in sources:
        model = load_model(source, dtype="float32").model
        assert model.training
        in_training = logits(model)
        assert torch.equal(in_training, logits(model))
        assert torch.equal(in_training, logits(model.eval()))


def test_what_is_saved_is_loaded_in_the_type_asked_for(tmp_path: Path) -> None:
    model = llama()
    source = saved(tmp_path, model)
    assert torch.equal(logits(load_model(source, dtype="float32").model), logits(model))
    rounded = load_model(source).model
    for one, other in zip(rounded.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other.bfloat16())
    assert rounded.model.rotary_emb.inv_freq.dtype == torch.float32


def test_eos_learns_though_it_is_the_padding(tmp_path: Path) -> None:
    source = saved(tmp_path, llama(pad_token_id=2))
    theirs = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    ours = load_model(source, dtype="float32").model
    name = "model.embed_tokens.weight"
    with_padding_id, without = gradients(theirs)[name], gradients(ours)[name]
    assert (with_padding_id[2] == 0).all()
    assert without[2].abs().sum() > 0
    others = [i for i in range(259) if i != 2]
    assert torch.equal(with_padding_id[others], without[others])


@pytest.mark.parametrize(("named", "wanted"), [(None, (2,)), (0, (0, 2)), ([2, 258], (2, 258))])
def test_what_ends_a_completion(tmp_path: Path, named: Any, wanted: tuple[int, ...]) -> None:
    model = llama(eos_token_id=None)
    model.generation_config.eos_token_id = named
    assert load_model(saved(tmp_path, model)).eos_ids == wanted


def test_without_an_end_or_padding(tmp_path: Path) -> None:
    model = llama(eos_token_id=None)
    model.save_pretrained(tmp_path)
    tokenizer = byte_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    assert load_model(str(tmp_path)).tokenizer.pad_token_id == 2
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="names an EOS token"):
        load_model(str(tmp_path))


# -- what is not there ----------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["smollm2", "nobody/nothing", "no/such/folder"])
def test_a_model_that_is_not_there(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(ValueError, match=r"expected one of smollm2_135m, tiny, .*HF_HUB_OFFLINE=0"):
        load_model(source)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no causal language model in this folder"):
        load_model(str(tmp_path))


def test_a_type_that_there_is_not() -> None:
    with pytest.raises(
        ValueError, match=r"model.dtype='float16': expected one of bfloat16, float32"
    ):
        load_model("tiny", dtype="float16")


# -- LoRA and the reference -----------------------------------------------------------------------


def test_lora_trains_so_many_weights() -> None:
    """rank x (inputs + outputs) of each layer: query and output 32 + 32, key and value 32 + 16, the
    MLP three times 32 + 96; two layers."""
    everywhere = load_model("tiny", lora=Lora(rank=4)).model
    assert trained(everywhere) == 4 * 2 * (2 * 64 + 2 * 48 + 3 * 128)
    somewhere = load_model("tiny", lora=Lora(rank=4, target_modules=("q_proj", "v_proj"))).model
    assert trained(somewhere) == 4 * 2 * (64 + 48)
    assert {p.dtype for p in somewhere.parameters()} == {torch.bfloat16}
    assert isinstance(somewhere, LlamaForCausalLM)


def test_lora_adds_alpha_over_rank_times_b_a() -> None:
    model = load_model("tiny", dtype="float32", lora=Lora(rank=2, alpha=3)).model
    disturb(model)
    layer: Any = model.model.layers[0].self_attn.q_proj
    x = torch.linspace(-1, 1, 32)
    low = layer.lora_B["default"].weight @ (layer.lora_A["default"].weight @ x)
    torch.testing.assert_close(layer(x), layer.base_layer.weight @ x + 3 / 2 * low)


def test_lora_is_drawn_from_the_seed_alone() -> None:
    before = torch.get_rng_state()
    models = [load_model("tiny", lora=Lora(rank=2), seed=seed).model for seed in (3, 3, 4)]
    assert torch.equal(torch.get_rng_state(), before)
    first, same, other = (
        {n: p for n, p in model.named_parameters() if "lora_A" in n} for model in models
    )
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_with_lora_the_reference_is_the_base() -> None:
    base = load_model("tiny", dtype="float32", seed=3).model
    policy = load_model("tiny", dtype="float32", lora=Lora(rank=2), seed=3).model
    reference = Reference(policy)
    assert reference.frozen is None
    assert torch.equal(logits(policy), logits(base))  # B is 0
    disturb(policy)
    moved, count = logits(policy), trained(policy)
    with reference.active() as model:
        assert torch.equal(logits(model), logits(base))
        assert not logits(model).requires_grad
    assert torch.equal(logits(policy), moved)
    assert not torch.equal(moved, logits(base))
    assert trained(policy) == count


def test_the_policy_comes_back_after_an_error() -> None:
    policy = load_model("tiny", dtype="float32", lora=Lora(rank=2)).model
    disturb(policy)
    moved = logits(policy)
    with pytest.raises(KeyError), Reference(policy).active():
        raise KeyError
    assert torch.equal(logits(policy), moved)
    assert logits(policy).requires_grad


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_without_lora_the_reference_is_a_frozen_copy(dtype: str) -> None:
    policy = load_model("tiny", dtype=dtype).model
    reference, before = Reference(policy), logits(policy)
    optimizer = make_optimizer("adamw", policy.parameters(), 1e-2)
    gradients(policy)
    optimizer.step()
    assert not torch.equal(logits(policy), before)
    with reference.active() as model:
        assert torch.equal(logits(model), before)
        assert not logits(model).requires_grad
    assert reference.frozen is not None
    assert trained(reference.frozen) == 0
    assert module_bytes(reference.frozen) == module_bytes(policy)


def test_a_step_of_lora_moves_the_adapters_alone() -> None:
    policy = load_model("tiny", lora=Lora(rank=2)).model
    disturb(policy)
    before = {name: weight.detach().clone() for name, weight in policy.named_parameters()}
    gradients(policy)
    make_optimizer("adamw", policy.parameters(), 1e-2).step()
    moved = {n for n, p in policy.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {name for name in before if "lora_" in name}


def test_lora_that_makes_no_sense() -> None:
    with pytest.raises(ValueError, match=r"lora.rank=-1, lora.alpha=32: expected"):
        load_model("tiny", lora=Lora(rank=-1))
    with pytest.raises(ValueError, match=r"lora.alpha=0"):
        load_model("tiny", lora=Lora(rank=1, alpha=0))
    with pytest.raises(ValueError, match="query"):
        load_model("tiny", lora=Lora(rank=1, target_modules=("query",)))
    with pytest.raises(ValueError, match=r"embed_tokens'\): model.embed_tokens is .* Embedding"):
        load_model("tiny", lora=Lora(rank=1, target_modules=("q_proj", "embed_tokens")))
    assert not adapters(load_model("tiny").model)


def test_lora_without_weights() -> None:
    model = load_model("tiny", device="meta", lora=Lora(rank=4)).model
    assert trained(model) == 4 * 2 * (2 * 64 + 2 * 48 + 3 * 128)
    assert {p.device.type for p in model.parameters()} == {"meta"}


# -- gradient checkpointing -----------------------------------------------------------------------


@pytest.mark.parametrize("lora", [Lora(), Lora(rank=2)])
def test_checkpointing_computes_twice_and_changes_nothing(lora: Lora) -> None:
    plain, checkpointed = (
        load_model("tiny", dtype="float32", lora=lora, gradient_checkpointing=on).model
        for on in (False, True)
    )
    passes = []
    checkpointed.model.layers[0].mlp.register_forward_pre_hook(lambda *_: passes.append(1))
    wanted, found = gradients(plain), gradients(checkpointed)
    assert len(passes) == 2
    assert wanted.keys() == found.keys()
    for name in wanted:
        assert torch.equal(wanted[name], found[name]), name


def test_a_cache_is_filled_in_spite_of_checkpointing() -> None:
    model = load_model("tiny", gradient_checkpointing=True).model
    with torch.no_grad():
        assert model(IDS, use_cache=True).cache.get_seq_length() == 6


# -- what a run's name says of its model ----------------------------------------------------------


def name_of_run(source: object) -> str:
    """The folder of a run of the model there, for the same words on the command line."""
    words = ("model=pretrained", "model.name=mine", "env=arithmetic_text")
    return str(run_folder(Path(), composed(*words, f"model.source={source}").plain))


@pytest.mark.parametrize("changed", ["weights", "tokenizer", "chat template", "settings"])
def test_other_content_in_the_same_folder_is_another_run(tmp_path: Path, changed: str) -> None:
    model = random_model("tiny", torch.float32, "cpu", 0)
    saved(tmp_path, model)
    first = name_of_run(tmp_path)
    (tmp_path / "README.md").write_text("words")
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1/model.safetensors").write_text("x")
    assert name_of_run(tmp_path) == first
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    if changed == "weights":
        with torch.no_grad():
            next(model.parameters()).view(-1)[0] += 1.0
        model.save_pretrained(tmp_path)
    elif changed == "chat template":
        tokenizer = byte_tokenizer()
        tokenizer.chat_template = "{{ messages[0].content }}"
        tokenizer.save_pretrained(tmp_path)
    else:
        name = {"tokenizer": "tokenizer.json", "settings": "generation_config.json"}[changed]
        (tmp_path / name).write_text((tmp_path / name).read_text() + "\n")
    assert name_of_run(tmp_path) != first
    for path, content in before.items():
        path.write_bytes(content)
    assert name_of_run(tmp_path) == first


def test_the_revision_of_a_model_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert content_of("org/name") == ""
    main = tmp_path / "models--org--name/refs/main"
    main.parent.mkdir(parents=True)
    main.write_text("0123abcd")
    assert content_of("org/name") == "0123abcd"


def test_models_of_our_own_have_no_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names stand for the same weights always, also beside a folder of that name."""
    assert (SMOLLM2, *SHAPES) == BUILT_IN
    monkeypatch.chdir(tmp_path)
    for name in BUILT_IN:
        (tmp_path / name).mkdir()
        plain = composed("env=arithmetic_text", f"model={name}").plain
        assert "content" not in plain["model"]
