"""Tiny random models of many architectures, saved as Hugging Face folders with a tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 384
CONTEXT = 512

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


def _rope(kind: str, **more: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


SUPPORTED: dict[str, dict[str, object]] = {
    "llama": {"model_type": "llama"},
    "llama-linear": {"model_type": "llama", **_rope("linear", factor=4.0)},
    "llama-llama3": {
        "model_type": "llama",
        **_rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=128,
        ),
    },
    "llama-yarn": {
        "model_type": "llama",
        **_rope("yarn", factor=4.0, original_max_position_embeddings=128),
    },
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "mistral": {"model_type": "mistral", "sliding_window": None, "head_dim": 16},
    "phi3": {"model_type": "phi3"},
    "stablelm-partial": {"model_type": "stablelm", "partial_rotary_factor": 0.25},
    "phi-partial": {"model_type": "phi", "partial_rotary_factor": 0.5},
    "gemma2-sliding": {"model_type": "gemma2", "head_dim": 16, "sliding_window": 256},
    "gemma3-two-thetas": {
        "model_type": "gemma3_text",
        "head_dim": 16,
        "sliding_window": 256,
        "num_hidden_layers": 6,
    },
    "mistral-sliding": {"model_type": "mistral", "sliding_window": 256, "head_dim": 16},
    "gpt-neox": {"model_type": "gpt_neox", "rotary_pct": 0.25},
    "cohere-interleaved": {"model_type": "cohere"},
    "glm-interleaved-partial": {"model_type": "glm", "head_dim": 16, "partial_rotary_factor": 0.5},
    "smollm3-nope-layers": {
        "model_type": "smollm3",
        "num_hidden_layers": 4,
        "no_rope_layer_interval": 2,
    },
}

REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "gpt2-learned": (
        {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT},
        "learned or ALiBi",
    ),
    "bloom-alibi": ({"model_type": "bloom", "n_layer": 2, "n_head": 4}, "takes no positions"),
    "mpt-alibi": (
        {"model_type": "mpt", "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": CONTEXT},
        "takes no positions",
    ),
    "llama-dynamic-ntk": (
        {"model_type": "llama", **_rope("dynamic", factor=4.0)},
        "past the declared context",
    ),
    "phi3-longrope": (
        {
            "model_type": "phi3",
            "original_max_position_embeddings": 128,
            **_rope(
                "longrope",
                factor=4.0,
                short_factor=[1.0] * 8,
                long_factor=[4.0] * 8,
                original_max_position_embeddings=128,
            ),
        },
        "at the end of the context",
    ),
    "deepseek-mla": (
        {
            "model_type": "deepseek_v3",
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 3,
            "moe_intermediate_size": 32,
        },
        "MLA",
    ),
    "mamba-recurrent": (
        {"model_type": "mamba", "num_hidden_layers": 2, "state_size": 8},
        "takes no positions",
    ),
    "qwen2-m-rope": (
        {"model_type": "qwen2", **_rope("default", mrope_section=[4, 2, 2])},
        "M-RoPE",
    ),
}

_TRAINING_TEXT = [
    "The river had risen in the night, and by 6 o'clock the lower fields were under water.",
    "Marta counted 14 sheep on the hill; two were missing. She took the lamp and the dog.",
    "Who counted the sheep? The answer is Marta. Question: Answer: documents only.",
]


def make_tokenizer(*, chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: any text round-trips."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 4,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_TRAINING_TEXT * 3, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    fast.chat_template = chat_template
    return fast


def save_tiny_model(
    folder: Path, options: dict[str, object], *, seed: int = 0, chat_template: str | None = None
) -> Path:
    """Write a tiny random model and its tokenizer as a Hugging Face folder."""
    merged = {**_COMMON, **options}
    config = AutoConfig.for_model(str(merged.pop("model_type")), **merged)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.ndim > 1:  # spread the weights, or a random model hardly looks at its context
            parameter.data.normal_(0.0, 0.2)
    model.save_pretrained(folder)
    make_tokenizer(chat_template=chat_template).save_pretrained(folder)
    return folder
