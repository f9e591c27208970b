"""Convert a checkpoint into OpenVINO's format, and compare the constants with the checkpoint's tensors.

    PYTHON -I openvino_export.py CHECKPOINT FOLDER

Run as a file by the interpreter of OpenVINO's environment, which has no specbench.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: File in the folder: whether each of the checkpoint's tensors is a constant of the model, in its precision or float32.
CONVERSION = "conversion.json"


def convert(checkpoint: Path, folder: Path) -> None:
    """Write the model and its tokenizer, if it has one: OpenVINO compares those of a model and its draft."""
    import openvino
    from openvino_tokenizers import convert_tokenizer
    from optimum.intel import OVModelForCausalLM
    from transformers import AutoTokenizer

    model = OVModelForCausalLM.from_pretrained(checkpoint, export=True, compile=False, load_in_8bit=False)
    model.save_pretrained(folder)
    if (checkpoint / "tokenizer.json").is_file():
        names = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")
        for name, made in zip(
            names, convert_tokenizer(AutoTokenizer.from_pretrained(checkpoint), with_detokenizer=True), strict=True
        ):
            openvino.save_model(made, folder / name)
    constants = set(_constants(openvino.Core().read_model(folder / "openvino_model.xml")))
    missing = [name for name, digests in _tensors(checkpoint) if not digests & constants]
    (folder / CONVERSION).write_text(json.dumps({"verified": not missing, "missing": missing[:8]}))


def _constants(model: Any) -> Iterator[str]:
    for node in model.get_ops():
        if node.get_type_name() == "Constant":
            yield hashlib.sha256(node.get_data().tobytes()).hexdigest()


def _tensors(checkpoint: Path) -> Iterator[tuple[str, set[str]]]:
    from safetensors import safe_open

    for file in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is not a dict
                tensor = opened.get_tensor(name)  # norms are stored in float32
                yield name, {hashlib.sha256(_bytes(each)).hexdigest() for each in (tensor, tensor.float())}


def _bytes(tensor: Any) -> bytes:
    import torch

    return bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes())


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
