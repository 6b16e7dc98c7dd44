"""The random streams that training draws from: their states, for a model that is saved.

The streams of torch, of the starts and of the environment's problems decide which rollouts come
next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Stream = np.random.Generator | torch.Generator | None
States = dict[str, Any]


def states(device: torch.device, starts: np.random.Generator, problems: Stream) -> States:
    """The states of all streams, as plain values and arrays."""
    found: States = {"cpu": torch.get_rng_state().numpy(), "starts": state_of(starts)}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device).numpy()
    if problems is not None:
        found["problems"] = state_of(problems)
    return found


def restore(
    saved: States, device: torch.device, starts: np.random.Generator, problems: Stream
) -> None:
    """Put all streams into saved states; those that do not exist here are left out."""
    torch.set_rng_state(torch.as_tensor(saved["cpu"]))
    if "cuda" in saved and device.type == "cuda":
        torch.cuda.set_rng_state(torch.as_tensor(saved["cuda"]), device)
    set_state(starts, saved["starts"])
    if problems is not None and "problems" in saved:
        set_state(problems, saved["problems"])


def state_of(stream: np.random.Generator | torch.Generator) -> Any:
    """The state of one stream."""
    if isinstance(stream, torch.Generator):
        return stream.get_state().numpy()
    return stream.bit_generator.state


def set_state(stream: np.random.Generator | torch.Generator, state: Any) -> None:
    """Put a stream into a state of its own kind; a state of another kind is left out."""
    if isinstance(stream, torch.Generator):
        if isinstance(state, np.ndarray):
            stream.set_state(torch.as_tensor(state))
    elif isinstance(state, dict):
        stream.bit_generator.state = state
