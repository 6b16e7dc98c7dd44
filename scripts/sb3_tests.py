"""``python scripts/sb3_tests.py FOLDER``: run Stable-Baselines3's or sb3-contrib's tests on GRPO.

FOLDER is ``tests`` of their source: ``pip download --no-deps --no-binary :all:
stable-baselines3==2.9.2 sb3-contrib==2.9.2`` and unpack it. Their tests of an on-policy algorithm
import A2C and TRPO, so GRPO takes their places, without the keywords that only these have; all that
this changes is in ``PLUGIN``.
Prints one line for each test that runs GRPO, and writes a table of counts by file.

    python scripts/sb3_tests.py stable_baselines3-2.9.2/tests test_run.py test_save_load.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd

PLUGIN = '''
"""GRPO in the places of A2C and TRPO."""
import sb3_contrib
import stable_baselines3

from grpo_bench import GRPO as Ours

THEIRS = {"n_steps", "gae_lambda", "vf_coef", "normalize_advantage", "rms_prop_eps",
          "use_rms_prop", "rollout_buffer_class", "rollout_buffer_kwargs", "n_critic_updates",
          "sub_sampling_factor", "cg_max_steps", "line_search_max_iter",
          "batch_size"}  # in transitions there


class GRPO(Ours):
    """Groups so small that the tests' few hundred steps hold some iterations. SB3's toy
    environments begin at random whatever the seed, so ``mixed_start``, and have up to 100 steps
    with a reward each, so ``return_to_go``."""

    def __init__(self, policy, env=None, *args, **keywords):
        kept = {name: value for name, value in keywords.items() if name not in THEIRS}
        small = {"group_size": 2, "n_problems": 4, "mixed_start": True,
                 "supervision": "return_to_go"}
        super().__init__(policy, env, *args, **{**small, **kept})


stable_baselines3.A2C = sb3_contrib.TRPO = GRPO
'''
FILES = [  # those that run an algorithm
    *("test_callbacks", "test_cnn", "test_custom_policy", "test_deterministic", "test_dict_env"),
    *("test_identity", "test_logger", "test_monitor", "test_predict", "test_run", "test_save_load"),
    *("test_sde", "test_spaces", "test_tensorboard", "test_train_eval_mode", "test_utils"),
    *("test_vec_check_nan", "test_vec_extract_dict_obs", "test_vec_monitor", "test_vec_normalize"),
]


def main() -> None:
    """Run the tests in a folder of their own; print each outcome and the counts by file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("files", nargs="*", help="default: those that run an algorithm")
    parser.add_argument("--seconds", type=int, default=60, help="limit of a test")
    options = parser.parse_args()
    known = [f"{name}.py" for name in FILES if (options.folder / f"{name}.py").exists()]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "grpo_for_a2c.py").write_text(PLUGIN)
        report = Path(folder) / "report.xml"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
        command = [sys.executable, "-m", "pytest", "-p", "grpo_for_a2c", "-p", "no:cacheprovider"]
        command += [
            "-q",
            "--no-header",
            "--tb=line",
            "-k",
            "GRPO",
            "--continue-on-collection-errors",
            f"--junitxml={report}",
        ]
        command += ["-o", f"faulthandler_timeout={options.seconds}"]
        subprocess.run(
            [*command, *(options.files or known)], cwd=options.folder, env=environment, check=False
        )
        outcomes = pd.DataFrame(map(outcome, ElementTree.parse(report).iter("testcase")))
    print(pd.crosstab(outcomes["file"], outcomes["outcome"]))
    wrong = outcomes[outcomes["outcome"] == "failed"]
    print("\n".join(f"{row.file}::{row.test}: {row.why}" for row in wrong.itertuples()))


def outcome(case: ElementTree.Element) -> dict[str, str]:
    """File, name, outcome and the first line of the reason of a test."""
    found = {child.tag: child for child in case}
    bad = found.get("failure", found.get("error"))
    skipped = found.get("skipped")
    kind = "failed" if bad is not None else "skipped" if skipped is not None else "passed"
    why = "" if bad is None else (bad.get("message") or "").splitlines()[0][:200]
    return {
        "file": (case.get("classname") or "").rpartition(".")[2],
        "test": case.get("name") or "",
        "outcome": kind,
        "why": why,
    }


if __name__ == "__main__":
    main()
