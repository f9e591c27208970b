"""Weights of few bits: those of GGUF files, kept as the file has them, and our own int8.

The packed values lie next to the float32 weights that they stand for, as ``packed`` of each linear layer. So all code
computes the same model, and our kernels for CPUs, which are limited by memory, read fewer bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from specbench.common import UsageError
from specbench.models import gguf_header
from specbench.models.stored import stored

_LARGEST = 127
_NIBBLES = 4


@dataclass(frozen=True)
class PackedWeight:
    """A matrix [out, in]: scale · q, or scale · q + least, with a scale per block of a row or per row.

    Attributes:
        bits: 8 or 4.
        quants: int8 [out, in]; or uint8 [out, in / 2], where byte i of a block of 32 weights holds weight i in its low
            and weight 16 + i in its high bits. Without ``least``, 4 bits stand for -8 to 7.
        scales: float16 or float32 [out, in / block], or float32 [out] with a scale per row.
        least: like ``scales``, or None.
        block: weights of a row that share a scale; 0 is a scale per row.
    """

    bits: int
    quants: Tensor
    scales: Tensor
    least: Tensor | None = None
    block: int = 0

    @property
    def tensors(self) -> list[Tensor]:
        return [each for each in (self.quants, self.scales, self.least) if each is not None]

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads."""
        return sum(each.nbytes for each in self.tensors)

    def rows(self, which: Tensor) -> PackedWeight:
        """The matrix with its rows in another order."""
        least = None if self.least is None else self.least[which].contiguous()
        return PackedWeight(
            self.bits, self.quants[which].contiguous(), self.scales[which].contiguous(), least, self.block
        )

    def values(self) -> Tensor:
        """The matrix in float32."""
        quants = self.quants
        if self.bits == _NIBBLES:
            halves = quants.unflatten(1, (-1, 16))
            quants = torch.cat([halves & 15, halves >> 4], dim=2).flatten(1)
        wide = quants.float()
        if self.bits == _NIBBLES and self.least is None:
            wide -= 8
        if not self.block:
            return wide * self.scales[:, None]
        blocks = wide.unflatten(1, (-1, self.block)) * self.scales.float()[:, :, None]
        if self.least is not None:
            blocks += self.least.float()[:, :, None]
        return blocks.flatten(1)


def round_weights(model: Any) -> None:
    """Round the weights of a float32 model's linear layers in place, to the nearest of 255 multiples of a row's scale.

    Tied embeddings are rounded with their linear layer. The result is a different model with its own fingerprint and
    baseline.

    Raises:
        UsageError: the model has matrices in other modules, such as experts in one tensor.
    """
    for name, module in model.named_modules():
        if not isinstance(module, (nn.Linear, nn.Embedding)):
            for own, weight in module.named_parameters(name, recurse=False):
                if weight.dim() > 1:
                    raise UsageError(
                        f"cannot use --dtype int8: {own} is a matrix outside of linear layers; use --dtype bfloat16 or "
                        "float32"
                    )
    for module in model.modules():
        if type(module) is nn.Linear:
            weight = module.weight.data
            scale = weight.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / _LARGEST
            rounded = (weight / scale[:, None]).round_().clamp_(-_LARGEST, _LARGEST)
            module.__dict__["packed"] = PackedWeight(8, rounded.to(torch.int8), scale)
            weight.copy_(rounded * scale[:, None])


def step_tensors(model: Any) -> list[Tensor]:
    """Return the tensors that a decoding step reads, in the order of the model's modules."""
    short: dict[int, PackedWeight] = {
        module.weight.data_ptr(): module.packed for module in model.modules() if hasattr(module, "packed")
    }
    found: list[Tensor] = []
    for _, tensor in stored(model):
        held = short.get(tensor.data_ptr())
        found += [tensor] if held is None else held.tensors
    return found


def bytes_of(model: Any) -> int:
    """Return the bytes of a model's weights that a decoding step reads."""
    return sum(tensor.nbytes for tensor in step_tensors(model))


def keep_packed(model: Any, file: Path) -> None:
    """Give a float32 model the packed matrices of the GGUF file that it was read from.

    A matrix of a format that is not supported here, or that the model holds in another form, stays in float32.

    Raises:
        UsageError: no matrix can be kept.
    """
    import gguf

    header = gguf_header.read(file)
    architecture = str(header.fields.get("general.architecture"))
    kind = next((key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), None)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    config = model.config.get_text_config()
    names = None if kind is None else gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    kept: dict[int, PackedWeight] = {}
    for name, module in model.named_modules():
        if names is None or type(module) is not nn.Linear:
            continue
        held = kept.get(module.weight.data_ptr())
        tensor = stored.get(f"{names.get_name(name)}.weight")
        if tensor is None and module is model.get_output_embeddings():  # tied
            tensor = stored.get("token_embd.weight")
        if held is None and tensor is not None and (unpack := _FORMATS.get(tensor.tensor_type.name)):
            rows, size = module.weight.shape
            held = unpack(np.asarray(tensor.data).reshape(rows, -1), size)
            if architecture == "llama" and tensor.name.split(".")[-2] in ("attn_q", "attn_k"):
                held = held.rows(_turned(rows, config, tensor.name))
        if held is not None and torch.equal(held.values(), module.weight):
            kept[module.weight.data_ptr()] = module.__dict__["packed"] = held
    if not kept:
        types = ", ".join(sorted({tensor.tensor_type.name for tensor in stored.values()}))
        raise UsageError(
            f"cannot keep {file.name} packed: it has matrices of {types}, and our products read "
            f"{', '.join(_FORMATS)}; use --dtype float32 or bfloat16"
        )


def _turned(rows: int, config: Any, name: str) -> Tensor:
    """Order of rows that undoes llama.cpp's: it puts the two halves of each rotated pair next to each other."""
    heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
    return torch.arange(rows).view(heads, rows // heads // 2, 2).transpose(1, 2).reshape(-1)


_Raw = npt.NDArray[np.uint8]


def _blocks(raw: _Raw, size: int, block: int, *widths: int) -> list[_Raw]:
    """Split each block of rows [out, bytes] into its parts: [out, blocks, width] each."""
    parts = raw.reshape(len(raw), size // block, sum(widths))
    return [np.ascontiguousarray(part) for part in np.split(parts, np.cumsum(widths)[:-1], axis=2)]


def _half(part: _Raw) -> npt.NDArray[np.float16]:
    return part.view(np.float16)[:, :, 0]


def _rows(part: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(part.reshape(len(part), -1)))


def _q8_0(raw: _Raw, size: int) -> PackedWeight:
    scale, quants = _blocks(raw, size, 32, 2, 32)
    return PackedWeight(8, _rows(quants.view(np.int8)), _rows(_half(scale)), None, 32)


def _q4_0(raw: _Raw, size: int) -> PackedWeight:
    scale, quants = _blocks(raw, size, 32, 2, 16)
    return PackedWeight(4, _rows(quants), _rows(_half(scale)), None, 32)


def _q4_1(raw: _Raw, size: int) -> PackedWeight:
    scale, least, quants = _blocks(raw, size, 32, 2, 2, 16)
    return PackedWeight(4, _rows(quants), _rows(_half(scale)), _rows(_half(least)), 32)


def _q4_k(raw: _Raw, size: int) -> PackedWeight:
    """Super-blocks of 256: eight blocks of 32, whose scales and smallest values are numbers of 6 bits times a half."""
    scale, least, packed, quants = _blocks(raw, size, 256, 2, 2, 12, 128)
    first, second, third = packed[:, :, :4], packed[:, :, 4:8], packed[:, :, 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=2)
    smallest = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=2)
    wide = _half(scale).astype(np.float32)[:, :, None] * scales.astype(np.float32)
    low = _half(least).astype(np.float32)[:, :, None] * smallest.astype(np.float32)
    # 32 bytes hold one block in their low and the next in their high bits; here 16 bytes hold one block.
    pairs = quants.reshape(*quants.shape[:2], 4, 32)
    of_blocks = np.stack([pairs & 15, pairs >> 4], axis=3).reshape(*quants.shape[:2], 8, 2, 16)
    bytes_ = of_blocks[..., 0, :] | (of_blocks[..., 1, :] << 4)
    return PackedWeight(4, _rows(bytes_), _rows(wide), _rows(-low), 32)


def _q6_k(raw: _Raw, size: int) -> PackedWeight:
    """Super-blocks of 256: 16 blocks of 16, with scales of 8 bits times a half. Kept in 8 bits."""
    low, high, scales, scale = _blocks(raw, size, 256, 128, 64, 16, 2)
    four = low.reshape(*low.shape[:2], 2, 1, 64) >> np.array([0, 4], dtype=np.uint8)[:, None] & 15
    two = high.reshape(*high.shape[:2], 2, 1, 32) >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None] & 3
    quants = four.reshape(*low.shape[:2], 256) | (two.reshape(*low.shape[:2], 256) << 4)
    wide = _half(scale).astype(np.float32)[:, :, None] * scales.view(np.int8).astype(np.float32)
    return PackedWeight(8, _rows(quants.astype(np.int8) - 32), _rows(wide), None, 16)


_FORMATS: dict[str, Callable[[_Raw, int], PackedWeight]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}
