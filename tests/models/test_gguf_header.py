"""GGUF headers: whatever a file claims is a header or one sentence, at once and without the memory it claims."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutants import mutant
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, SpecbenchError, UsageError
from specbench.models import gguf, gguf_header, memory
from specbench.models.loader import load

Q, U = struct.Struct("<Q").pack, struct.Struct("<I").pack


def text(value: bytes) -> bytes:
    return Q(len(value)) + value


def header(fields: list[bytes] = [], tensors: list[bytes] = [], weights: int = 0, claimed: Any = None) -> bytes:  # noqa: B006
    counts = claimed or (len(tensors), len(fields))
    content = b"GGUF" + U(3) + Q(counts[0]) + Q(counts[1]) + b"".join(fields) + b"".join(tensors)
    return content + b"\0" * (-len(content) % 32 + weights)


def tensor(name: bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + U(len(shape)) + b"".join(map(Q, shape)) + U(kind) + Q(offset)


def number(name: bytes, value: int) -> bytes:
    return text(name) + U(4) + U(value)


EMBEDDING = tensor(b"token_embd.weight", (8, 4))
GOOD = header([number(b"llama.block_count", 1)], [EMBEDDING, tensor(b"blk.0.x", (8,), 0, 128)], 160)


def test_it_reads_what_the_library_reads(tmp_path: Path) -> None:
    file = tmp_path / "toy.gguf"
    writer = GGUFWriter(file, "llama")
    writer.add_block_count(2)
    writer.add_float32("x.y", 0.5)
    writer.add_bool("x.z", True)
    writer.add_token_list(["a", "é", ""])
    writer.add_array("numbers", [1, 2, 3])
    for name, shape in (("token_embd.weight", (4, 8)), ("blk.0.a", (3,)), ("blk.1.a", (2, 3, 4))):
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found, library = gguf_header.read(file), GGUFReader(file)
    assert found.tensors == {each.name: tuple(map(int, each.shape)) for each in library.tensors}
    assert found.parameters == 32 + 3 + 24
    assert found.fields["general.architecture"] == "llama"
    assert (found.fields["x.y"], found.fields["x.z"], found.fields["tokenizer.ggml.tokens"]) == (0.5, True, 3)


CASES: dict[str, bytes] = {
    "fields": header(claimed=(0, 2**63)),
    "array": header([text(b"a") + U(9) + U(0) + Q(2**50)]),
    "text": header([text(b"a") + U(8) + Q(2**40)]),
    "shape": header([], [tensor(b"t", (2**40, 2**40))]),
    "nothing": header([], [tensor(b"t", (2**40, 0))]),
    "twice": header([], [EMBEDDING, EMBEDDING], 160),
    "layers": header([number(b"llama.block_count", 10**6)], [EMBEDDING], 160),
    "alignment": header([number(b"general.alignment", 0)]),
    "other": b"PK\3\4" + b"\0" * 30,
    "no model": header([], [tensor(b"t", (8,))], 64),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_is_refused_before_the_library_reads_it(case: str, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(CASES[case])
    with pytest.raises(UsageError, check=wording) as raised:
        load(str(tmp_path / "bad.gguf"))
    assert "\n" not in str(raised.value)


def test_weights_that_memory_does_not_hold_unpacked_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.gguf").write_bytes(GOOD)
    gguf.check(tmp_path / "good.gguf")
    monkeypatch.setattr(memory, "free_ram_bytes", lambda: 1 << 20)
    with pytest.raises(EnvironmentRefused, check=wording):
        gguf.check(tmp_path / "good.gguf")
    # A file of terabytes, nearly all of it a hole: nothing of it is read.
    with (tmp_path / "hole.gguf").open("wb") as file:
        file.write(header([], [tensor(b"token_embd.weight", (2**20, 2**20))]))
        file.truncate(2**42 + 4096)
    monkeypatch.undo()
    with pytest.raises(EnvironmentRefused, match=r"hole\.gguf"):
        gguf.check(tmp_path / "hole.gguf")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), tail=st.binary(max_size=64))
def test_any_damage_is_a_header_or_a_sentence(seed: int, tail: bytes, tmp_path: Path) -> None:
    file = tmp_path / "fuzzed.gguf"
    file.write_bytes(mutant(random.Random(seed), GOOD, "binary") + tail)
    began, message = time.process_time(), ""
    try:
        found = gguf_header.read(file)
        assert all(0 < size <= 8 * file.stat().st_size for shape in found.tensors.values() for size in shape)
    except SpecbenchError as error:
        message = str(error)
    assert file.name in message or not message
    assert time.process_time() - began < 2
