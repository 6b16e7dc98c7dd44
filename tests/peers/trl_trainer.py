"""TRL's GRPOTrainer on rollouts, rewards and log-probabilities that a test has chosen.

Everything that TRL computes runs as it is: rewards to advantages, masks, the shuffle, the split
into micro-batches, the denominators, the loss and its backward pass. Only two things come from the
test: the completions, through TRL's own ``rollout_func``, and the log-probabilities, which
``GivenLogProbs`` looks up in a table instead of asking a network. The gradient that arrives in that
table is what is compared.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

os.environ["HF_HUB_OFFLINE"] = "1"  # before the imports: nothing here comes from a hub
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func calls itself experimental
pytest.importorskip("trl", reason="parity with TRL: make peers")

from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

GROUP = 4  # rollouts of one problem
LENGTH = 7  # tokens of the longest completion
MAX_LEN = 9  # the limit that TRL is told
PAD, EOS, WORD = 0, 1, 2  # token ids
VOCABULARY = 32


class Rollouts(NamedTuple):
    """n rollouts, GROUP of each problem; the first four are tables of (n, LENGTH) log-probabilities
    and entropies."""

    logp: Tensor
    old: Tensor
    ref: Tensor
    entropy: Tensor
    rewards: Tensor  # (n,)
    mask: Tensor  # (n, LENGTH) bool, tokens that the policy chose; ragged, with holes
    completions: list[list[int]]  # token ids; the last one is EOS unless it was truncated

    @property
    def ended(self) -> Tensor:
        """(n,) bool"""
        return torch.tensor([ids[-1] == EOS for ids in self.completions])


def draw(seed: int = 0, problems: int = 6, truncated: tuple[int, ...] = ()) -> Rollouts:
    """Random rollouts with ratios of tokens and of sequences on both sides of the bounds, ragged
    lengths, and tokens in between that are not the policy's (the answers of a tool)."""
    source = torch.Generator().manual_seed(seed)
    n = problems * GROUP
    shape = (n, LENGTH)
    old = -torch.rand(shape, generator=source) * 3 - 0.1
    logp = old + 0.4 * torch.randn(shape, generator=source)
    logp = logp + 0.2 * torch.randn((n, 1), generator=source)
    ref = old + 0.4 * torch.randn(shape, generator=source)
    lengths = torch.randint(2, LENGTH + 1, (n, 1), generator=source)
    lengths[0] = LENGTH
    own = torch.rand(shape, generator=source) < 0.8
    own[:, 0] = True  # no rollout is masked whole by chance
    return Rollouts(
        logp=logp.requires_grad_(),
        old=old,
        ref=ref,
        entropy=torch.rand(shape, generator=source).requires_grad_(),
        rewards=torch.randint(-8, 9, (n,), generator=source) / 8,  # exact in float32, as TRL's are
        mask=own & (torch.arange(LENGTH) < lengths),
        completions=[
            [WORD] * (int(length) - 1) + [WORD if i in truncated else EOS]
            for i, length in enumerate(lengths)
        ],
    )


class GivenLogProbs(GRPOTrainer):
    """A GRPOTrainer whose networks are tables. The prompt of rollout i is the token i."""

    rollouts: Rollouts

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, **_: Any
    ) -> tuple[Tensor, Tensor, None]:
        if model is self.ref_model:
            table = self.rollouts.ref
        elif torch.is_grad_enabled():
            table = self.rollouts.logp
        else:  # before the update: the policy that sampled
            table = self.rollouts.old
        rows = input_ids[:, 0]
        return table[rows, :logits_to_keep], self.rollouts.entropy[rows, :logits_to_keep], None


class Step(NamedTuple):
    """What TRL made of the micro-batches of one optimiser step."""

    loss: Tensor  # ()
    gradient: Tensor  # (n, LENGTH) by log-probability
    parts: list[Tensor]  # rows of the rollouts in each micro-batch
    metrics: dict[str, list[float]]


def trl_step(
    rollouts: Rollouts,
    folder: Path,
    micro_batches: int = 1,
    steps_per_generation: int | None = None,
    **config: Any,
) -> Step:
    """The first optimiser step that TRL takes on these rollouts: ``micro_batches`` calls of its
    ``training_step``, with the gradients adding up.

    ``steps_per_generation``, counted in micro-batches: those that the rollouts are split into.
    """
    parts = steps_per_generation or micro_batches
    trainer = trl_trainer(
        rollouts,
        folder,
        gradient_accumulation_steps=micro_batches,
        steps_per_generation=parts,
        per_device_train_batch_size=len(rollouts.rewards) // parts,
        **{"num_iterations": 2} | config,  # 1: TRL takes the ratio to be 1 and needs no old policy
    )
    trainer.current_gradient_accumulation_steps = micro_batches  # as Trainer.train would
    rollouts.logp.grad = rollouts.entropy.grad = None
    losses = [
        trainer.training_step(trainer.model, trl_inputs(rollouts), None)
        for _ in range(micro_batches)
    ]
    assert rollouts.logp.grad is not None
    rows = [part["prompt_ids"][:, 0] for part in trainer._buffered_inputs]
    return Step(sum(losses), rollouts.logp.grad, rows, trainer._metrics["train"])


def trl_scored(rollouts: Rollouts, folder: Path, **config: Any) -> dict[str, Tensor]:
    """What TRL trains on: completion_ids, completion_mask, advantages and so on, in their order."""
    size = len(rollouts.rewards)
    trainer = trl_trainer(rollouts, folder, per_device_train_batch_size=size, **config)
    trainer.model.train()
    return trainer._generate_and_score_completions(trl_inputs(rollouts)) | {
        "metrics": trainer._metrics["train"]
    }


def trl_inputs(rollouts: Rollouts) -> list[dict[str, Any]]:
    return [{"prompt": str(i), "reward": r} for i, r in enumerate(rollouts.rewards.tolist())]


def trl_trainer(
    rollouts: Rollouts,
    folder: Path,
    reward_funcs: Any = None,
    generate: bool = False,
    pad_token: str = str(PAD),
    **config: Any,
) -> GivenLogProbs:
    """A real trainer with the tables in place. ``generate``: the small model samples the
    completions itself. A reward of NaN becomes None, which tells TRL that there is none."""

    def given_reward(reward: list[float], **_: Any) -> list[float | None]:
        return [None if r != r else r for r in reward]

    def given_completions(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        masks = [
            rollouts.mask[i, : len(ids)].long().tolist()
            for i, ids in enumerate(rollouts.completions)
        ]
        return {
            "prompt_ids": [[int(prompt)] for prompt in prompts],
            "completion_ids": rollouts.completions,
            "logprobs": [[0.0] * len(ids) for ids in rollouts.completions],  # for vLLM alone
            "env_mask": masks,
        }

    defaults = {"num_generations": GROUP, "max_completion_length": MAX_LEN, "beta": 0.0}
    trainer = GivenLogProbs(
        model=LlamaForCausalLM.from_pretrained(folder),
        args=GRPOConfig(
            output_dir=str(folder / "out"), use_cpu=True, report_to="none", **defaults | config
        ),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(
                models.WordLevel({str(i): i for i in range(VOCABULARY)}, unk_token=str(WORD))
            ),
            pad_token=pad_token,
            eos_token=str(EOS),
        ),
        reward_funcs=reward_funcs or given_reward,
        train_dataset=Dataset.from_dict({"prompt": ["0"] * len(rollouts.rewards)}),
        rollout_func=None if generate else given_completions,
    )
    trainer.rollouts = rollouts
    return trainer


def save_model(folder: Path) -> Path:
    """A Llama of a few hundred weights; TRL reads its reference from a folder."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        pad_token_id=PAD,
        eos_token_id=EOS,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
