"""GRPO and PPO on a causal language model. ``update`` is the algorithm, top to bottom.

Both use the same groups of completions, minibatches, micro-batches, loss and optimiser. They differ
in the source of the advantages: the other completions of the group, or a critic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from grpo_bench.config.schema import TextEnvConfig
from grpo_bench.fast.gradients import check_gradient
from grpo_bench.grpo.doctor import Doctor
from grpo_bench.grpo.kl import sample_term
from grpo_bench.grpo.loss import ValueLoss, step_loss, value_loss
from grpo_bench.grpo.objectives import aggregation_weights
from grpo_bench.grpo.seeds import stream
from grpo_bench.grpo.spread import spread_metrics
from grpo_bench.lm.completions import group_tokens, micro_batches, rows_of
from grpo_bench.lm.critics import Critic
from grpo_bench.lm.logprobs import check_model, completion_logprobs
from grpo_bench.lm.lora import Reference
from grpo_bench.lm.models import LanguageModel
from grpo_bench.lm.optimizer import make_optimizer
from grpo_bench.lm.parallel import World
from grpo_bench.lm.rollout import (
    Rollout,
    joined_rollouts,
    played_by_all,
    rollout_metrics,
    without_spread_of_success,
)
from grpo_bench.lm.settings import Settings
from grpo_bench.lm.sharding import units, whole
from grpo_bench.lm.signals import Signal, critic_signal, group_signal, own_rows, penalties_of
from grpo_bench.lm.step_log import StepLog
from grpo_bench.lm.tasks import TextTask
from grpo_bench.lm.vllm_backend import generator_of
from grpo_bench.meter.clock import Phases


class Trainer:
    """Trains a policy, one iteration at a time.

    Args:
        lm: the policy.
        task: the problems and their scores.
        settings: of the algorithm.
        env: the environment, with its generation and its batches.
        optimizer: a name in ``optimizer.OPTIMIZERS``.
        critic: of PPO; see ``critics.make_critic``.
        reference: if ``settings.kl`` needs one.
        seed: of the run; problems and tokens have separate streams.
        world: the processes that train together.
        phases: the clock of ``generation``, ``scoring``, ``logprobs`` (of the reference),
            ``critic`` (its values, loss and step) and ``update``.

    Raises:
        ValueError: a model for which generation or log-probabilities would be wrong, or groups
            that may not fit into ``max_tokens``.
    """

    def __init__(
        self,
        lm: LanguageModel,
        task: TextTask,
        settings: Settings,
        env: TextEnvConfig,
        *,
        optimizer: str = "adamw",
        critic: Critic | None = None,
        reference: Reference | None = None,
        seed: int = 0,
        world: World | None = None,
        phases: Phases | None = None,
    ) -> None:
        with whole(lm.model):
            check_model(lm.model)
        if settings.max_refills and world is not None and world.size > 1:
            raise ValueError(
                f"max_refills={settings.max_refills} in {world.size} processes, which would play "
                "different numbers of groups: expected 0"
            )
        self.lm, self.task, self.settings = lm, task, settings
        self.generate = generator_of(env.generation.backend, lm)
        self.critic, self.reference = critic, reference
        self.world = World() if world is None else world
        self.phases = Phases(lm.model.device) if phases is None else phases
        self.doctor = Doctor()
        self.n_problems = env.train.episodes // settings.group_size
        self.world.check_parts(self.n_problems, settings.minibatches)
        self.max_tokens = env.train.max_tokens
        self.max_new_tokens = env.generation.max_new_tokens
        self._check_group_fits()
        self.temperature = env.generation.temperature
        self.shuffled = env.shuffled_rewards
        self.parameters = [p for p in lm.model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(optimizer, self.parameters, settings.learning_rate)
        self.critic_optimizer = None
        if critic is not None:
            self.critic_optimizer = make_optimizer(
                optimizer, critic.parameters(), settings.learning_rate
            )
        self.problem_rng = np.random.default_rng(stream(seed, "environment"))
        shared, *own = stream(seed, "policy").spawn(1 + self.world.size)
        self.group_rng = np.random.default_rng(shared)
        tokens = int(own[self.world.rank].generate_state(1)[0])
        self.token_rng = torch.Generator().manual_seed(tokens)
        self.gradient_steps = 0
        self.doctor.examine_settings(
            settings.kl, settings.kl_coef, settings.n_epochs * settings.minibatches
        )

    # -- the rollout ------------------------------------------------------------------------------

    def collect(self) -> Rollout:
        """Groups of scored completions of new problems. Dynamic sampling (DAPO, arXiv 2503.14476)
        replaces groups whose outcomes are all alike, in at most ``max_refills`` rounds."""
        rollout = self._play(self.n_problems)
        for _ in range(self.settings.max_refills):
            flat = without_spread_of_success(rollout, self.settings.spread_tol)
            if not flat.any():
                break
            fresh = self._play(int(flat.sum()))
            kept, dropped = ((~flat).nonzero()[0].tolist(), flat.nonzero()[0].tolist())
            gone = (*rollout.replaced, rollout.of_groups(dropped))
            rollout = replace(joined_rollouts(rollout.of_groups(kept), fresh), replaced=gone)
        return rollout

    def _play(self, n_problems: int) -> Rollout:
        """This rank's part of ``n_problems`` groups."""
        ids = self.task.sample(self.problem_rng, n_problems)[self.world.own(n_problems)]
        with self.phases("generation"), whole(self.lm.model):
            prompts = self.task.prompts(ids)
            completions = self.generate(
                self.lm.model,
                prompts,
                self.settings.group_size,
                self.max_new_tokens,
                self.temperature,
                self.lm.eos_ids,
                self.token_rng,
            )
        with self.phases("scoring"):
            texts = self.task.texts(completions)
            problems = ids.repeat(self.settings.group_size)
            outcome = self.task.judge(problems, texts, completions.truncated.cpu().numpy())
        return Rollout(ids, prompts, completions, texts, outcome)

    # -- the update -------------------------------------------------------------------------------

    def update(self, rollout: Rollout, remaining: float = 1.0) -> dict[str, float]:
        """``n_epochs`` passes over the rollout in minibatches of whole groups.

        Args:
            remaining: the share of the learning rate, from 1 to 0.

        Returns:
            Metrics, with the names of the Gym track.

        Raises:
            FloatingPointError: a gradient is not finite; the weights are those before its step.
        """
        self._set_learning_rate(remaining * self.settings.learning_rate)
        log = StepLog()
        ref_logp = self._reference_logp(rollout)  # (n, T), None without KL
        signal = self._signal(rollout, ref_logp)
        for _ in range(self.settings.n_epochs):
            for groups in self._minibatches(len(rollout.prompts)):
                self._step(rollout, signal, groups, log)
        metrics = log.means(self.world)
        played = [played_by_all(part, self.world) for part in (rollout, *rollout.replaced)]
        spread = {f"rollout/{name}": value for name, value in spread_metrics(played).items()}
        return {**rollout_metrics(played[0]), **spread, **metrics}

    def _step(self, rollout: Rollout, signal: Signal, groups: list[int], log: StepLog) -> None:
        """One optimiser step on some groups. Every denominator is fixed before they are split."""
        completions = rollout.completions
        rows = signal.rows(groups)
        weights = self._weights(signal.mask[rows])  # (n, T)
        log.add_minibatch(signal.mask[rows])
        learning = self._with_gradient(signal, groups)
        tokens = group_tokens(
            [rollout.prompts[groups[i]] for i in learning],
            completions.of_groups([groups[i] for i in learning]),
        )
        batches = micro_batches(tokens, self.max_tokens)
        for batch in batches:
            chosen = [learning[i] for i in batch]
            part = rollout.of_groups([groups[i] for i in chosen])
            places = signal.rows(chosen)
            self._backward(part, signal.of(rows[places]), weights[places], log)
        if units(self.lm.model):  # ranks pass together: a rank that is done adds passes of weight 0
            for _ in range(self.world.most(len(batches)) - len(batches)):
                self._backward(part, signal.of(rows[places]), 0 * weights[places], StepLog())
        with self.phases("update"):
            self.world.sum_gradients(self.parameters)
            norm = self.world.clip_gradients(self.parameters, self.settings.max_grad_norm)
            check_gradient(norm, self.gradient_steps + 1)
            log.add_step(norm)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        if self.critic is not None and self.critic_optimizer is not None:
            with self.phases("critic"):
                weights_of_critic = self.critic.parameters()
                self.world.sum_gradients(weights_of_critic)
                norm = self.world.clip_gradients(weights_of_critic, self.settings.max_grad_norm)
                check_gradient(norm, self.gradient_steps + 1)
                self.critic_optimizer.step()
                self.critic_optimizer.zero_grad(set_to_none=True)
        self.gradient_steps += 1

    def _backward(self, part: Rollout, signal: Signal, weights: Tensor, log: StepLog) -> None:
        """Add the gradient of ``grpo.loss.step_loss`` for some groups of a step."""
        s, completions = self.settings, part.completions
        mask, old_logp = signal.mask, completions.logp
        own_critic = self.critic if s.critic != "shared" else None
        shared_head = self.critic.head if self.critic is not None and own_critic is None else None
        with self.phases("update"):
            now = completion_logprobs(
                self.lm.model,
                part.prompts,
                completions,
                self.temperature,
                entropy=s.ent_coef > 0,
                value_head=shared_head,
            )
            kl = value = None
            if s.kl_in("loss"):
                assert signal.ref_logp is not None
                kl = sample_term(s.kl, now.logp, signal.ref_logp, old_logp, mask)
            if now.value is not None:
                value = self._value_loss(now.value, signal, weights, log)
            loss = step_loss(
                now.logp,
                old_logp,
                signal.advantages,
                mask,
                weights,
                s,
                s.clip(),
                entropy=now.entropy,
                kl=kl,
                value=value,
                vf_coef=s.vf_coef,
            )
            loss.total.backward()
        log.add(now.logp.detach(), completions, signal, loss)
        if own_critic is not None:
            with self.phases("critic"):
                values = own_critic.values(part.prompts, completions)
                value_term = s.vf_coef * self._value_loss(values, signal, weights, log).loss
                value_term.backward()
            log.add_loss(value_term)

    def _value_loss(
        self, values: Tensor, signal: Signal, weights: Tensor, log: StepLog
    ) -> ValueLoss:
        """The critic's loss on some groups of a step."""
        assert signal.old_values is not None and signal.returns is not None
        loss = value_loss(
            values, signal.old_values, signal.returns, weights, self.settings.clip_range_vf
        )
        log.add_value(loss.loss)
        return loss

    # -- the pieces of an update ------------------------------------------------------------------

    def _signal(self, rollout: Rollout, ref_logp: Tensor | None) -> Signal:
        """The advantages of a rollout, and the returns for a critic."""
        s, completions = self.settings, rollout.completions
        rewards = torch.from_numpy(rollout.outcome.reward).float().to(completions.ids.device)
        rewards = self.world.gather(rewards)  # of all ranks
        if self.shuffled:
            rewards = rewards[torch.from_numpy(self.group_rng.permutation(len(rewards)))]
        penalties = penalties_of(completions, ref_logp, s)  # (n, T), off the return
        if self.critic is not None:
            values = self._old_values(rollout)
            return critic_signal(completions, rewards, penalties, ref_logp, values, s, self.world)
        signal = group_signal(completions, rewards, penalties, ref_logp, s, self.world)
        self.doctor.examine_advantages(signal.advantages, float(rollout.success.mean()))
        return signal

    def _old_values(self, rollout: Rollout) -> Tensor:
        """The critic's value of the state before each token, (n, T)."""
        assert self.critic is not None
        values = torch.zeros_like(rollout.completions.logp)
        model, trunk = self.lm.model, self.critic.trunk
        with self.phases("critic"), torch.no_grad(), whole(model), whole(trunk):
            for groups in self._micro_batches(rollout):
                part = rollout.of_groups(groups)
                rows = rows_of(groups, rollout.group_size)
                values[rows] = self.critic.values(part.prompts, part.completions)
        return values

    def _reference_logp(self, rollout: Rollout) -> Tensor | None:
        """The log-probability of each token under the reference, (n, T)."""
        if self.reference is None:
            return None
        logp = torch.zeros_like(rollout.completions.logp)
        with self.phases("logprobs"), self.reference.active() as model, whole(model):
            for groups in self._micro_batches(rollout):
                part = rollout.of_groups(groups)
                rows = rows_of(groups, self.settings.group_size)
                said = completion_logprobs(model, part.prompts, part.completions, self.temperature)
                logp[rows] = said.logp
        return logp

    def _check_group_fits(self) -> None:
        """A group is never split, so check now that the longest fits, not hours later."""
        group_size = self.settings.group_size
        longest = len(self.task.longest_prompt()) + group_size * (self.max_new_tokens - 1)
        if longest > self.max_tokens:
            raise ValueError(
                f"env.train.max_tokens={self.max_tokens}: expected at least {longest}, for a "
                f"prompt and {group_size} completions of {self.max_new_tokens} tokens"
            )

    def _with_gradient(self, signal: Signal, groups: list[int]) -> list[int]:
        """The places of the groups of a step that contribute to its gradient, at least one. Without
        critic, KL and entropy in the loss, a group whose advantages are all 0 adds only zeros."""
        s = self.settings
        if self.critic is not None or s.kl_in("loss") or s.ent_coef:
            return list(range(len(groups)))
        taught = signal.advantages[signal.rows(groups)].view(len(groups), -1).any(dim=1)
        return taught.nonzero().flatten().tolist() or [0]

    def _micro_batches(self, rollout: Rollout) -> list[list[int]]:
        return micro_batches(group_tokens(rollout.prompts, rollout.completions), self.max_tokens)

    def _minibatches(self, n_groups: int) -> Iterator[list[int]]:
        """The groups in random order, in equal parts."""
        order = self.group_rng.permutation(n_groups)
        for part in np.split(order, self.settings.minibatches):
            yield part.tolist()

    def _weights(self, mask: Tensor) -> Tensor:
        """The weight of each token in the loss of a step, which spans the rollouts of all ranks."""
        everyone = self.world.gather(mask)
        weights = aggregation_weights(everyone, self.settings.aggregation, self.settings.max_len)
        return own_rows(weights, self.world)[:, : mask.shape[1]]

    def _set_learning_rate(self, rate: float) -> None:
        for optimizer in (self.optimizer, self.critic_optimizer):
            for group in optimizer.param_groups if optimizer is not None else ():
                group["lr"] = rate
