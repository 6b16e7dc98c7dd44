"""Log-probabilities, entropies and their gradients, against a pass of each whole text alone."""

import pytest
import torch

pytest.importorskip("transformers")

from support.tiny import EOS, PROMPTS, VOCABULARY, made_up, plain_logp, texts, tiny_llama
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
)

from grpo_bench.lm.completions import group_tokens, micro_batches
from grpo_bench.lm.generation import generate
from grpo_bench.lm.logprobs import (
    check_model,
    completion_logprobs,
    group_mask,
    pack,
)

GROUP = 3
LENGTHS = [4, 1, 6, 2, 2, 2, 1, 1, 1, 5, 6, 3]  # of three completions of each of the four prompts
TEMPERATURE = 0.7


def completions():
    return made_up(LENGTHS, GROUP)


def weights():
    """What a loss could multiply each log-probability with, and each entropy: (2, n, T)."""
    return torch.randn(2, len(LENGTHS), max(LENGTHS), generator=torch.Generator().manual_seed(1))


def plain(model, prompts, completions, temperature):
    """(n, T) log-probabilities and entropies, 0 beyond the length."""
    shape = completions.ids.shape
    logp, entropy = torch.zeros(shape), torch.zeros(shape)
    for i, text in enumerate(texts(completions)):
        rows = plain_logp(model, prompts[i // completions.group_size], text, temperature)
        taken = rows.gather(1, torch.tensor(text)[:, None]).squeeze(1)
        logp[i, : len(text)] = taken
        entropy[i, : len(text)] = -(rows.exp() * rows).sum(1)
    return logp, entropy


def gradients(model, loss):
    """Of all parameters that learn, as one vector."""
    model.zero_grad()
    loss.backward()
    learn = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([p.grad.float().flatten() for p in learn])


def loss_of(logp, entropy):
    return (weights()[0] * logp).sum() + (weights()[1] * entropy).sum()


def ours_and_plain(model, **options):
    """The values of both, after showing that they and their gradients are the same."""
    ours = completion_logprobs(model, PROMPTS, completions(), TEMPERATURE, entropy=True, **options)
    theirs = plain(model, PROMPTS, completions(), TEMPERATURE)
    torch.testing.assert_close(ours.logp, theirs[0], rtol=0, atol=2e-5)
    torch.testing.assert_close(ours.entropy, theirs[1], rtol=0, atol=2e-5)
    ours, theirs = gradients(model, loss_of(*ours[:2])), gradients(model, loss_of(*theirs))
    assert theirs.norm() > 1
    assert (ours - theirs).norm() < 1e-5 * theirs.norm()


# -- the same as plain ----------------------------------------------------------------------------


@pytest.mark.parametrize("share_prefix", [True, False])
@pytest.mark.parametrize("chunk", [1, 5, 34, 128])  # 34 positions in all
def test_values_and_gradients_are_the_plain_ones(share_prefix, chunk):
    assert sum(LENGTHS) == 34
    ours_and_plain(tiny_llama(), share_prefix=share_prefix, chunk=chunk)


def test_eager_attention_takes_the_same_mask():
    ours_and_plain(tiny_llama(attention="eager"))


@pytest.mark.parametrize("share_prefix", [True, False])
def test_with_checkpoints_in_the_network(share_prefix):
    model = tiny_llama()
    model.activation_checkpointing_enable()
    ours_and_plain(model.train(), share_prefix=share_prefix)


def test_with_an_adapter():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "lm_head"])
    base = tiny_llama()
    base.lm_head.weight = torch.nn.Parameter(base.lm_head.weight.clone())
    base.config.tie_word_embeddings = False
    model = peft.get_peft_model(base, config)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # 0 at first: the adapter would do nothing
            parameter.data.normal_(0, 0.3, generator=generator)
    ours_and_plain(model)


def test_bfloat16_is_as_near_to_float32_as_plain_is():
    """Rounding differs between the two orders of computing; neither should be much worse."""
    model = tiny_llama()
    exact = gradients(model, loss_of(*plain(model, PROMPTS, completions(), 0.7)))
    model = tiny_llama(torch.bfloat16)
    theirs = gradients(model, loss_of(*plain(model, PROMPTS, completions(), 0.7)))
    ours = completion_logprobs(model, PROMPTS, completions(), 0.7, entropy=True)
    assert ours.logp.dtype == ours.entropy.dtype == torch.float32
    ours = gradients(model, loss_of(*ours[:2]))
    assert (ours - exact).norm() < 1.5 * (theirs - exact).norm()
    assert (theirs - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize("budget", [14, 28, 1000])
def test_micro_batches_add_up(budget):
    """The gradient of all groups at once is the sum over micro-batches of groups."""
    model, whole = tiny_llama(), completions()
    at_once = completion_logprobs(model, PROMPTS, whole, 0.7, entropy=True)
    expected = gradients(model, loss_of(at_once.logp, at_once.entropy))
    batches = micro_batches(group_tokens(PROMPTS, whole), budget)
    assert (len(batches) == 1) == (budget == 1000)
    total = torch.zeros_like(expected)
    for batch in batches:
        rows = [group * GROUP + member for group in batch for member in range(GROUP)]
        part, prompts = whole.of_groups(batch), [PROMPTS[group] for group in batch]
        logp, entropy, _ = completion_logprobs(model, prompts, part, 0.7, entropy=True)
        w = weights()[:, rows]
        total += gradients(model, (w[0] * logp).sum() + (w[1] * entropy).sum())
    assert (total - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("share_prefix", [True, False])
def test_on_policy_the_ratio_is_one(share_prefix):
    """The trainer's log-probabilities are those of generation, at its temperature."""
    model = tiny_llama()
    made = generate(model, PROMPTS, 4, 10, 1.3, [EOS, 7, 9], torch.Generator().manual_seed(0))
    found = completion_logprobs(model, PROMPTS, made, 1.3, share_prefix=share_prefix)
    torch.testing.assert_close(found.logp, made.logp, rtol=0, atol=2e-5)
    assert found.entropy is None
    assert found.value is None


def test_without_gradient():
    with torch.no_grad():
        found = completion_logprobs(tiny_llama(), PROMPTS, completions(), 1.0)
    assert not found.logp.requires_grad


# -- what it costs --------------------------------------------------------------------------------


def test_only_what_differs_goes_through_the_network():
    """Rows are as long as the longest group; the head sees the drawn tokens alone, a chunk at a
    time, once in each direction."""
    model, fed, headed = tiny_llama(), [], []
    model.model.embed_tokens.register_forward_hook(lambda m, x, y: fed.append(x[0].numel()))
    model.lm_head.register_forward_hook(lambda m, x, y: headed.append(len(x[0])))
    found = completion_logprobs(model, PROMPTS, completions(), 1.0, chunk=10)
    # 4 + 3 + 0 + 5, 1 + 1 + 1 + 1, 7 + 0 + 0 + 0 and 2 + 4 + 5 + 2 tokens
    assert group_tokens(PROMPTS, completions()) == [12, 4, 7, 13]
    assert fed == [4 * 13]
    assert headed == [10, 10, 10, 4]
    found.logp.sum().backward()
    assert sorted(headed) == sorted(2 * [10, 10, 10, 4])


# -- its parts ------------------------------------------------------------------------------------


def test_pack_by_hand():
    """Prompts 5 6 7 and 8; completions 1 2 3, 4 and 9, 1 2, each without its last token."""
    made = made_up([3, 1, 1, 2], 2)
    made.ids[:] = torch.tensor([[1, 2, 3], [4, 0, 0], [9, 0, 0], [1, 2, 0]])
    rows = pack([[5, 6, 7], [8]], made, 2)
    assert rows.ids.tolist() == [[5, 6, 7, 1, 2], [8, 1, 0, 0, 0]]
    assert rows.segment.tolist() == [[0, 0, 0, 1, 1], [0, 2, 3, 3, 3]]
    assert rows.position.tolist() == [[0, 1, 2, 3, 4], [0, 1, 0, 0, 0]]
    # 1, 2, 3 after 7, 1, 2; 4 after 7; 9 after 8; 1, 2 after 8, 1
    assert rows.source.tolist() == [2, 3, 4, 2, 5, 5, 6]


def test_group_mask_by_hand():
    """A prompt of 2, completions of 2 and 1, padding of 1."""
    seen = group_mask(torch.tensor([[0, 0, 1, 1, 2, 3]]), torch.float32)[0, 0] == 0
    expected = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]
    assert seen.int().tolist() == expected


# -- bad input ------------------------------------------------------------------------------------


def test_arguments_that_make_no_sense():
    model = tiny_llama()
    with pytest.raises(ValueError, match="3 prompts and 12 completions in groups of 3: expected 9"):
        completion_logprobs(model, PROMPTS[:3], completions(), 1.0)
    with pytest.raises(ValueError, match=r"temperature=0\.0"):
        completion_logprobs(model, PROMPTS, completions(), 0.0)


def test_models_that_would_come_out_wrong():
    check_model(tiny_llama())
    model = tiny_llama()
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match="attn_implementation='flex_attention'"):
        check_model(model)
    model = tiny_llama()
    model.config.sliding_window = 16
    with pytest.raises(ValueError, match="sliding_window=16"):
        check_model(model)
    shape = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    config = GraniteConfig(vocab_size=VOCABULARY, logits_scaling=4.0, **shape)
    with pytest.raises(ValueError, match="GraniteForCausalLM: its logits are not its head's"):
        check_model(GraniteForCausalLM(config))


def test_models_whose_positions_are_places_in_a_row():
    shape = dict(vocab_size=VOCABULARY, hidden_size=16, num_attention_heads=2)
    bloom = BloomForCausalLM(BloomConfig(**shape, n_layer=1))
    falcon = FalconForCausalLM(FalconConfig(**shape, num_hidden_layers=1, alibi=True))
    for model in (bloom, falcon):
        with pytest.raises(ValueError, match="takes no position_ids, or counts places"):
            check_model(model)


def test_models_that_look_at_a_part_of_the_text():
    layers = dict(num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]])
    config = GPTNeoConfig(vocab_size=VOCABULARY, hidden_size=16, window_size=4, **layers)
    with pytest.raises(ValueError, match=r"layer_types with \['local'\]"):
        check_model(GPTNeoForCausalLM(config))
