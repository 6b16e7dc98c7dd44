"""A side of ``lm_step.py``: the floor, only the work that every step needs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from _lm_sides import Settings, Turns, configuration, problems, serve
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_bench.lm.completions import Completions
from grpo_bench.lm.logprobs import Packed, pack
from grpo_bench.lm.models import load_model
from grpo_bench.lm.tasks import TextTask


def floor(settings: Settings, turns: Turns) -> None:
    """The floor of generation for one vector, for a vector per completion (timed as ``rows``), and
    the floor of the passes."""
    lm = load_model(settings.model)
    text = TextTask(configuration(settings).env, lm)
    weights = matrices(lm.model)
    completions = full_length(settings)
    for ids in problems(text.task, settings):
        with turns.phases("generation"):
            read(weights, 1, settings.new_tokens)
        with turns.phases("rows"):
            read(weights, settings.completions, settings.new_tokens)
        passes(lm.model, pack(text.prompts(ids), completions, settings.group_size))
        if not turns.stepped():
            return


def matrices(model: PreTrainedModel) -> list[Tensor]:
    """The weights that every token multiplies: all matrices except the embeddings, where it reads
    one row; tied embeddings count as the head."""
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    trunk = [weight for weight in model.get_decoder().parameters() if weight is not embeddings]
    return [weight.detach() for weight in (*trunk, head) if weight.dim() == 2]


def read(weights: Sequence[Tensor], rows: int, tokens: int) -> None:
    """Multiply each matrix by some vectors, once for each new token. For one vector this takes the
    time to read all weights, the least that a token can cost. Attention, norms, sampling and
    prompts come on top."""
    for _ in range(tokens):
        for weight in weights:
            nn.functional.linear(weight.new_ones(rows, weight.shape[1]), weight)


def passes(model: PreTrainedModel, rows: Packed) -> None:
    """The trunk forward and backward over each prompt, once, and its completions, with plain causal
    attention, and the head at the positions that predict completions. No softmax and no loss."""
    states = model.get_decoder()(input_ids=rows.ids, use_cache=False).last_hidden_state
    logits = model.get_output_embeddings()(states.flatten(0, 1)[rows.source])
    logits.backward(torch.ones_like(logits))
    model.zero_grad()


def full_length(settings: Settings) -> Completions:
    """Completions of full length; their tokens do not matter."""
    n, longest = settings.completions, settings.new_tokens
    ids = torch.zeros(n, longest, dtype=torch.long)
    return Completions(
        ids, torch.full((n,), longest), ids.float(), ids[:, 0] == 0, settings.group_size
    )


if __name__ == "__main__":
    serve(floor)
