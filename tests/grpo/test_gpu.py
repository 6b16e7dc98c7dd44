"""On a CUDA device: it learns there, and an update equals that of the CPU."""

import copy
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.toys import collected, parameters

from grpo_bench import GRPO
from grpo_bench.config.schema import NetworkConfig
from grpo_bench.training.networks import policy_kwargs

pytestmark = pytest.mark.gpu
HOMES = {
    "mlp": ("MlpPolicy", "GRPO-VLM-v0", {"source": "synthetic"}, {"body": "mlp"}),
    "transformer": (
        "MultiInputPolicy",
        "GRPO-Arithmetic-v0",
        {"max_tokens": 5},
        {"body": "transformer", "width": 16, "depth": 2, "heads": 2},
    ),
}


def make(name, device, **settings):
    policy, env_id, options, network = HOMES[name]
    body, arguments = network["body"], {k: v for k, v in network.items() if k != "body"}
    return GRPO(
        policy,
        gym.make_vec(env_id, 32, **options),
        group_size=4,
        n_problems=8,
        seed=0,
        device=device,
        policy_kwargs=policy_kwargs(NetworkConfig(body, arguments)),
        **settings,
    )


OPTIONS = {
    "exact": {"kl": "exact", "kl_coef": 0.1},
    "refills": {"max_refills": 2, "mask_truncated": True, "clip_dual": 3.0, "ent_coef": 0.01},
    "process": {"supervision": "process", "surrogate": "cispo", "ent_coef": 0.01},
    "moving": {"kl": "k1_reward", "kl_coef": 0.1, "ref_update_interval": 1, "ref_tau": 0.5},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", HOMES)
def test_it_learns_on_the_device(name, options):
    model = make(name, "cuda", n_epochs=2, batch_size=16, **options)
    before = parameters(model)
    model.learn(400)
    assert before.device.type == parameters(model).device.type == "cuda"
    assert torch.isfinite(parameters(model)).all() and not torch.equal(before, parameters(model))
    assert np.isfinite(list(model.logger.name_to_value.values())).all()


@pytest.mark.parametrize("kl", ["none", "k3", "exact"])
@pytest.mark.parametrize("name", HOMES)
def test_the_update_equals_that_of_the_cpu(name, kl):
    settings = {"kl": kl, "kl_coef": 0.0 if kl == "none" else 0.5, "n_epochs": 3}
    cpu, gpu = (make(name, device, **settings) for device in ("cpu", "cuda"))
    gpu.policy.load_state_dict(cpu.policy.state_dict())
    if kl != "none":
        gpu.reference.load_state_dict(cpu.reference.state_dict())
    rollout = collected(cpu)
    rollout.rewards[:, 0] += torch.linspace(-1, 2, len(rollout.rewards)).square()
    collected(gpu)
    gpu._rollout = on_device(copy.deepcopy(rollout), "cuda")
    for model in (cpu, gpu):
        model.train()
    torch.testing.assert_close(parameters(gpu).cpu(), parameters(cpu), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kl", ["none", "k3", "exact"])
@pytest.mark.parametrize("name", HOMES)
def test_passes_never_wait_for_the_device(name, kl):
    """An update fetches from the device once, however many passes and minibatches it has."""
    waits = []
    for n_epochs, batch_size in ((1, 32), (4, 8)):
        settings = {"n_epochs": n_epochs, "batch_size": batch_size, "ent_coef": 0.01}
        model = make(name, "cuda", kl=kl, kl_coef=0.0 if kl == "none" else 0.1, **settings)
        collected(model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                model.train()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        waits.append(sum("synchroniz" in str(warning.message) for warning in caught))
    assert waits[0] == waits[1]


ON_THE_HOST = ("rows", "mask", "truncated")


def on_device(rollout, device):
    for name, value in vars(rollout).items():
        if isinstance(value, torch.Tensor) and name not in ON_THE_HOST:
            setattr(rollout, name, value.to(device))
        elif isinstance(value, dict):
            setattr(rollout, name, {key: part.to(device) for key, part in value.items()})
    return rollout
