"""Groups of completions, against transformers' own ``generate`` and plain passes of whole texts."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from support.tiny import EOS, PROMPTS, VOCABULARY, plain_logp, replayed, texts, tiny_llama
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    GPT2Config,
    GPTNeoXConfig,
    OPTConfig,
    Qwen3Config,
)

from grpo_bench.lm.completions import pad_prompts
from grpo_bench.lm.generation import GroupCache, common_prefix, generate
from grpo_bench.lm.logprobs import check_model, completion_logprobs
from grpo_bench.lm.sampling import draw

CASES = json.loads((Path(__file__).parent.parent / "cases/completion_masks.json").read_text())
MANY_ENDS = list(range(EOS, VOCABULARY, 6))  # a sixth of the tokens: most completions end early


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


def sampled(model, prompts=PROMPTS, group_size=8, limit=12, temperature=0.8, eos=MANY_ENDS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return generate(model, prompts, group_size, limit, temperature, eos, generator)


# -- whole completions ----------------------------------------------------------------------------


@pytest.mark.parametrize("eos", [[EOS], MANY_ENDS])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_greedy_tokens_are_those_of_transformers(eos, attention):
    model = tiny_llama(attention=attention)
    ours = texts(sampled(model, group_size=2, temperature=0.0, eos=eos))
    for i, prompt in enumerate(PROMPTS):
        ids = torch.tensor([prompt])
        options = dict(do_sample=False, max_new_tokens=12, eos_token_id=eos, pad_token_id=EOS)
        theirs = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        assert ours[2 * i] == ours[2 * i + 1] == theirs[0, len(prompt) :].tolist()


def test_greedy_tokens_are_certain(model):
    completions = sampled(model, temperature=0.0)
    assert not completions.logp.any()


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_logp_is_that_of_a_pass_of_the_whole_text(model, temperature):
    completions = sampled(model, temperature=temperature)
    for i, text in enumerate(texts(completions)):
        rows = plain_logp(model, PROMPTS[i // 8], text, temperature)
        expected = rows.gather(1, torch.tensor(text)[:, None]).squeeze(1)
        torch.testing.assert_close(completions.logp[i, : len(text)], expected, rtol=0, atol=2e-5)


SHAPE = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
FAMILIES = [
    FalconConfig(**SHAPE, initializer_range=0.3),
    GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3
    ),
    GPTNeoXConfig(**SHAPE, intermediate_size=48, initializer_range=0.3),
    OPTConfig(**SHAPE, ffn_dim=48, word_embed_proj_dim=32, init_std=0.3, dropout=0.0),
    Qwen3Config(
        **SHAPE, intermediate_size=48, head_dim=8, num_key_value_heads=2, initializer_range=0.3
    ),
]


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.model_type)
def test_other_families_than_llama(config):
    """Other positions, caches that are asked their length: still a pass of each whole text."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        other = AutoModelForCausalLM.from_config(config).eval()
    check_model(other)
    prompts = [[7, 3, *prompt] for prompt in PROMPTS]
    completions = sampled(other, prompts, group_size=3)
    said = completion_logprobs(other, prompts, completions, 0.8).logp.detach()
    for i, text in enumerate(texts(completions)):
        rows = plain_logp(other, prompts[i // 3], text, 0.8)
        expected = rows.gather(1, torch.tensor(text)[:, None]).squeeze(1).detach()
        for found in (completions.logp, said):
            torch.testing.assert_close(found[i, : len(text)], expected, rtol=0, atol=2e-5)


ALIKE = [[7, 5, 9, 3], [7, 5, 9, 8, 8], [7, 5, 9], [7, 5, 4, 3]]  # the third is all the first's


@pytest.mark.parametrize("prompts", [ALIKE, ALIKE[:3], ALIKE[:1], [ALIKE[0], ALIKE[0]]])
def test_prompts_that_begin_alike(model, prompts):
    """The same completions as of each prompt alone, whatever they have in common."""
    together = texts(sampled(model, prompts, group_size=2, temperature=0.0))
    for i, prompt in enumerate(prompts):
        alone = texts(sampled(model, [prompt], group_size=2, temperature=0.0))
        assert together[2 * i : 2 * i + 2] == alone


@pytest.mark.parametrize(
    ("prompts", "common"),
    [(ALIKE, 2), (ALIKE[:2], 3), (ALIKE[:3], 2), (ALIKE[:1], 0), ([[4, 0], [4]], 0)],
)
def test_common_prefix_leaves_a_token_of_each(prompts, common):
    ids, length = pad_prompts(prompts, torch.device("cpu"))
    assert common_prefix(ids, length) == common


def test_logp_in_bfloat16():
    """Probabilities are float32; hidden states and logits have 8 bits."""
    model = tiny_llama(torch.bfloat16)
    completions = sampled(model)
    assert completions.logp.dtype == torch.float32
    for i, text in enumerate(texts(completions)):
        rows = plain_logp(model, PROMPTS[i // 8], text, 0.8)
        expected = rows.gather(1, torch.tensor(text)[:, None]).squeeze(1)
        torch.testing.assert_close(completions.logp[i, : len(text)], expected, rtol=0, atol=0.2)


def test_a_completion_does_not_depend_on_when_others_end(model):
    """With and without EOS: the same tokens up to the first EOS, whichever rows were dropped."""
    ended, endless = sampled(model), sampled(model, eos=[])
    assert endless.length.eq(12).all() and endless.truncated.all()
    assert len(set(ended.length.tolist())) > 5  # they end at all times
    ends = torch.tensor(MANY_ENDS)
    for i, text in enumerate(texts(endless)):
        is_end = torch.isin(torch.tensor(text), ends).tolist()
        length = is_end.index(True) + 1 if True in is_end else 12
        assert ended.length[i] == length
        assert ended.truncated[i] == (True not in is_end)
        assert ended.ids[i, :length].tolist() == text[:length]
        torch.testing.assert_close(ended.logp[i, :length], endless.logp[i, :length])


def test_beyond_the_length_all_is_zero(model):
    completions = sampled(model)
    n, longest = completions.ids.shape
    assert n == 8 * len(PROMPTS) and longest == completions.length.max() and longest > 1
    assert completions.mask.sum(1).equal(completions.length)
    assert completions.mask[:, 0].all()
    assert not completions.ids[~completions.mask].any()
    assert not completions.logp[~completions.mask].any()
    assert (completions.logp[completions.mask] < 0).all()


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_first_eos_is_the_last_token(case):
    """By position, never by value: what follows may be padded with the EOS, too."""
    ids = torch.tensor([case["completion_ids"]] * 2)
    completions = replayed(ids, case["eos_id"])
    length = case["expected_length"]
    assert completions.length.tolist() == [length] * 2
    assert completions.mask.int().tolist() == [case["expected_mask"][:length]] * 2
    assert not any(case["expected_mask"][length:])
    assert completions.truncated.tolist() == [bool(case["expected_truncated"])] * 2


def test_it_stops_when_all_have_ended(model):
    completions = sampled(model, limit=100, eos=list(range(VOCABULARY)))
    assert completions.ids.shape == (32, 1)
    assert not completions.truncated.any()


def test_a_longer_limit_only_goes_on(model):
    short, long = sampled(model, limit=3), sampled(model, limit=12)
    assert [text[:3] for text in texts(long)] == texts(short)
    assert short.truncated.equal(~torch.isin(short.ids, torch.tensor(MANY_ENDS)).any(1))


def test_the_generator_is_the_only_source_of_chance(model):
    before = torch.get_rng_state()
    first, again, other = (sampled(model, seed=seed) for seed in (1, 1, 2))
    assert texts(first) == texts(again) != texts(other)
    assert torch.get_rng_state().equal(before)


def test_prompts_pass_once_and_ended_rows_no_more(model):
    fed = []
    hook = model.get_decoder().embed_tokens.register_forward_hook(
        lambda module, args, output: fed.append(args[0].numel())
    )
    completions = sampled(model)
    hook.remove()
    assert fed[0] == len(PROMPTS) * max(map(len, PROMPTS))
    assert sum(fed[1:]) == (completions.length - 1).sum()  # after the last token nothing is asked


def test_frequencies(model):
    """The second token of 20,000 completions, against the sum over all first tokens."""
    n, prompt = 20_000, PROMPTS[0]
    first = plain_logp(model, prompt, [0], 0.8)[0].exp().detach()
    second = [plain_logp(model, prompt, [a, 0], 0.8)[1].exp().detach() for a in range(VOCABULARY)]
    completions = sampled(model, [prompt], group_size=n, limit=2, eos=[])
    for column, expected in enumerate([first, first @ torch.stack(second)]):
        seen = torch.bincount(completions.ids[:, column], minlength=VOCABULARY) / n
        sigma = (expected * (1 - expected) / n).sqrt()
        assert ((seen - expected).abs() < 4 * sigma).all()


def test_it_leaves_no_graph(model):
    assert not sampled(model).logp.requires_grad


def test_groups_can_be_taken_apart(model):
    completions = sampled(model)
    part = completions.of_groups([2, 0])
    assert texts(part) == texts(completions)[16:24] + texts(completions)[:8]
    assert part.logp.equal(torch.cat([completions.logp[16:24], completions.logp[:8]]))
    assert part.group_size == 8


@pytest.mark.gpu
def test_a_gpu_draws_the_same():
    model = tiny_llama()
    here = sampled(model)
    there = sampled(model.to("cuda"))
    assert texts(here) == texts(there)
    torch.testing.assert_close(here.logp, there.logp.cpu(), rtol=0, atol=1e-4)


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"prompts": []}, "prompts is empty"),
        ({"prompts": [[1], []]}, "prompt 1 has no tokens"),
        ({"group_size": 0}, "group_size=0"),
        ({"limit": 0}, "max_new_tokens=0"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": float("inf")}, "temperature=inf"),
    ],
)
def test_arguments_that_make_no_sense(model, changed, told):
    with pytest.raises(ValueError, match=told):
        sampled(model, **changed)


def test_logits_that_are_not_finite():
    model = tiny_llama()
    model.model.embed_tokens.weight.data[PROMPTS[3][0]] = float("nan")
    model.lm_head.weight = torch.nn.Parameter(tiny_llama().lm_head.weight)
    with pytest.raises(ValueError, match="prompt 3: the model's logits are not finite"):
        sampled(model, eos=[PROMPTS[3][0]])


# -- its parts ------------------------------------------------------------------------------------


def test_draw_by_hand():
    """Probabilities 0.1, 0, 0.2, 0.3, 0.4, 0: sums 0.1, 0.1, 0.3, 0.6, 1, 1."""
    logits = torch.tensor([0.1, 0.0, 0.2, 0.3, 0.4, 0.0]).log().expand(2, 6) + 100.0
    uniform = torch.tensor([[0.0, 0.09, 0.11], [0.29, 0.61, 1 - 2**-24]])
    tokens, logp = draw(logits, 1.0, uniform)
    assert tokens.tolist() == [[0, 0, 2], [2, 4, 4]]
    expected = torch.tensor([[0.1, 0.1, 0.2], [0.2, 0.4, 0.4]]).log()
    torch.testing.assert_close(logp, expected, rtol=0, atol=1e-5)


def test_draw_at_a_step_takes_what_comes_after_it():
    """Sums 0, 1/2, 1: a token of probability 0 is not drawn by the number 0 either."""
    logits = torch.tensor([[-float("inf"), 0.0, 0.0]])
    tokens, _ = draw(logits, 1.0, torch.tensor([[0.0, 0.49, 0.5]]))
    assert tokens.tolist() == [[1, 1, 2]]


def test_draw_with_a_temperature():
    """At 1/2 the probabilities 1, 2, 3, 4 of 10 become 1, 4, 9, 16 of 30."""
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).log()
    tokens, logp = draw(logits, 0.5, torch.tensor([[0.9 / 30, 4.9 / 30, 5.1 / 30, 14.1 / 30]]))
    assert tokens.tolist() == [[0, 1, 2, 3]]
    expected = torch.tensor([[1.0, 4.0, 9.0, 16.0]]).div(30).log()
    torch.testing.assert_close(logp, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draw_stays_in_the_vocabulary(dtype):
    """The largest uniform number there is, and sums that do not come out at 1."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 50_000, generator=generator).to(dtype)
    logits[:, -1] = -float("inf")
    tokens, logp = draw(logits, 1.0, torch.full((64, 1), 1 - 2**-24))
    assert (tokens < 49_999).all() and tokens.min() > 49_000
    expected = torch.log_softmax(logits.double(), dim=1).gather(1, tokens)
    torch.testing.assert_close(logp.double(), expected, rtol=0, atol=1e-5)


def test_rows_from_the_end_fill_the_gaps():
    """Rows 1, 2 and 5 of six end: row 3 goes to place 1, row 4 to place 2."""
    prefilled = type("Prefilled", (), {"layers": [type("Layer", (), {})()]})
    states = torch.arange(3.0).view(3, 1, 1, 1)  # three prompts of one token
    prefilled.layers[0].keys, prefilled.layers[0].values = states, -states
    cache = GroupCache(prefilled, torch.tensor([1, 1, 1]), group_size=2, room=2)
    new = torch.arange(10.0, 16.0).view(6, 1, 1, 1)
    keys, values = cache.update(new, -new, 0)
    assert keys.flatten(1).tolist() == [[0, 10], [0, 11], [1, 12], [1, 13], [2, 14], [2, 15]]
    cache.filled += 1
    kept = cache.keep(torch.tensor([True, False, False, True, True, False]))
    assert kept.tolist() == [0, 3, 4]
    new = torch.arange(20.0, 23.0).view(3, 1, 1, 1)
    keys, values = cache.update(new, -new, 0)
    assert keys.flatten(1).tolist() == [[0, 10, 20], [1, 13, 21], [2, 14, 22]]
    assert values.equal(-keys)


def test_padding_of_prompts_is_hidden():
    """Prompts of 3 and 1 tokens in three columns, one token drawn."""
    prefilled = type("Prefilled", (), {"layers": [type("Layer", (), {})()]})
    prefilled.layers[0].keys = prefilled.layers[0].values = torch.zeros(2, 1, 3, 1)
    cache = GroupCache(prefilled, torch.tensor([3, 1]), group_size=1, room=2)
    assert cache.position.tolist() == [3, 1]
    cache.filled += 1
    assert cache.position.tolist() == [4, 2]
    hidden = cache.mask(torch.float32)[:, 0, 0] < 0
    assert hidden.tolist() == [[False] * 5, [False, True, True, False, False]]
