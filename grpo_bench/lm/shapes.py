"""Models of the Llama family with random weights, for memory and speed, where only shapes matter.

Their tokenizer has one token for each byte, so that nothing has to be downloaded.
"""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.initialization import no_init_weights

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "vocab_size": 259,  # the byte tokenizer's
        "hidden_size": 32,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    },
    "135m": {  # HuggingFaceTB/SmolLM2-135M
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1_536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8_192,
    },
    "360m": {  # HuggingFaceTB/SmolLM2-360M
        "vocab_size": 49_152,
        "hidden_size": 960,
        "intermediate_size": 2_560,
        "num_hidden_layers": 32,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "max_position_embeddings": 8_192,
    },
    "1b": {  # meta-llama/Llama-3.2-1B
        "vocab_size": 128_256,
        "hidden_size": 2_048,
        "intermediate_size": 8_192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
    },
}

# Of each matrix; what comes after repeats it. To draw all of 1b takes ten seconds. A prime, so that
# no two rows are the same.
DRAWN = 1_048_583

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2, as in SmolLM2
EOS = "<|im_end|>"
CHAT = (  # ChatML, SmolLM2's
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def random_model(name: str, dtype: torch.dtype, device: str, seed: int) -> PreTrainedModel:
    """A model of a shape in ``SHAPES``, its embeddings tied as in the models named there.

    Its matrices are normal with a standard deviation of 0.02, but for ``DRAWN``; its norms are 1.
    They are made where they stay, in their type. On the device ``meta`` it has shapes only.
    """
    settings: dict[str, Any] = {
        **SHAPES[name],
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "bos_token_id": None,
        "eos_token_id": SPECIAL.index(EOS),
    }
    config = LlamaConfig(**settings)
    with no_init_weights(), torch.device(device):
        model = LlamaForCausalLM._from_config(config, dtype=dtype)
    model.tie_weights()
    if device != "meta":
        _draw(model, torch.Generator(device).manual_seed(seed))
    return model


@torch.no_grad()
def _draw(model: PreTrainedModel, generator: torch.Generator) -> None:
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.fill_(1.0)
        else:
            flat = weight.view(-1)
            drawn = flat[:DRAWN].normal_(std=0.02, generator=generator)
            for part in flat[DRAWN:].split(DRAWN):
                part.copy_(drawn[: len(part)])


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte and three special ones, 259 in all; ChatML; padding is EOS.

    Ids above those, which a random model may sample, decode to nothing.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=EOS, chat_template=CHAT
    )
