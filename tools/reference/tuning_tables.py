"""Which trials of the tuning won: conf/tuned and a table, from the records of all trials."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import open_dict

from grpo_bench.config import CONF
from grpo_bench.runs.hydra_setup import register
from grpo_bench.tuning.result import result_files
from grpo_bench.tuning.search import all_scores, all_trials, recorded
from tools.reference.committed import RESULTS, TRIALS, Committed

RECORDS = RESULTS / TRIALS


def composing() -> AbstractContextManager[None]:
    """Where configurations can be composed; a program of Hydra's can already."""
    if GlobalHydra.instance().is_initialized():
        return nullcontext()
    context: AbstractContextManager[None] = initialize_config_dir(str(CONF), version_base="1.3")
    return context


def tuning_tables(committed: Committed) -> dict[Path, str]:
    """``trials.csv``, ``trials.md``, ``chosen.md`` and conf/tuned."""
    register()
    with composing():
        settings = compose("tune")
        with open_dict(settings):
            settings.results = RECORDS.as_posix()
        trials = all_trials(settings)
    all_scores(trials, settings, partial(recorded, records=committed.read(TRIALS)[0]))
    return result_files(trials, settings)
