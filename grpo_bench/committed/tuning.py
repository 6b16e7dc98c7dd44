"""Which trials of the tuning won: conf/tuned and a table, from the records of all trials."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import open_dict

from grpo_bench import tune, tuned
from grpo_bench.committed.places import RESULTS
from grpo_bench.committed.records import TRIALS
from grpo_bench.config import CONF
from grpo_bench.records.load import load_ends

RECORDS = RESULTS / TRIALS


def composing() -> AbstractContextManager[None]:
    """Where configurations can be composed; a program of Hydra's can already."""
    if GlobalHydra.instance().is_initialized():
        return nullcontext()
    context: AbstractContextManager[None] = initialize_config_dir(str(CONF), version_base="1.3")
    return context


def files(root: Path) -> dict[Path, str]:
    """``trials.csv``, ``trials.md``, ``chosen.md`` and conf/tuned."""
    with composing():
        settings = compose("tune")
        with open_dict(settings):
            settings.results = RECORDS.as_posix()
        trials = tune.all_trials(settings)
    tune.all_scores(trials, settings, partial(tune.recorded, records=load_ends(root / RECORDS)))
    return tuned.files(trials, settings)
