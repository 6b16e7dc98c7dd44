"""Random rollouts, split and joined again."""

import copy

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.toys import group

from grpo_bench.grpo.dynamic import join, select
from grpo_bench.grpo.rollout import Rollout


@st.composite
def rollouts(draw):
    """Random groups with ragged episodes; members of a group share their first observation."""
    size, n = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    as_dict, width = draw(st.booleans()), draw(st.sampled_from([(), (2,)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    lengths = torch.randint(1, 5, (n * size,), generator=generator)
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    rows = torch.zeros(mask.shape, dtype=torch.long)
    rows[:, 0] = torch.arange(n).repeat_interleave(size)
    later = mask.clone()
    later[:, 0] = False
    rows[later] = n + torch.arange(int(later.sum()))
    m = n + int(later.sum())
    values = torch.rand((m, 2), generator=generator)

    def random(*shape):
        numbers = torch.rand((*mask.shape, *shape), generator=generator)
        return numbers * mask.view(*mask.shape, *[1] * len(shape))

    return Rollout(
        observations={"a": values, "b": values[:, 0]} if as_dict else values,
        rows=rows,
        actions=random(*width),
        old_logp=random(),
        rewards=random(),
        mask=mask,
        truncated=torch.rand(n * size, generator=generator) < 0.5,
        success=torch.rand(n * size, generator=generator).numpy(),
        starts=np.arange(1, 1 + n),
        group_size=size,
    )


@given(rollouts(), st.data())
def test_join_undoes_select(rollout, data):
    n = len(rollout.starts)
    chosen = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    one, two = select(rollout, chosen), select(rollout, ~chosen)
    whole = join(one, two)
    assert sorted(whole.starts) == sorted(rollout.starts)
    assert one.starts.tolist() == rollout.starts[chosen.numpy()].tolist()
    for part in (one, two, whole):
        for problem in part.starts:
            assert group(part, problem) == group(rollout, problem)
        seen = part.observations["b"] if isinstance(part.observations, dict) else part.observations
        used = part.rows[part.mask].unique()
        assert used.tolist() == list(range(len(seen))), "only what was met, and all of that"
        outside = ~part.mask
        for name in ("rows", "old_logp", "rewards", "actions"):
            assert (getattr(part, name)[outside] == 0).all(), name
        for name in ("actions", "rows", "old_logp", "rewards", "truncated"):
            assert getattr(part, name).dtype == getattr(rollout, name).dtype
            assert len(getattr(part, name)) == len(part.starts) * part.group_size


@given(rollouts(), st.integers(1, 3))
def test_join_pads_to_the_longer(rollout, extra):
    longer = copy.deepcopy(rollout)
    for name in ("rows", "actions", "old_logp", "rewards", "mask"):
        values = getattr(longer, name)
        padding = values.new_zeros((len(values), extra, *values.shape[2:]))
        setattr(longer, name, torch.cat([values, padding], dim=1))
    longer.starts = longer.starts + 100
    for one, two in ((rollout, longer), (longer, rollout)):
        whole = join(one, two)
        assert whole.mask.shape == (2 * len(rollout.mask), longer.mask.shape[1])
        for problem in rollout.starts:
            assert group(whole, problem) == group(rollout, problem)
            assert group(whole, problem + 100) == group(rollout, problem)
