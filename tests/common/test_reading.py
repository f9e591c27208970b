"""The reader: what it takes, what it refuses, and the sentences it refuses with."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from support.wording import wording

from specbench.common import reading, toml, yaml
from specbench.common.errors import SpecbenchError, UsageError, one_line

TODO = "bring another"


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refused(read: Any, *arguments: Any, **more: Any) -> str:
    with pytest.raises(UsageError) as caught:
        list(read(*arguments, **more))
    assert str(caught.value).endswith(f"; {TODO}")
    return str(caught.value).removesuffix(f"; {TODO}")


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("17", 17), ("٣", 3), ("9" * 18, 10**18 - 1), ("9" * 19, None), ("1" * 4301, None), ("", None)]
    + [(other, None) for other in ("-1", "+1", "1.0", " 1", "1_0", "²", "x")],
)
def test_a_whole_number_has_digits_alone_and_not_thousands(text: str, number: int | None) -> None:
    assert reading.parse_count(text) == number


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "not JSON: EOF while parsing a value at line 1 column 0"),
        ("{", "not JSON: EOF while parsing an object at line 1 column 1"),
        ("[1]", "not a JSON object"),
        ("NaN", "not JSON: expected value at line 1 column 1"),
        ('{"a": Infinity}', "not JSON: expected value at line 1 column 7"),
        (b'{"a": "\xff"}', "not UTF-8 text"),
        ("1" * 5000, "not JSON: number out of range at line 1 column 4302"),
        (r'{"a": "\ud800"}', "not JSON: unexpected end of hex escape at line 1 column 14"),
        ("[" * 10**6, "not JSON: nested too deeply at line 1 column 202"),
    ],
)
def test_what_is_no_json_object_says_where(tmp_path: Path, content: bytes | str, why: str) -> None:
    path = write(tmp_path / "x.json", content)
    assert refused(reading.read_json_object, path, TODO) == f"{path} is damaged ({why})"


def test_values_are_those_of_the_standard_library_and_a_mark_no_fault(tmp_path: Path) -> None:
    text = (
        '{"a": [1e308, -0.0, 123456789012345678901234567890, "\\ud83d\\ude00 \\u0000é", true, null, 1e-320], "a b": {}}'
    )
    assert repr(reading.parse_json(text, "x", TODO)) == repr(json.loads(text))
    assert reading.parse_json("[NaN, Infinity]", "x", TODO, nan=True)[1] == float("inf")
    mark = b"\xef\xbb\xbf"
    assert reading.read_json_object(write(tmp_path / "x", mark + b'{"a": 1}'), TODO) == {"a": 1}
    assert list(reading.read_json_lines(write(tmp_path / "x", mark + b'{"a": 1}\n\n{}'), TODO)) == [
        (1, {"a": 1}),
        (3, {}),
    ]
    assert toml.read(write(tmp_path / "x", mark + b"a = 1"), TODO) == {"a": 1}
    assert yaml.read(write(tmp_path / "x", mark + b"a: 1"), TODO) == {"a": 1}


def test_a_larger_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    began = time.process_time()
    assert wording(refused(reading.read_bytes, path, TODO))
    assert reading.read_bytes(write(path, b"abcd"), TODO, 4) == b"abcd"
    assert wording(refused(reading.read_bytes, path, TODO, 3))
    assert time.process_time() - began < 5


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in (
        (tmp_path, "a folder, where a file is needed"),
        (tmp_path / "pipe", "a pipe, where a file is needed"),
        (Path("/dev/zero"), "a device, where a file is needed"),
        (tmp_path / "none", "No such file or directory"),
        (Path("a\0b"), "embedded null byte"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        assert refused(reading.read_bytes, path, TODO).endswith(f" cannot be read ({why})")


def test_lines_have_limits(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b"ab\ncdef\n\nlast")
    assert list(reading.read_lines(path, TODO)) == [b"ab\n", b"cdef\n", b"\n", b"last"]
    assert list(reading.read_lines(path, TODO, finished=True)) == [b"ab\n", b"cdef\n", b"\n"]
    assert wording(refused(reading.read_lines, path, TODO, longest=4))
    assert wording(refused(reading.read_lines, path, TODO, most=3))


def test_a_compressed_file_unpacks_to_so_much_and_a_line_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_UNPACKED", 1 << 20)
    path = write(tmp_path / "x.gz", gzip.compress((b" " * 1023 + b"\n") * 1024))
    assert list(reading.read_json_lines(path, TODO)) == []
    path = write(tmp_path / "x.gz", gzip.compress((b" " * 1023 + b"\n") * 1025))
    assert wording(refused(reading.read_json_lines, path, TODO))
    path = write(tmp_path / "x", '{"a": 1}\n\n{"a": \n')
    assert refused(reading.read_json_lines, path, TODO).startswith(f"{path} line 3 is damaged (not JSON: EOF")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("a: &x [1]\nb: *x\n", "not YAML: line 2: an alias; write it out"),
        ("a: 1\nb: 2\na: 3\n", "not YAML: line 3: 'a' is there twice"),
        ("[" * 100 + "]" * 100, "not YAML: line 1: nested too deeply"),
        ("a: 2023-99-99\n", "not YAML: month must be in 1..12"),
        ("a: !!int ''\n", "not YAML: string index out of range"),
        ("a: !!python/object/apply:os.getcwd []\n", "not YAML: line 1: could not determine a constructor for the tag"),
        ("a: [\n", "not YAML: line 2: expected the node content, but found '<stream end>'"),
        ("a: \x07", "not YAML: unacceptable character #x0007"),
        (b"a: \xff", "line 1 is not UTF-8"),
        ("a" * (1 << 19), "larger than 256 KiB"),
    ],
)
def test_what_is_no_yaml_says_where(tmp_path: Path, content: bytes | str, why: str) -> None:
    path = write(tmp_path / "x.yaml", content)
    assert refused(yaml.read, path, TODO).startswith(f"{path} cannot be read ({why}")


def test_yaml_keeps_texts_where_it_is_asked_to(tmp_path: Path) -> None:
    path = write(tmp_path / "x.yaml", "a: [4:32:4, no, 0.50]\n")
    assert yaml.read(path, TODO, texts=True) == {"a": ["4:32:4", "no", "0.50"]}
    assert yaml.read(path, TODO) == {"a": [16324, False, 0.5]}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("a = ", "not TOML: Invalid value (at"),
        ("a = 1\na = 2", "not TOML: Cannot overwrite a value (at "),
        ("a = 2023-99-99", "not TOML: "),
        ("a = " + "9" * 5000, "not TOML: Exceeds the limit"),
        ("a = " + "[" * 100 + "]" * 100, "nested too deeply"),
        ("a." * 5000 + "a = 1", "nested too deeply"),
    ],
)
def test_what_is_no_toml_says_where(tmp_path: Path, content: str, why: str) -> None:
    path = write(tmp_path / "x.toml", content)
    assert refused(toml.read, path, TODO).startswith(f"{path} cannot be read ({why}")


@pytest.mark.parametrize("found", [True, "1", 1.0, 0, -1, None, [1], 10**4000])
def test_a_version_is_a_whole_number(found: Any) -> None:
    with pytest.raises(UsageError) as caught:
        reading.schema_version({"schema_version": found}, "x.json", 3, TODO)
    newer = isinstance(found, int) and found > 3
    assert ("upgrade specbench-llm" if newer else f"must be an integer of at least 1); {TODO}") in str(caught.value)
    assert len(str(caught.value)) < 200


def test_versions_up_to_the_newest_are_read() -> None:
    assert reading.schema_version({"format": 3}, "x.json", 3, TODO, field="format") == 3
    with pytest.raises(UsageError, check=wording):
        reading.schema_version({}, "x.json", 3, TODO)


class Inner(BaseModel):
    b: int


class Outer(BaseModel):
    model_config = {"extra": "forbid"}
    a: list[Inner]


def test_an_error_is_one_line_and_a_model_names_the_field() -> None:
    assert reading.validate(Outer, {"a": [{"b": 1}]}, "x", TODO).a[0].b == 1
    with pytest.raises(UsageError, check=wording):
        reading.validate(Outer, {"a": [{"b": 1}, {"b": "x"}]}, "x", TODO)
    with pytest.raises(UsageError) as caught:
        reading.validate(Outer, {"a": [], "\n\x1b[2J" * 10_000: 1}, "x", TODO)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200
    assert str(SpecbenchError("a\nb\x1b]0;t\x07 \ud800é")) == "a b ]0;t   é"
    assert one_line("a \n\t b" + "x" * 500, 10) == "a bxxxxxx…"


@pytest.mark.parametrize("number", ["1e999", "-1e999", str(1 << 63), str(-(1 << 63) - 1), "9" * 4000])
def test_numbers_that_no_table_takes_are_refused(number: str) -> None:
    content = reading.parse_json(f'{{"a": [1, {{"b": {number}}}]}}', "x", TODO)
    with pytest.raises(UsageError, check=wording) as caught:
        reading.in_64_bits(content, "x", TODO)
    assert len(str(caught.value)) < 200
    reading.in_64_bits([(1 << 63) - 1, -(1 << 63), 1e308, True, None, "9" * 4000], "x", TODO)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '[{"b":{"a":1, "c":2, "a" :1}}]', '{"":0,"":0}'])
def test_a_key_that_is_there_twice_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        reading.parse_json(text, "file", "restore it")


@pytest.mark.parametrize("value", ['say "a": 1', '\\"a":', '":"', "\\", '" :'])
def test_strings_that_look_like_keys_are_read(value: str) -> None:
    content = {"a": value, value: [{"a": value}]}
    for text in (json.dumps(content), json.dumps(content, separators=(" , ", " : "))):
        assert reading.parse_json(text, "file", "restore it") == content
