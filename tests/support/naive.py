"""A second implementation of GRPO's update: one transition at a time, without shared rows, padding,
weights or any function of the package."""

import copy
import math

import torch
from stable_baselines3.common.utils import obs_as_tensor

G, P = 4, 3
CLIP = {"clip_range": 0.1, "clip_range_high": 0.15}


class Episode:
    """The steps of one rollout, as lists."""

    def __init__(self, rollout, e):
        length = int(rollout.mask[e].sum())
        rows = rollout.rows[e, :length].tolist()
        if isinstance(rollout.observations, dict):
            parts = rollout.observations.items()
            self.seen = [{name: values[i][None].numpy() for name, values in parts} for i in rows]
        else:
            self.seen = [rollout.observations[i][None].numpy() for i in rows]
        self.actions = [rollout.actions[e, t][None] for t in range(length)]
        self.old_logp = [rollout.old_logp[e, t] for t in range(length)]
        self.rewards = rollout.rewards[e, :length].tolist()
        self.truncated = bool(rollout.truncated[e])
        self.advantages = []  # of each step

    def logp(self, policy):
        pairs = zip(self.seen, self.actions, strict=True)
        return [policy_at(policy, seen).log_prob(action) for seen, action in pairs]


def policy_at(policy, seen):
    return policy.get_distribution(obs_as_tensor(seen, "cpu"))


# -- advantages -----------------------------------------------------------------------------------


def naive_advantages(groups, baseline, ddof, eps):
    """Lists of numbers of each group -> lists of advantages, by the formulas."""
    everything = [r for group in groups for r in group]

    def std(values):
        mean = sum(values) / len(values)
        return math.sqrt(sum((r - mean) ** 2 for r in values) / max(len(values) - ddof, 1))

    def ranks(group):
        below = [sum(other < r for other in group) for r in group]
        equal = [sum(other == r for other in group) for r in group]
        return [b + (e + 1) / 2 for b, e in zip(below, equal, strict=True)]  # from 1, ties shared

    def of(group):
        n = len(group)
        if baseline == "none" or not group:
            return list(group)
        mean = sum(group) / n
        if n == 1 and baseline != "batch":
            return [0.0]
        if baseline == "rloo":
            return [r - (sum(group) - r) / (n - 1) for r in group]
        if baseline == "rank":
            return [(2 * rank - (n + 1)) / (n - 1) for rank in ranks(group)]
        centre = sum(everything) / len(everything) if baseline == "batch" else mean
        scale = 1.0
        if baseline != "group_mean":
            scale = std(group if baseline == "group" else everything) + eps
        return [(r - centre) / scale for r in group]

    return [of(group) for group in groups]


def discounted(rewards, gamma):
    return sum(gamma**t * r for t, r in enumerate(rewards))


def assign_advantages(model, groups, reference):
    """Give each step of each episode its advantage."""
    options, gamma = (model.baseline, model.ddof, model.eps), model.gamma
    if model.supervision == "return_to_go":
        longest = max(len(e.rewards) for g in groups for e in g)
        for t in range(longest):
            playing = [[e for e in g if len(e.rewards) > t] for g in groups]
            returns = [[discounted(e.rewards[t:], gamma) for e in g] for g in playing]
            results = naive_advantages(returns, *options)
            for group, values in zip(playing, results, strict=True):
                for episode, advantage in zip(group, values, strict=True):
                    episode.advantages.append(advantage)
    elif model.supervision == "outcome":
        results = naive_advantages(
            [[discounted(e.rewards, gamma) for e in g] for g in groups], *options
        )
        for group, values in zip(groups, results, strict=True):
            for episode, advantage in zip(group, values, strict=True):
                episode.advantages = [advantage] * len(episode.rewards)
    else:
        results = naive_advantages([[r for e in g for r in e.rewards] for g in groups], *options)
        for group, values in zip(groups, results, strict=True):
            rest = list(values)
            for episode in group:
                mine, rest = rest[: len(episode.rewards)], rest[len(episode.rewards) :]
                episode.advantages = [discounted(mine[t:], gamma) for t in range(len(mine))]
    if model.kl in ("k1_reward", "tutorial_reward"):
        sign = 1 if model.kl == "k1_reward" else -1
        for group in groups:
            pairs = [zip(e.old_logp, e.logp(reference), strict=True) for e in group]
            cost = [sign * sum((old - ref).item() for old, ref in pair) for pair in pairs]
            for i, episode in enumerate(group):
                others = (sum(cost) - cost[i]) / (len(cost) - 1)
                shift = -model.kl_coef * (cost[i] - others)
                episode.advantages = [a + shift for a in episode.advantages]


# -- the loss -------------------------------------------------------------------------------------


def naive_surrogate(model, rho, logp, advantage):
    """The objective of one action, and whether it is bounded."""
    bounded = rho.clamp(1 - CLIP["clip_range"], 1 + CLIP["clip_range_high"])
    if model.surrogate == "cispo":
        beyond = (rho > bounded and advantage > 0) or (rho < bounded and advantage < 0)
        return bounded.item() * advantage * logp, bool(beyond)
    value = torch.min(rho * advantage, bounded * advantage)
    if model.clip_dual and advantage < 0 and value < model.clip_dual * advantage:
        value = torch.full_like(value, model.clip_dual * advantage)
    return value, value.item() != (rho * advantage).item()


def naive_kl(form, now, then, action, old_logp):
    """What one action adds to the loss, times kl_coef."""
    logp = now.log_prob(action)
    x = logp - then.log_prob(action).detach()
    if form == "exact":
        p, q = now.distribution.probs, then.distribution.probs.detach()
        return (p * (p / q).log()).sum()
    k3 = torch.exp(-x) - 1 + x
    return {
        "k1": x, "tutorial": -x, "k2": x**2 / 2, "k3": k3,
        "k3_ratio": torch.exp(logp - old_logp) * k3,
        "k1_reward": 0 * x, "tutorial_reward": 0 * x,
    }[form]  # fmt: skip


def naive_loss(model, policy, reference, episodes, log):
    """Loss of one gradient step on these episodes."""
    n_tokens = sum(len(episode.rewards) for episode in episodes)
    loss, surrogates, notes = 0.0, 0.0, []
    for episode in episodes:
        length = len(episode.rewards)
        weight = {
            "sequence_mean": 1 / (len(episodes) * length),
            "token_mean": 1 / n_tokens,
            "constant_length": 1 / (len(episodes) * (model.max_len or 1)),
        }[model.aggregation]
        log_ratios = [
            new - old for new, old in zip(episode.logp(policy), episode.old_logp, strict=True)
        ]
        for t, (seen, action) in enumerate(zip(episode.seen, episode.actions, strict=True)):
            now, then = policy_at(policy, seen), policy_at(reference, seen)
            whole = model.ratio == "sequence"
            rho = (sum(log_ratios) / length if whole else log_ratios[t]).exp()
            logp = now.log_prob(action)
            value, bounded = naive_surrogate(model, rho, logp, episode.advantages[t])
            surrogates = surrogates - weight * value
            loss = loss - weight * value - model.ent_coef * weight * now.entropy()
            note = {
                "entropy_loss": -now.entropy().item(),
                "clip_fraction": bounded,
                "log_ratio": log_ratios[t].item(),
            }
            if model.kl != "none":
                old = episode.old_logp[t]
                loss = loss + model.kl_coef * weight * naive_kl(model.kl, now, then, action, old)
                for name, form in (("kl_ref", "exact"), ("kl_ref_k1", "k1"), ("kl_ref_k3", "k3")):
                    note[name] = naive_kl(form, now, then, action, old).item()
            notes.append(note)
    log.append({name: sum(note[name] for note in notes) / n_tokens for name in notes[0]})
    log[-1] |= {"loss": loss.item(), "policy_gradient_loss": surrogates.item()}
    log[-1]["log_ratios"] = [note["log_ratio"] for note in notes]
    return loss


def naive_update(model, policy, reference, rollout):
    """What ``train`` does, on copies of the policy and of the rollout; returns what it logs."""
    reference, log = copy.deepcopy(reference), []
    groups = [[Episode(rollout, p * G + i) for i in range(G)] for p in range(P)]
    finite = [[e for e in group if math.isfinite(sum(e.rewards))] for group in groups]
    assign_advantages(model, finite, reference)
    kept = [[e for e in g if not (model.mask_truncated and e.truncated)] for g in finite]
    per_batch = (model.batch_size or P * G) // G
    for _ in range(model.n_epochs):
        order = range(P) if per_batch == P else torch.randperm(P).tolist()
        for first in range(0, P, per_batch):
            batch = [e for g in list(order)[first : first + per_batch] for e in kept[g]]
            if not batch:
                continue
            loss = naive_loss(model, policy, reference, batch, log)
            policy.optimizer.zero_grad()
            loss.sum().backward()
            norm = sum(p.grad.square().sum() for p in policy.parameters()).sqrt().item()
            log[-1]["grad_norm"] = norm
            for p in policy.parameters():
                p.grad *= min(1.0, model.max_grad_norm / (norm + 1e-6))
            policy.optimizer.step()
    log_ratios = [x for batch in log for x in batch.pop("log_ratios")]
    means = {name: sum(batch[name] for batch in log) / len(log) for name in log[0]}
    del means["log_ratio"]
    approx = sum(math.exp(x) - 1 - x for x in log_ratios) / len(log_ratios)
    return means | {"approx_kl": approx}
