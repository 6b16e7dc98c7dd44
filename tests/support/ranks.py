"""Two processes that work together, as under torchrun, and the result of each."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing
from torch.distributed import TCPStore, destroy_process_group

from grpo_bench.lm.parallel import World

SIZE = 2
LIMIT = 900.0  # seconds: it ends what hangs; a busy machine may need minutes


def together(scenario: Callable[[World], Any], folder: Path) -> list[Any]:
    """The results of a module's function, which receives its world, on each rank."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # at a free port
    args = (scenario, folder, store.port)
    ranks = multiprocessing.spawn(_rank, args, nprocs=SIZE, join=False)
    end = time.monotonic() + LIMIT
    while not ranks.join(timeout=1.0, grace_period=5.0):  # as long as one of them runs
        if time.monotonic() > end:
            for process in ranks.processes:
                process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(SIZE)]


def _rank(rank: int, scenario: Callable[[World], Any], folder: Path, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(SIZE),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store exists, as under torchrun
    }
    found = scenario(World.here())
    torch.save(found, folder / f"{rank}.pt")
    destroy_process_group()
