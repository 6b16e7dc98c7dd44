"""Where the Hydra configuration lies: in the wheel inside the package, in a checkout beside it."""

from __future__ import annotations

from pathlib import Path

_package = Path(__file__).resolve().parent
CONF: Path = next(
    folder for folder in (_package / "conf", _package.parent / "conf") if folder.is_dir()
)
