"""Write the vocabulary of a GGUF file: the model's own tokens or placeholders.

A GGUF file names the pre-tokenizer with which llama.cpp splits text into words. As in llama.cpp's converter, it is
identified by a checksum of the token ids of one text. It may still split rare texts differently, so engines are
compared on token ids.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf

from specbench.common import UsageError
from specbench.models.loaded_model import ByteTokenizer, LoadedModel

# Text and checksums are from llama.cpp's converter (conversion/base.py at 0c1e57098, get_vocab_base_pre).
_TEXT = (
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n\U0001f680 (normal) \U0001f636\u200d\U0001f32b\ufe0f (multi"
    "ple emojis concatenated) \u2705 \U0001f999\U0001f999 3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 3."
    "..3 \u1780\u17b6\u1793\u17cb\u178f\u17c2\u1796\u17b7\u179f\u17c1\u179f\u17a2\u17b6\u1785\U0001f601 ?\u6211"
    "\u60f3\u5728apple\u5de5\u4f5c1314151\u5929\uff5e ------======= \u043d\u0435\u0449\u043e \u043d\u0430 \u0411"
    "\u044a\u043b\u0433\u0430\u0440\u0441\u043a\u0438 ''''''```````\"\"\"\"......!!!!!!?????? I've been 'to"
    "ld he's there, 'RE you sure? 'M not sure I'll make it, 'D you like some tea? We'Ve a'lL"
)

#: Checksum of that text's token ids -> llama.cpp's name of the pre-tokenizer.
KNOWN = {
    "855059429035d75a914d1eda9f10a876752e281a054a7a3d421ef0533e5b6249": "smollm",
    "0ef9807a4087ebef797fc749390439009c3b9eda9ad1a097abbe738f486c01e5": "llama-bpe",  # Llama 3
    "e636dc30a262dcc0d8c323492e32ae2b70728f4df7dfe9737d9f920a282b8aea": "qwen2",  # and 2.5, and 3
    "d4540891389ea895b53b399da6ac824becc30f2fba0e9ddbb98f92e55ca0e97c": "qwen2",  # with an end token after the text
}


def add_placeholders(writer: Any, size: int) -> None:
    """Add a vocabulary for exchanging token ids only: without stop tokens or special tokens, and with meaningless text.

    The tokenizer model is RWKV's, the only one for which llama.cpp does not assume a default end-of-sequence id, so
    that ``ignore_eos`` suppresses no token. It requires a token for a line break.
    """
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list(["\\n", *(f"t{number}." for number in range(1, size))])
    writer.add_token_types([gguf.TokenType.NORMAL] * size)


def add_tokenizer(writer: Any, model: LoadedModel, splitting: str) -> None:
    """Add a model's own byte pairs, special ids and chat template, as llama.cpp's converter does."""
    tokens = model.tokenizer
    names, types = _listed(tokens, model.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting)
    writer.add_token_list(names)
    writer.add_token_types(types)
    with TemporaryDirectory(prefix="specbench-tokenizer-") as folder:  # the package reads files
        tokens.save_pretrained(folder)
        model.model.config.save_pretrained(folder)
        special = gguf.SpecialVocab(Path(folder), load_merges=True, n_vocab=len(names))
    special.add_special_token["bos"] = tokens("a")["input_ids"][0] == tokens.bos_token_id
    special.add_to_gguf(writer, quiet=True)


def splitting_of(model: LoadedModel) -> str:
    """Return llama.cpp's name of the pre-tokenizer that a model's tokenizer uses."""
    name, todo = model.spec.name, "give --vocabulary placeholders to exchange token ids only"
    if isinstance(model.tokenizer, ByteTokenizer):
        raise UsageError(f"cannot export the vocabulary of {name}: it has dummy weights and no tokenizer; {todo}")
    ids = list(model.tokenizer(_TEXT)["input_ids"])
    found = KNOWN.get(hashlib.sha256(str(ids).encode()).hexdigest())
    if found is None:
        raise UsageError(f"cannot export the vocabulary of {name}: its pre-tokenizer is unknown here; {todo}")
    return found


def _listed(tokens: Any, size: int) -> tuple[list[str], list[int]]:
    """Return every token with its type; ids without a token, up to the rows of the LM head, are marked unused."""
    by_id = {number: text for text, number in tokens.get_vocab().items()}
    added = tokens.added_tokens_decoder
    names, types = [], []
    for number in range(size):
        text, kind = by_id.get(number, f"[PAD{number}]"), gguf.TokenType.NORMAL
        if number not in by_id:
            kind = gguf.TokenType.UNUSED
        elif number in added:
            if not added[number].normalized:  # llama.cpp matches these tokens in the unnormalised text
                text = tokens.decode(tokens.encode(text, add_special_tokens=False))
            control = added[number].special or (text.startswith("<|") and text.endswith("|>"))
            kind = gguf.TokenType.CONTROL if control else gguf.TokenType.USER_DEFINED
        names.append(text)
        types.append(kind)
    return names, types
