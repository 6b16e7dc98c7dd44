"""Each seed of a company takes the steps of its own run, draw for draw."""

from __future__ import annotations

import inspect
import math
from pathlib import Path

import pytest
import torch
from companies import Single, config, make_company

from grpo_bench import GRPO
from grpo_bench.batched.policy import clip_norm_of_each
from grpo_bench.grpo.advantages import BASELINES
from grpo_bench.grpo.kl import FORMS

pytestmark = pytest.mark.filterwarnings("ignore::grpo_bench.grpo.doctor.DoctorWarning")
SEEDS = (3, 1)
ITERATIONS = 3
SETTINGS = {
    "grpo": [],
    "synthetic": ["env=vlm_synthetic", "env.kwargs.n_choices=3"],
    "one batch, one epoch": ["algo.minibatches=1", "algo.n_epochs=1"],
    "deep": ["env.network.widths=[8,8,8]"],
    "small groups": ["algo.group_size=2"],
    **{
        name: [f"algo={name}"]
        for name in ("dr_grpo", "gspo", "cispo", "rloo", "reinforce_pp", "reinforce")
    },
    "grpo_paper": ["algo=grpo_paper", "algo.group_size=32"],
    **{f"baseline {name}": [f"algo.baseline={name}"] for name in BASELINES},
    **{f"kl {name}": [f"algo.kl={name}", "+algo.kl_coef=0.5"] for name in FORMS},
    "measured kl": ["algo.kl=exact"],
    "moving reference": [
        *("algo.kl=exact", "+algo.kl_coef=1.0"),
        *("+algo.ref_update_interval=1", "+algo.ref_tau=0.5"),
    ],
    "deviation": ["+algo.ddof=1", "+algo.eps=0.5"],
    "process": ["+algo.supervision=process"],
    "entropy": ["+algo.ent_coef=0.05"],
    "clips": ["+algo.clip_range_high=0.01", "algo.clip_range=0.005", "+algo.clip_dual=1.01"],
    "no clip of the norm": ["+algo.max_grad_norm=1e6"],
}
# Keywords of GRPO that no setting above varies, and why.
ELSEWHERE = {
    *("policy", "env", "n_problems", "batch_size", "max_len", "policy_kwargs"),  # job's
    *("stats_window_size", "seed", "device"),  # job's, too
    *("tensorboard_log", "verbose", "_init_setup_model"),  # SB3's, which job leaves alone
    *("max_refills", "spread_tol", "mixed_start"),  # refused, see why_alone
    *("mask_truncated", "nan_reward"),  # no episode of one step is cut off, no reward infinite
}


def test_no_option_is_forgotten() -> None:
    """A new keyword of GRPO needs a setting above, or a reason."""
    varied = {
        key for overrides in SETTINGS.values() for key in config(Path("x"), *overrides)["algo"]
    }
    assert set(inspect.signature(GRPO).parameters) - varied == ELSEWHERE


@pytest.mark.parametrize("name", SETTINGS)
def test_every_seed_equals_its_own_run(name: str) -> None:
    overrides = SETTINGS[name]
    company = make_company(SEEDS, ITERATIONS, *overrides)
    for _ in range(ITERATIONS):
        rollout = company.collect()
        metrics = company.update(rollout)
    for place, seed in enumerate(SEEDS):
        single = Single(seed, ITERATIONS, *overrides)
        assert torch.equal(company.generators[place].get_state(), single.generator_state)
        shape = rollout.actions[place].shape
        assert torch.equal(rollout.actions[place], single.rollout.actions.view(shape))
        assert torch.equal(rollout.returns[place], single.rollout.returns)
        assert torch.equal(rollout.observations[place], single.rollout.observations)
        company.give(place)
        mine, its = company.models[place], single.trained
        assert mine._n_updates == its._n_updates and mine.num_timesteps == its.num_timesteps
        for ours, theirs in zip(mine.policy.parameters(), its.policy.parameters(), strict=True):
            # parameters of about 0.1, and steps of 3e-3: a step missed or doubled is far off
            torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=2e-5)
            state = [model.policy.optimizer.state[p] for model, p in ((mine, ours), (its, theirs))]
            assert state[0].keys() == state[1].keys() and state[0]["step"] == state[1]["step"]
        if its.reference is not None:
            assert mine.reference is not None
            pairs = zip(mine.reference.parameters(), its.reference.parameters(), strict=True)
            for ours, theirs in pairs:
                torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
        has = {key: values[place] for key, values in metrics.items()}
        has = {key: value for key, value in has.items() if not math.isnan(value)}
        assert has == pytest.approx(single.logged, rel=1e-4, abs=1e-5)


def test_seeds_go_on_with_the_problems_of_their_own_runs() -> None:
    company = make_company(SEEDS, 1)
    company.collect()
    for place, seed in enumerate(SEEDS):
        source = Single(seed, 1).trained._source
        mine = company.models[place]._source
        assert source is not None and mine is not None
        assert mine.draw(50).tolist() == source.draw(50).tolist()


def test_the_norm_is_clipped_for_each_seed() -> None:
    """Gradients (3, 4) and (0.3, 0.4), norms 5 and 0.5: only the first is scaled to 1."""
    first, second = torch.zeros(2, 1, 1), torch.zeros(2, 1)
    first.grad, second.grad = torch.tensor([[[3.0]], [[0.3]]]), torch.tensor([[4.0], [0.4]])
    norms = clip_norm_of_each([first, second], 1.0)
    assert norms.tolist() == pytest.approx([5.0, 0.5])
    assert first.grad.flatten().tolist() == pytest.approx([0.6, 0.3])
    assert second.grad.flatten().tolist() == pytest.approx([0.8, 0.4])


def test_a_silenced_seed_leaves_the_others_alone() -> None:
    company, other = make_company(SEEDS, 2), make_company(SEEDS, 2)
    for each in (company, other):
        each.update(each.collect())
    with torch.no_grad():
        company.network.parameters[0][1] = torch.nan
    company.silence(1)
    for each in (company, other):
        each.update(each.collect())
    for mine, its in zip(company.network.parameters, other.network.parameters, strict=True):
        assert torch.isfinite(mine).all()
        assert torch.equal(mine[0], its[0])
