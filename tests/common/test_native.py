"""Native builds: made once, kept whole, and one sentence where there can be none."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import asserting
from support.wording import wording

from specbench.common import native
from specbench.common.errors import EnvironmentRefused
from specbench.common.native import Native

REAL = next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)
needs_compiler = pytest.mark.skipif(REAL is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of this test's own, no place with it from another test, and the machine's first compiler."""
    monkeypatch.setattr(native, "_kept", [])
    monkeypatch.setattr(native, "_own", [])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "cache" / "specbench" / "native"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A library that says seven."""
    path = tmp_path / "source" / "seven.cpp"
    path.parent.mkdir()
    path.write_text('extern "C" int said() { return 7; }\n')
    return path


def script(tmp_path: Path, name: str, body: str) -> str:
    """A compiler that does what is written here; asked for its version it says its name."""
    path = tmp_path / name
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo {name}; exit; fi\n{body}\n')
    path.chmod(0o755)
    return str(path)


def left(cache: Path) -> list[str]:
    """What is in the cache, libraries by their ending."""
    return sorted(path.suffix or path.name for path in cache.iterdir())


def refusal(source: Path) -> str:
    with pytest.raises(EnvironmentRefused) as caught:
        Native(source).load()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def until(so: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not so():
        assert time.monotonic() < end
        time.sleep(0.005)


def over(pid: int) -> bool:
    """Whether a process has ended; no one may be there to ask it for its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@needs_compiler
def test_it_is_built_once_and_says_so_before(source: Path, cache: Path) -> None:
    lines: list[str] = []
    mine = Native(source)
    assert not mine.built
    assert mine.load(lines.append).said() == 7
    assert REAL is not None
    assert lines == [f"building seven for this CPU with {Path(REAL).name}, once; some ten seconds …"]
    assert mine.built
    assert Native(source).load(lines.append).said() == 7
    assert len(lines) == 1
    assert left(cache) == [".sha256", ".so"], "no drafts"


@needs_compiler
def test_another_source_header_option_or_compiler_is_another_build(
    source: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built() -> int:
        return sum(kind == ".so" for kind in left(cache))

    Native(source).load()
    Native(source, ("-DX",)).load()
    assert built() == 2
    (source.parent / "more.h").write_text("// nothing\n")
    Native(source).load()
    assert built() == 3
    monkeypatch.setenv("CXX", script(tmp_path, "mine", f'exec {REAL} "$@"'))
    Native(source).load()
    assert built() == 4
    source.write_text(source.read_text().replace("7", "8"))
    assert Native(source).load().said() == 8
    assert built() == 5


@needs_compiler
@pytest.mark.parametrize("fault", ["truncated", "unsealed", "sealed as another"])
def test_what_is_not_as_it_was_written_is_built_again(source: Path, cache: Path, tmp_path: Path, fault: str) -> None:
    built = asserting.call(tmp_path / "child", lambda: Native(source).load().said() - 7).wait()
    assert built.code == 0, built.err
    (library,), (seal,) = cache.glob("*.so"), cache.glob("*.sha256")
    whole = library.read_bytes()
    if fault == "truncated":
        library.write_bytes(whole[: len(whole) // 2])
    elif fault == "unsealed":
        seal.unlink()
    else:
        seal.write_text("0" * 64)
    assert not Native(source).built
    lines: list[str] = []
    assert Native(source).load(lines.append).said() == 7
    assert len(lines) == 1
    assert Native(source).built


@needs_compiler
@pytest.mark.parametrize("what", ["library", "folder"])
@pytest.mark.parametrize("how", ["written by all", "another's"])
def test_what_another_user_can_have_put_there_is_not_loaded(
    source: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, how: str
) -> None:
    built = asserting.call(tmp_path / "child", lambda: Native(source).load().said() - 7).wait()
    assert built.code == 0, built.err
    (library,) = cache.glob("*.so")
    place = library if what == "library" else cache
    if how == "written by all":
        place.chmod(0o777)
    else:
        stat = Path.stat

        def foreign(path: Path, **kw: bool) -> os.stat_result:
            found = stat(path, **kw)
            mine = (*found[:4], found.st_uid + (path == place and found.st_ino == inode), *found[5:])
            return os.stat_result(mine)

        inode = place.stat().st_ino
        monkeypatch.setattr(Path, "stat", foreign)
    assert not Native(source).built
    lines: list[str] = []
    assert Native(source).load(lines.append).said() == 7
    assert len(lines) == 1
    assert Native(source).built, "in a place of its own at least"
    assert not cache.stat().st_mode & 0o022


@needs_compiler
def test_two_processes_that_build_at_once_both_have_it(source: Path, cache: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    waits = script(tmp_path, "waits", f'while [ ! -e {gate} ]; do sleep 0.01; done\nexec {REAL} "$@"')
    both = [
        asserting.call(tmp_path / name, lambda: Native(source).load().said() - 7, env={"CXX": waits})
        for name in ("one", "other")
    ]
    until(lambda: cache.exists() and len(list(cache.iterdir())) == 2)
    gate.touch()
    assert [child.wait().code for child in both] == [0, 0], [child.err for child in both]
    assert left(cache) == [".sha256", ".so"]


def test_without_a_compiler_it_is_refused(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent")
    assert wording(refusal(source))
    assert not Native(source).built
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    assert wording(refusal(source))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo one: warning >&2; echo two: error: no such thing >&2; exit 1", "fails: two: error: no such thing"),
        ("exit 3", "fails: 3"),
        ("exit 0", "the library cannot be kept: "),  # and makes nothing
        ("kill -9 $$", "fails: -9"),
    ],
)
def test_a_compiler_that_fails_is_quoted_in_a_line(
    source: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    compiler = script(tmp_path, "fails", body)
    monkeypatch.setenv("CXX", compiler)
    reported = refusal(source)
    assert said in reported
    assert compiler in reported or said.startswith("the library")
    assert left(cache) == [], "nothing is kept of it"


def test_a_compiler_that_hangs_is_ended_with_all_its_processes(
    source: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_LIMIT", 0.5)
    hangs = script(tmp_path, "hangs", f"sleep 60 &\necho $! > {tmp_path}/pid\nwait")
    monkeypatch.setenv("CXX", hangs)
    began = time.monotonic()
    assert wording(refusal(source))
    assert time.monotonic() - began < 10
    until(lambda: over(int((tmp_path / "pid").read_text())))
    assert left(cache) == []
