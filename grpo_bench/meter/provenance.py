"""Which code ran on which machine, for the record of a run."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from grpo_bench.meter.cpus import usable_cpus

PACKAGES = ("grpo_bench", "grpo_envs")  # whose sources make the code digest
DISTRIBUTIONS = (
    "grpo-bench",
    "gymnasium",
    "numpy",
    "pandas",
    "peft",
    "pyarrow",
    "sb3-contrib",
    "scipy",
    "stable-baselines3",
    "torch",
    "transformers",
)


@dataclass(frozen=True)
class Provenance:
    """Origin of a run's numbers; every field is plain JSON."""

    commit: str | None  # of the checkout that holds the code; None if there is none
    dirty: bool | None  # whether the packages or conf/ differ from the commit
    code_digest: str
    versions: dict[str, str]
    python: str
    platform: str
    processor: str
    cores: int  # that the process may use
    accelerator: str | None  # name of the CUDA card used
    threads: int  # torch's, within one operation


def provenance(device: str = "cpu") -> Provenance:
    """Provenance of this process, which trains on ``device``."""
    import torch

    commit, dirty = checkout_state(_folder("grpo_bench"))
    on_cuda = str(device).startswith("cuda")
    return Provenance(
        commit=commit,
        dirty=dirty,
        code_digest=code_digest(),
        versions=versions(),
        python=platform.python_version(),
        platform=platform.platform(),
        processor=processor(),
        cores=usable_cpus(),
        accelerator=torch.cuda.get_device_name(device) if on_cuda else None,
        threads=torch.get_num_threads(),
    )


def code_digest() -> str:
    """sha256, 64 hex digits, over the name and content of every source file of ``PACKAGES``."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        folder = _folder(package)
        for path in sorted(folder.rglob("*.py"), key=lambda p: p.relative_to(folder).as_posix()):
            content = path.read_bytes()
            name = f"{package}/{path.relative_to(folder).as_posix()}"
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def checkout_state(package: Path) -> tuple[str | None, bool | None]:
    """Commit of the git checkout that holds a package folder, and whether the code differs from it.
    (None, None) unless git tracks the package: a virtual environment may be inside another
    repository."""
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, None
    commit = _git(package, "rev-parse", "HEAD")
    root = _git(package, "rev-parse", "--show-toplevel")
    if commit is None or root is None:
        return None, None
    code = [path for path in (package.name, "envs", "conf") if (Path(root) / path).exists()]
    return commit, bool(_git(Path(root), "status", "--porcelain", "--", *code))


def versions() -> dict[str, str]:
    """Versions of the installed distributions that can change a number."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def processor() -> str:
    """Marketing name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of a git command in a folder; None if it fails or git is missing."""
    # Inside a git hook, GIT_DIR would point to another repository.
    environment = {name: value for name, value in os.environ.items() if name[:4] != "GIT_"}
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
