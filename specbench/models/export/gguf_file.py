"""Export a Llama, Qwen2 or Qwen3 to GGUF as llama.cpp's converter does, then read it back and compare all bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import torch
from torch import Tensor

from specbench.models.adapters import fingerprint
from specbench.models.export import vocabulary as vocabularies
from specbench.models.export.exported import Exported, differs, drafted, precision_of, same_bits, sha256_of
from specbench.models.export.graph import FACTORS, Graph, Named, graph_of, halved, head_size, interleaved, named_weights
from specbench.models.loaded_model import LoadedModel

Vocabulary = Literal["tokenizer", "placeholders"]

_FILE_TYPES = {torch.float32: gguf.LlamaFileType.ALL_F32, torch.bfloat16: gguf.LlamaFileType.MOSTLY_BF16}


def export_gguf(model: LoadedModel, file: Path, *, dtype: str, vocabulary: Vocabulary) -> Exported:
    """Write a model's weights into a GGUF file.

    All values are rounded to ``dtype``, as :func:`specbench.models.load` does. Norms and biases are then stored as F32,
    as llama.cpp's converter does and its kernels require.

    Args:
        model: a Llama, Qwen2 or Qwen3, see :mod:`specbench.models.export.graph`.
        vocabulary: the model's own "tokenizer", or "placeholders" without stop or special tokens, for exchanging token
            ids only.

    Raises:
        UsageError: llama.cpp would compute a different model, has no name for the tokenizer, or ``file`` exists.
    """
    precision, graph = precision_of(model, dtype), graph_of(model.model, model.spec.name)
    splitting = vocabularies.splitting_of(model) if vocabulary == "tokenizer" else None
    with drafted(file) as draft:
        writer = gguf.GGUFWriter(draft, gguf.MODEL_ARCH_NAMES[graph.arch])
        try:
            _add_shape(writer, model.model.config, precision)
            if splitting is None:  # no name either, so that equal weights give equal files
                vocabularies.add_placeholders(writer, model.vocab_size)
            else:
                writer.add_name(model.spec.name)
                vocabularies.add_tokenizer(writer, model, splitting)
            _write(writer, [*named_weights(model.model, graph, model.spec.name)], precision)
        finally:
            writer.close()
        _compare(draft, model.model, graph, precision, model.spec.name)
        return Exported(
            path=file,
            format="gguf",
            dtype=str(precision).removeprefix("torch."),
            sha256=sha256_of(draft),
            bytes=draft.stat().st_size,
            fingerprint=fingerprint(model.model, precision),
        )


def _add_shape(writer: Any, config: Any, precision: torch.dtype) -> None:
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_file_type(_FILE_TYPES[precision])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_size(config))
    writer.add_value_length(head_size(config))
    writer.add_rope_dimension_count(head_size(config))
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _write(writer: Any, weights: list[Named], precision: torch.dtype) -> None:
    """Write the header, and then the weights with only one converted tensor in memory at a time."""
    for named in weights:
        kind = _stored_as(named.weight, precision)
        nbytes = named.weight.numel() * (2 if kind == gguf.GGMLQuantizationType.BF16 else 4)
        writer.add_tensor_info(named.name, named.weight.shape, np.dtype(np.float32), nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for named in weights:
        rows = _rounded(named, precision).float().cpu()
        rows = rows if named.heads is None else interleaved(rows, named.heads)
        writer.write_tensor_data(gguf.quantize(rows.contiguous().numpy(), _stored_as(named.weight, precision)))


def _rounded(named: Named, precision: torch.dtype) -> Tensor:
    return named.weight if named.name == FACTORS else named.weight.to(precision)


def _stored_as(weight: Tensor, precision: torch.dtype) -> Any:
    short = precision == torch.bfloat16 and weight.ndim > 1
    return gguf.GGMLQuantizationType.BF16 if short else gguf.GGMLQuantizationType.F32


def _compare(file: Path, model: Any, graph: Graph, precision: torch.dtype, name: str) -> None:
    """Read a file and compare every value with the model's."""
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    for named in named_weights(model, graph, name):
        read = _values(found.pop(named.name, None))
        wanted = _rounded(named, precision).cpu()
        wanted = wanted if _stored_as(wanted, precision) == gguf.GGMLQuantizationType.BF16 else wanted.float()
        if read is None or not same_bits(read if named.heads is None else halved(read, named.heads), wanted):
            raise differs(file, named.own)
    if found:
        raise differs(file, min(found))


def _values(tensor: Any) -> Tensor | None:
    """Return the values of a tensor in a file, or None if it is missing or has an unexpected type."""
    if tensor is None or tensor.tensor_type not in (gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.F32):
        return None
    read = torch.from_numpy(np.array(tensor.data))
    return read.view(torch.bfloat16) if tensor.tensor_type == gguf.GGMLQuantizationType.BF16 else read
