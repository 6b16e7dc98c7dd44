"""Every test here compares with code of others, in float64 unless it asks for float32."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """The default dtype of the test: whatever either side creates has it."""
    before = torch.get_default_dtype()
    chosen: torch.dtype = getattr(request, "param", torch.float64)
    torch.set_default_dtype(chosen)
    yield chosen
    torch.set_default_dtype(before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the smallest language model lies, and where TRL may write."""
    from trl_trainer import save_model

    return save_model(tmp_path_factory.mktemp("trl"))
