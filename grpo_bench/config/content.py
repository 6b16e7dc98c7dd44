"""What a language model's name stands for: the weights that are there now."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

BUILT_IN = ("smollm2_135m", "tiny", "135m", "360m", "1b")  # always the same; see ``lm.models``
# Weights, configuration, tokenizer and chat template; not the README, nor what a trainer adds.
SUFFIXES = {".bin", ".gguf", ".jinja", ".json", ".model", ".safetensors", ".tiktoken", ".txt"}
OTHERS = {"trainer_state.json", "training_args.bin"}


def content_of(source: str) -> str:
    """Eight hex digits of a model's folder, or the revision of one in Hugging Face's cache; "" for
    ``BUILT_IN`` and where there is nothing yet. With other content a run is another run."""
    if source in BUILT_IN:
        return ""
    folder = Path(source)
    if not folder.is_dir():
        return _revision(source)
    files = [path for path in (*folder.iterdir(), *folder.glob("*/*.jinja")) if path.is_file()]
    content = hashlib.sha256()
    for path in sorted(files):
        if path.suffix in SUFFIXES and path.name not in OTHERS:
            state = path.stat()
            digest = _digest(path.resolve(), state.st_size, state.st_mtime_ns)
            content.update(f"{path.relative_to(folder).as_posix()}\0{digest}\n".encode())
    return content.hexdigest()[:8]


@lru_cache(maxsize=1024)  # the runs of a sweep read the weights once
def _digest(path: Path, size: int, changed: int) -> str:
    """sha256 of a file of this size and time of change."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _revision(name: str) -> str:
    """The commit of a model in Hugging Face's cache that a run loads; "" if it is not there."""
    try:
        from huggingface_hub import constants
    except ImportError:  # of the extra ``lm``
        return ""
    main = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "refs" / "main"
    return main.read_text().strip() if main.is_file() else ""
