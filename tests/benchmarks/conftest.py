"""Benchmarks are scripts: tests import them as ``python benchmarks/NAME.py`` imports its parts."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a benchmark by its name."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    return import_module
