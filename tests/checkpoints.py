"""Local folders with a tiny model and a tokenizer of bytes, which load as a checkpoint from a hub does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from specbench.models.loader import load


def byte_tokenizer(bos: str = "<s>", eos: str = "</s>", template: str | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer with a token for ``eos`` (0), one for ``bos`` (1), and one for every byte."""
    symbols = [eos, bos, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(BPE(vocab={symbol: at for at, symbol in enumerate(symbols)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=bos, eos_token=eos, chat_template=template)


def save(folder: Path, tokenizer: PreTrainedTokenizerFast | None = None) -> Path:
    """Writes the model of ``config:tiny`` and a tokenizer, by default :func:`byte_tokenizer`, into a folder."""
    load("config:tiny").model.save_pretrained(folder)
    (tokenizer or byte_tokenizer()).save_pretrained(folder)
    return folder


def save_adapter(base: Path, folder: Path) -> Any:
    """Writes a random adapter for a saved model into a folder, as PEFT does; returns the model that carries it."""
    from peft import LoraConfig, get_peft_model  # not by those who save models alone

    with torch.random.fork_rng():
        torch.manual_seed(3)
        adapted: Any = get_peft_model(
            load(str(base)).model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
        )
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(folder)
    return adapted
