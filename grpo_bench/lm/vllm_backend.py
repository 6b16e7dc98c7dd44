"""Generation by vLLM, on a CUDA device: instead of ``generation.generate``, with the same meaning.

Its kernels are not the trainer's, so its log-probabilities differ by rounding: the ratio of the
first update is not exactly 1, and the trainer says by how much.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PreTrainedModel

from grpo_bench.lm.completions import Completions
from grpo_bench.lm.generation import generate
from grpo_bench.lm.models import LanguageModel
from grpo_bench.lm.parallel import World
from grpo_bench.lm.saving import plain_weights, save_pretrained

Generate = Callable[..., Completions]  # ``generation.generate``, and what stands in for it
LONGEST = 8192  # tokens of a prompt and its completion: the cache needs room for one such text

MEMORY = 0.3  # the part of the card's memory for the copy and its cache


def check_backend(name: str, world: World) -> None:
    """That a backend of generation can work here.

    Raises:
        ValueError: there is none of that name, or it lacks its package, a card, or a process that
            is alone.
    """
    if name not in ("native", "vllm"):
        raise ValueError(f"env.generation.backend={name!r}: expected native or vllm")
    if name == "native":
        return
    if world.size > 1:
        raise ValueError("env.generation.backend=vllm with torchrun: expected native")
    if not torch.cuda.is_available():
        raise ValueError("env.generation.backend=vllm: needs a CUDA device; expected native")
    if importlib.util.find_spec("vllm") is None:
        raise ValueError(
            "env.generation.backend=vllm: needs vLLM, pip install vllm; or choose native"
        )


def generator_of(backend: str, lm: LanguageModel) -> Generate:
    """What draws completions of a policy, by the name of a backend."""
    return generate if backend == "native" else VllmGenerator(lm)


class VllmGenerator:
    """A copy of the policy in vLLM, in this process; called as ``generation.generate`` is.

    The copy takes the policy's weights at each call, LoRA's added to them.

    Args:
        lm: the policy.
    """

    def __init__(self, lm: LanguageModel) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # where tensors can be handed over
        from vllm import LLM, SamplingParams

        self._sampling = SamplingParams
        with TemporaryDirectory(prefix="grpo_bench-") as folder:
            save_pretrained(lm, Path(folder) / "model")
            self._engine = LLM(
                model=str(Path(folder) / "model"),
                dtype=str(lm.model.dtype).removeprefix("torch."),
                max_model_len=min(LONGEST, lm.model.config.max_position_embeddings),
                gpu_memory_utilization=MEMORY,
                logprobs_mode="processed_logprobs",  # of the distribution that is drawn from
                generation_config="vllm",  # nothing of top_p and the like from the model's settings
                enable_prefix_caching=True,  # a prompt once for its group
            )

    def __call__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        group_size: int,
        max_new_tokens: int,
        temperature: float,
        eos_ids: Sequence[int],
        generator: torch.Generator,
    ) -> Completions:
        """As ``generation.generate``; every prompt has a seed of its own from the generator."""
        weights = plain_weights(model)
        self._engine.apply_model(lambda copy: copy.load_weights(weights.items()))
        self._engine.reset_prefix_cache()  # it was of the old weights
        seeds = torch.randint(2**31, (len(prompts),), generator=generator, device=generator.device)
        outputs = self._engine.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts],
            [
                self._sampling(
                    n=group_size,
                    max_tokens=max_new_tokens,
                    temperature=temperature,
                    stop_token_ids=list(eos_ids),
                    ignore_eos=True,  # the ends are ``eos_ids``, no others
                    logprobs=0,  # of the token that was drawn alone
                    seed=seed,
                    detokenize=False,
                )
                for seed in seeds.tolist()
            ],
            use_tqdm=False,
        )
        made = [member for output in outputs for member in output.outputs]
        return completions_of(made, group_size, temperature, eos_ids, model.device)


def completions_of(
    members: Sequence[Any],
    group_size: int,
    temperature: float,
    eos_ids: Sequence[int],
    device: torch.device,
) -> Completions:
    """vLLM's outputs of all completions in group order, padded; an EOS is their last token. Of
    greedy ones the log-probability is 0, as in ``sampling.draw``.

    Where the last token of the limit is an EOS, some versions of vLLM name the limit as the reason
    to stop: what the token is decides.
    """
    rows = [list(member.token_ids) for member in members]
    length = torch.tensor([len(row) for row in rows])
    ids = torch.zeros(len(rows), int(length.max()), dtype=torch.long)
    logp = torch.zeros(ids.shape)
    for i, (row, member) in enumerate(zip(rows, members, strict=True)):
        ids[i, : len(row)] = torch.tensor(row)
        if temperature > 0:
            found = [at[token].logprob for at, token in zip(member.logprobs, row, strict=True)]
            logp[i, : len(row)] = torch.tensor(found)
    truncated = torch.tensor([row[-1] not in eos_ids for row in rows])
    ids, length, logp, truncated = (x.to(device) for x in (ids, length, logp, truncated))
    return Completions(ids, length, logp, truncated, group_size)
