"""A random Llama that does its forward pass in a millisecond, and plain versions of its uses."""

from unittest import mock

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_bench.lm import generation
from grpo_bench.lm.completions import Completions

VOCABULARY = 40
EOS = 2  # also the padding id, as in SmolLM2

# Of different length, with the EOS in them and at an end.
PROMPTS = [[5, 9, EOS, 7], [3], [8, 8, 1, 30, 12, EOS, EOS], [4, 11]]


def tiny_llama(dtype=torch.float32, attention="sdpa"):
    """Two layers, two query heads for each key; its logits have a standard deviation of about 2."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=EOS,
        tie_word_embeddings=True,
        attn_implementation=attention,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    return model.to(dtype).eval()


def plain_logp(model, prompt, completion, temperature):
    """log softmax(logits / temperature) of every token after each token of a completion, by a pass
    of the whole text on its own: (length, vocabulary) float32."""
    ids = torch.tensor([[*prompt, *completion]], device=model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float() / temperature, dim=-1)


def texts(completions):
    """The tokens of each completion as a list."""
    rows = zip(completions.ids.tolist(), completions.length.tolist(), strict=True)
    return [ids[:length] for ids, length in rows]


def replayed(ids, eos):
    """The output of ``generate`` for a group whose draws are the rows of ``ids``, (G, T)."""
    steps = iter(range(ids.shape[1]))

    def draw(logits, temperature, uniform):
        t = next(steps)
        going = (ids[:, :t] != eos).all(dim=1)
        return ids[going, t].view(uniform.shape), torch.zeros(uniform.shape)

    with mock.patch.object(generation, "draw", draw):
        limits = (len(ids), ids.shape[1], 1.0)
        return generation.generate(tiny_llama(), PROMPTS[:1], *limits, [eos], torch.Generator())


def made_up(lengths, group_size, seed=0):
    """Random completions of given lengths, and random tokens beyond those too."""
    generator = torch.Generator().manual_seed(seed)
    length = torch.tensor(lengths)
    ids = torch.randint(VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    unknown = torch.full(ids.shape, float("nan"))
    return Completions(ids, length, unknown, torch.zeros(len(lengths)) > 0, group_size)
