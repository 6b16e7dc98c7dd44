"""What is saved is the policy, for transformers alone; and it is whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
)

from grpo_bench.lm.folders import whole_folder
from grpo_bench.lm.lora import Lora, adapters
from grpo_bench.lm.models import LanguageModel, load_model
from grpo_bench.lm.saving import plain_weights, save_pretrained

IDS = torch.tensor([[1, 5, 2, 9, 2, 40], [7, 2, 2, 2, 100, 258]])
CHAT = [{"role": "user", "content": "What is 17 + 25?"}]


@torch.no_grad()
def logits(model: PreTrainedModel) -> Tensor:
    return model(IDS, use_cache=False).logits


@torch.no_grad()
def disturb(model: PreTrainedModel, size: float = 0.1) -> None:
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.add_(size * torch.randn(weight.shape, generator=generator))


def trained(**settings: object) -> LanguageModel:
    lm = load_model("tiny", **settings)  # type: ignore[arg-type]
    disturb(lm.model)
    return lm


def loaded(folder: Path) -> PreTrainedModel:
    """As others load it, in the type that is written there."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)


def adapter_free(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert not [name for name in names if "adapter" in name]
    assert {"config.json", "generation_config.json", "model.safetensors"} <= names


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_model_trained_whole_comes_back_bit_for_bit(tmp_path: Path, dtype: str) -> None:
    lm = trained(dtype=dtype)
    wanted = logits(lm.model)
    save_pretrained(lm, tmp_path / "deep" / "model")
    found = loaded(tmp_path / "deep" / "model")
    assert found.dtype == lm.model.dtype
    assert found.lm_head.weight is found.model.embed_tokens.weight
    assert torch.equal(logits(found), wanted)
    assert torch.equal(logits(lm.model), wanted)
    again = load_model(str(tmp_path / "deep" / "model"), dtype=dtype)
    assert torch.equal(logits(again.model), wanted)
    assert again.eos_ids == lm.eos_ids


def test_adapters_are_added_and_the_policy_is_left_alone(tmp_path: Path) -> None:
    lm = trained(dtype="float32", lora=Lora(rank=3, alpha=5))
    before = {name: weight.clone() for name, weight in lm.model.state_dict().items()}
    wanted = logits(lm.model)
    save_pretrained(lm, tmp_path / "model")
    adapter_free(tmp_path / "model")
    found = loaded(tmp_path / "model")
    torch.testing.assert_close(logits(found), wanted, rtol=1e-5, atol=1e-5)
    assert (logits(found) - logits(load_model("tiny", dtype="float32").model)).abs().max() > 0.1
    assert lm.model.state_dict().keys() == before.keys()
    for name, weight in lm.model.state_dict().items():
        assert torch.equal(weight, before[name]), name
    assert torch.equal(logits(lm.model), wanted)


def test_adapters_are_added_in_float32_and_rounded_once() -> None:
    """W = 1, alpha / rank = 1, B A = 2^-9 + 2^-9: one rounding gives 1 + 2^-8, which is half way to
    the next number of bfloat16 and goes to the even one, 1; with 2^-15 more it goes up, where each
    term on its own would have been lost."""
    lm = load_model("tiny", lora=Lora(rank=2, alpha=2, target_modules=("q_proj",)))
    layer = lm.model.model.layers[0].self_attn.q_proj
    with torch.no_grad():
        layer.base_layer.weight.fill_(1.0)
        layer.lora_A["default"].weight.fill_(1.0)
        layer.lora_B["default"].weight[:, 0] = 2.0**-9
        layer.lora_B["default"].weight[:, 1] = 2.0**-9
        layer.lora_B["default"].weight[1, 1] += 2.0**-15
    weight = plain_weights(lm.model)["model.layers.0.self_attn.q_proj.weight"]
    assert weight.dtype == torch.bfloat16
    assert (weight[0] == 1.0).all()
    assert (weight[1] == 1.0 + 2.0**-7).all()


@pytest.mark.filterwarnings("ignore:Already found a `peft_config`")
def test_an_adapter_that_is_not_the_policys_stays_out() -> None:
    lm = trained(dtype="float32", lora=Lora(rank=2))
    wanted = plain_weights(lm.model)
    inject_adapter_in_model(LoraConfig(r=2, target_modules="all-linear"), lm.model, "critic")
    with torch.no_grad():
        for name, weight in lm.model.named_parameters():
            if "critic" in name:
                weight.fill_(1.0)
    for layer in adapters(lm.model):
        layer.set_adapter("default")
    found = plain_weights(lm.model)
    assert found.keys() == wanted.keys() == load_model("tiny").model.state_dict().keys()
    for name, weight in found.items():
        assert torch.equal(weight, wanted[name]), name


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")
def test_layers_that_hold_their_weight_the_other_way_round(tmp_path: Path) -> None:
    """GPT-2's, (in, out); with biases."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=259, n_embd=16, n_layer=1, n_head=2, n_positions=16)
    source = tmp_path / "source"
    GPT2LMHeadModel(config).save_pretrained(source)
    load_model("tiny").tokenizer.save_pretrained(source)
    lora = Lora(rank=2, target_modules=("c_attn",))
    lm = load_model(str(source), dtype="float32", lora=lora)
    disturb(lm.model)
    save_pretrained(lm, tmp_path / "model")
    wanted = logits(lm.model)
    torch.testing.assert_close(logits(loaded(tmp_path / "model")), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_a_head_of_its_own_is_not_tied_again(tmp_path: Path) -> None:
    lm = trained(dtype="float32", lora=Lora(rank=2, target_modules=("lm_head", "q_proj")))
    save_pretrained(lm, tmp_path / "model")
    wanted = logits(lm.model)
    torch.testing.assert_close(logits(loaded(tmp_path / "model")), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("text", ["17 + 25 = 42", "  é🙂\n\n<|im_end|>\t|"])
def test_the_tokenizer_comes_too(tmp_path: Path, text: str) -> None:
    lm = trained()
    save_pretrained(lm, tmp_path)
    found = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert found(text)["input_ids"] == lm.tokenizer(text)["input_ids"]
    assert found.decode(found(text)["input_ids"]) == text
    assert (found.pad_token_id, found.eos_token_id) == (2, 2)
    for prompt in (True, False):
        one, other = (
            t.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=prompt)
            for t in (found, lm.tokenizer)
        )
        assert one == other


# -- whole or not there ---------------------------------------------------------------------------


def write(folder: Path, text: str, twice: bool = False) -> None:
    with whole_folder(folder) as beside:
        for _ in range(1 + twice):
            (beside / "inner").mkdir()
            (beside / "inner" / "file").write_text(text)


def test_a_folder_appears_whole_and_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "model"
    for text in ("one", "two"):
        write(folder, text)
        assert (folder / "inner" / "file").read_text() == text
        assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("there", [False, True])
def test_a_crash_leaves_what_was_there(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "model"
    if there:
        write(folder, "one")
    with pytest.raises(FileExistsError):  # after a part of it was written
        write(folder, "half", twice=True)
    assert folder.exists() == there
    assert [path.name for path in tmp_path.iterdir()] == ["model"] * there
    if there:
        assert (folder / "inner" / "file").read_text() == "one"


def test_what_a_dead_process_left_is_no_part_of_it(tmp_path: Path) -> None:
    for end in ("tmp", "old"):
        (tmp_path / f"model.{end}").mkdir()
        (tmp_path / f"model.{end}" / "rubbish").touch()
    write(tmp_path / "model", "one")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["inner"]
    write(tmp_path / "model", "two")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
