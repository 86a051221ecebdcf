"""LoRA adapters with random weights for tiny models, saved by PEFT itself."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from coinkv.model.adapter import CARD, base_facts
from coinkv.model.backbone import Backbone


def save_tiny_adapter(model_folder: Path, folder: Path, *, seed: int = 0, **options) -> Path:
    """Write an adapter whose every weight differs from what PEFT begins with."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    settings = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"]}
    config = LoraConfig(**{"task_type": "CAUSAL_LM", "lora_dropout": 0.5, **settings, **options})
    wrapped = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in wrapped.named_parameters():
        if "lora_magnitude" in name:
            spread = 0.5 + torch.rand(parameter.shape, generator=generator)
            parameter.data.mul_(spread)
        elif "lora_" in name:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    wrapped.save_pretrained(folder, save_embedding_layers=False)
    return folder


def write_card(folder: Path, backbone: Backbone, **facts) -> Path:
    """Write a card that says the adapter was trained on this backbone, live unless said."""
    card = {**base_facts(backbone), "scope": "live", **facts}
    (folder / CARD).write_text(json.dumps(card), encoding="utf-8")
    return folder
