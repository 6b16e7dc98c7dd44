"""The torch view of GRPO-VLM: the numpy view's problems, rewards and infos, on a device."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from grpo_envs.task import SPLITS
from grpo_envs.vlm import VLMTask

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
both_modes = pytest.mark.parametrize("mode", MODES)
every_split = pytest.mark.parametrize("split", SPLITS)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
on_each_device = pytest.mark.parametrize("device", DEVICES)
IDS = {split: VLMTask().problem_ids(split) for split in SPLITS}


def make(n, device="cpu", **options):
    return gym.make_vec("GRPO-VLM-v0", num_envs=n, device=device, **options)


def numpy_view(n, **options):
    return gym.make_vec("GRPO-VLM-v0", num_envs=n, **options)


def on_host(given):
    """The result of reset() or step() with arrays for tensors and numpy's names of types."""
    if isinstance(given, tuple):
        return tuple(map(on_host, given))
    if isinstance(given, dict):
        return {name: on_host(value) for name, value in given.items()}
    return given.cpu().numpy()


def assert_alike(tensors, arrays):
    """Equal structure, shapes, types and values."""
    if isinstance(arrays, tuple):
        assert len(tensors) == len(arrays)
        for one, other in zip(tensors, arrays, strict=True):
            assert_alike(one, other)
    elif isinstance(arrays, dict):
        assert tensors.keys() == arrays.keys()
        for name in arrays:
            assert_alike(tensors[name], arrays[name])
    else:
        assert tensors.dtype == arrays.dtype
        np.testing.assert_array_equal(tensors, arrays)


def leaves(given):
    """The tensors in the result of reset() or step()."""
    if isinstance(given, torch.Tensor):
        return [given]
    parts = given.values() if isinstance(given, dict) else given
    return [leaf for part in parts for leaf in leaves(part)]


# -- against the numpy view -----------------------------------------------------------------------


@on_each_device
@every_split
def test_all_problems_of_a_split_are_those_of_the_numpy_view(split, device):
    """Every problem with every action, to the bit."""
    ids = IDS[split]
    ours = make(len(ids), device, split=split, autoreset_mode=AutoresetMode.DISABLED)
    theirs = numpy_view(len(ids), split=split, autoreset_mode=AutoresetMode.DISABLED)
    assert ours.device.type == device
    for action in range(4):
        for env_ids in (ids, torch.from_numpy(ids).to(device)):
            started = ours.reset(options={"problem_id": env_ids})
        assert_alike(on_host(started), theirs.reset(options={"problem_id": ids}))
        actions = np.full(len(ids), action)
        stepped = ours.step(torch.from_numpy(actions).to(device))
        assert {leaf.device for leaf in leaves(stepped)} == {ours.device}
        assert_alike(on_host(stepped), theirs.step(actions))


@both_modes
def test_episodes_start_and_end_as_in_the_numpy_view(mode):
    """The same calls, with ids where problems start; under DISABLED some episodes wait."""
    n, rng = 6, np.random.default_rng(0)
    ours, theirs = make(n, autoreset_mode=mode), numpy_view(n, autoreset_mode=mode)
    for _ in range(20):
        ids = rng.choice(IDS["train"], size=n)
        mask = rng.random(n) < 0.5 if ours._ids is not None else np.ones(n, dtype=bool)
        options = {"problem_id": ids.astype(float), "reset_mask": mask}
        assert_alike(on_host(ours.reset(options=options)), theirs.reset(options=options))
        actions = rng.integers(4, size=n)
        stepped = on_host(ours.step(torch.from_numpy(actions)))
        expected = theirs.step(actions)
        if mode is AutoresetMode.SAME_STEP:  # new episodes come from another stream
            drawn = expected[4]["problem_id"] = stepped[4]["problem_id"]
            observed = theirs.task.source.observe(drawn.astype(np.int64))
            expected = (observed, *expected[1:])
            ours.reset(options={"problem_id": ids})
            theirs.reset(options={"problem_id": ids})
        assert_alike(stepped, expected)
    masks = ours.action_masks()
    assert_alike(masks.numpy(), theirs.action_masks())


def test_spaces_metadata_and_spec_are_those_of_the_numpy_view():
    ours, theirs = make(3, "auto", split="test"), numpy_view(3, split="test")
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata == theirs.metadata
    assert ours.unwrapped.spec.kwargs["device"] == "auto"
    assert ours.unwrapped.task.oracle_score == 1.0


@pytest.mark.parametrize("render_mode", [None, "ansi", "rgb_array"])
def test_pictures_are_those_of_the_numpy_view(render_mode):
    ours, theirs = (
        made(2, render_mode=render_mode, autoreset_mode=AutoresetMode.DISABLED)
        for made in (make, numpy_view)
    )
    assert ours.render() is None
    for env in (ours, theirs):
        env.reset(options={"problem_id": [5, 40_000]})
    for actions in (None, np.array([1, 2])):
        if actions is not None:
            ours.step(torch.from_numpy(actions))
            theirs.step(actions)
        np.testing.assert_equal(ours.render(), theirs.render())


# -- its own stream of problems -------------------------------------------------------------------


@on_each_device
@every_split
def test_problems_are_drawn_uniformly_from_the_split(split, device):
    """By reset(), by the steps and by draw_problems(): the chi-squared statistic over all ids of
    the split is within five standard deviations, sqrt(2 df), of its mean, df."""
    ids, n = IDS[split], 20_000
    env = make(n, device, split=split)
    _, infos = env.reset(seed=0)
    drawn = [infos["problem_id"], env.draw_problems(n)]
    assert drawn[1].dtype == torch.int64
    actions = torch.zeros(n, dtype=torch.int64, device=env.device)
    drawn += [env.step(actions)[4]["problem_id"] for _ in range(10)]
    places = np.searchsorted(ids, torch.cat(drawn).long().cpu().numpy())
    assert np.isin(torch.cat(drawn).cpu().numpy(), ids).all()
    counts = np.bincount(places, minlength=len(ids))
    expected, df = 12 * n / len(ids), len(ids) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert abs(statistic - df) < 5 * np.sqrt(2 * df)


@on_each_device
def test_a_seed_fixes_the_problems(device):
    def play(env, seed):
        actions = torch.zeros(8, dtype=torch.int64, device=env.device)
        drawn = [env.reset(seed=seed)[1], *(env.step(actions)[4] for _ in range(3))]
        drawn.append({"problem_id": env.draw_problems(8)})
        return torch.stack([infos["problem_id"].double() for infos in drawn])

    one, two = make(8, device), make(8, device)
    first = play(one, 5)
    assert torch.equal(first, play(two, 5))
    assert torch.equal(first, play(two, 5))
    assert not torch.equal(first, play(two, 6))
    assert not torch.equal(play(make(8, device), None), play(make(8, device), None))


def test_reset_without_a_mask_or_with_one_starts_what_it_should():
    env = make(200, autoreset_mode=AutoresetMode.DISABLED)
    _, before = env.reset(seed=1)
    actions = torch.zeros(200, dtype=torch.int64)
    env.step(actions)
    mask = torch.arange(200) < 50
    _, after = env.reset(options={"reset_mask": mask})
    same = before["problem_id"] == after["problem_id"]
    assert same[~mask].all() and same[mask].sum() < 5
    _, rewards, terminated, truncated, _ = env.step(actions)
    assert (rewards[mask] != 0).all() and (rewards[~mask] == 0).all()
    assert terminated.all() and not truncated.any()


@both_modes
def test_results_share_no_memory_with_the_environment(mode):
    """Overwriting every argument and result changes no later result."""
    ids = torch.arange(4)
    kept, spoilt = make(4, autoreset_mode=mode), make(4, autoreset_mode=mode)
    for env in (kept, spoilt):
        env.reset(seed=0)
    for _ in range(4):
        given = ids.clone()
        expected = kept.reset(options={"problem_id": ids})
        started = spoilt.reset(options={"problem_id": given})
        assert_alike(on_host(started), on_host(expected))
        for leaf in [given, *leaves(started)]:
            leaf.zero_()
        actions = torch.arange(4)
        stepped, expected = spoilt.step(actions), kept.step(torch.arange(4))
        assert_alike(on_host(stepped), on_host(expected))
        for leaf in [actions, *leaves(stepped)]:
            leaf.zero_()


# -- bad input ------------------------------------------------------------------------------------


def test_an_action_out_of_range_is_a_wrong_answer():
    env = make(3, autoreset_mode=AutoresetMode.DISABLED)
    env.reset(options={"problem_id": [0, 1, 2]})
    _, rewards, *_ = env.step(torch.tensor([-1, 4, 99]))
    assert rewards.tolist() == [-0.5] * 3


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros(3, dtype=int), "type ndarray: expected a tensor"),
        (torch.zeros(2, dtype=torch.int64), r"shape \(2,\).* expected a tensor \(3,\) of integers"),
        (torch.zeros(3), "torch.float32 on cpu: expected a tensor"),
        (torch.zeros(3, dtype=torch.bool), "torch.bool on cpu: expected a tensor"),
        (torch.zeros(3, dtype=torch.int64, device="meta"), "on meta: expected .* on cpu"),
    ],
)
def test_actions_that_are_refused(actions, message):
    env = make(3)
    env.reset()
    with pytest.raises(ValueError, match=message):
        env.step(actions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"problem_id": [1, 2]}, r"problem_id of shape \(2,\): expected \(3,\)"),
        ({"problem_id": torch.tensor([1, 2, 48_248])}, "problem id 48248: expected whole numbers"),
        ({"problem_id": [1, 2, 2.5]}, "problem id 2.5: expected whole numbers"),
        ({"reset_mask": [True, False]}, r"reset_mask of shape \(2,\)"),
        ({"reset_mask": torch.ones(3)}, "type torch.float32: expected"),
        ({"seed": 1}, "unknown"),
    ],
)
def test_options_of_reset_that_are_refused(options, message):
    env = make(3)
    env.reset()
    with pytest.raises(ValueError, match=message):
        env.reset(options=options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "synthetic"}, "source='synthetic' on a device: expected 'easy_vqa'"),
        ({"source": "nonsense"}, "source='nonsense': expected 'easy_vqa' or"),
        ({"autoreset_mode": "NextStep"}, "NEXT_STEP on a device: expected SAME_STEP or DISABLED"),
        ({"split": "dev"}, "split='dev': expected one of"),
        ({"render_mode": "human"}, "render_mode='human'"),
    ],
)
def test_arguments_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(3, **options)


def test_the_first_reset_starts_all():
    env = make(3)
    for too_soon in (lambda: env.step(torch.zeros(3, dtype=torch.int64)), env.action_masks):
        with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
            too_soon()
    with pytest.raises(RuntimeError, match="the first reset"):
        env.reset(options={"reset_mask": [True, False, True]})
    with pytest.raises(ValueError, match="num_envs=0"):
        make(0)


def test_without_torch_only_a_device_is_refused():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import gymnasium, grpo_envs\n"
        "gymnasium.make_vec('GRPO-VLM-v0', num_envs=2).reset()\n"
        "try: gymnasium.make_vec('GRPO-VLM-v0', num_envs=2, device='cpu')\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "device='cpu' needs torch: install it\n", done.stderr


# -- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
@both_modes
def test_nothing_waits_for_the_device(mode):
    """Steps, resets and draws under a debug mode in which a synchronisation is an error."""
    env = make(256, "cuda", autoreset_mode=mode)
    env.reset(seed=0)
    actions = torch.randint(4, (256,), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            _, _, terminated, truncated, _ = env.step(actions)
            env.reset(options={"reset_mask": terminated | truncated})
            env.draw_problems(32)
            env.action_masks()
            env.reset(seed=1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (env.step(actions)[1] > 0).any()
