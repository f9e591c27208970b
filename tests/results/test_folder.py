"""What is on disk after a full disk, Ctrl-C, SIGKILL and a second process: whole lines, and a message that helps."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from support.asserting import known
from support.wording import wording

from specbench.common import files
from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.common.files import check_writable, write_folder, write_json_atomic
from specbench.results import folder as run_folder
from specbench.results.folder import RunFolder
from specbench.results.request_log import RequestLog, read_requests, set_aside
from specbench.results.schema import SCHEMA_VERSION
from specbench.results.summary_schema import RunSummary

DIGEST = "0123456789abcdef" * 4
RUN = {"method": "jacobi"}
STORED = {"method": "jacobi", "schema_version": SCHEMA_VERSION, "digest": DIGEST}
SUMMARY = RunSummary.model_validate(
    {
        "complete": True,
        "rows": [
            {
                "method": "ar", "prompts": 1, "requests": 1, "tokens": 2, "target_forwards": 1, "decode_tok_s": 1.0,
                "tokens_per_forward": 1.0, "tokens_per_forward_with_prefill": 1.0,
            }
        ],
    }
)  # fmt: skip

# A process that may write no file beyond argv[2] bytes: the kernel refuses the rest of a line, as a full disk does.
FULL_DISK = """
import resource, sys
from pathlib import Path
from specbench.common.errors import EnvironmentRefused
from specbench.common.files import write_json_atomic
from specbench.results.request_log import RequestLog
path, limit = Path(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    if path.suffix == ".json":
        write_json_atomic(path, {"text": "x" * 2 * limit})
    log = RequestLog(path)
    while True:
        log.append({"i": log.kept, "text": "x" * 100})
except EnvironmentRefused as refused:
    print(refused)
"""

# Appends for ever, going on after the last line on disk, and acknowledges each line once append() returned.
WRITER = """
import sys
from pathlib import Path
from specbench.results.request_log import RequestLog
log = RequestLog(Path(sys.argv[1]))
while True:
    i = log.kept
    log.append({"i": i, "text": "x" * (i * 7919 % 300_000)})
    print(i, flush=True)
"""

# Holds the lock of an unfinished run until its stdin closes.
HOLDER = """
import sys
from pathlib import Path
from specbench.results.folder import RunFolder
folder = RunFolder.find_unfinished(Path(sys.argv[1]), sys.argv[2])
print(folder.path.name, flush=True)
sys.stdin.read()
"""


def python(script: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", script, *map(str, arguments)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_json_replaces_the_old_content_which_a_reader_has_whole(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json_atomic(path, {"speedup": 1.5})
    write_json_atomic(path, {"speedup": None, "text": "2 × é"})
    assert json.loads(path.read_text()) == {"speedup": None, "text": "2 × é"}
    assert names(tmp_path) == ["summary.json"]
    path = tmp_path / "summary.json"
    write_json_atomic(path, {"old": True})
    with path.open() as reader:
        write_json_atomic(path, {"new": True})
        assert json.loads(reader.read()) == {"old": True}, "another file has taken its name"
    assert json.loads(path.read_text()) == {"new": True}


def test_content_is_on_disk_before_its_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, done = tmp_path / "summary.json", list[str]()
    fsync, replace = os.fsync, Path.replace

    def synced(fd: int) -> None:
        where = Path(os.readlink(f"/proc/self/fd/{fd}"))
        done.append("folder" if where == tmp_path else "content" if where.stat().st_size else "nothing yet")
        fsync(fd)

    def replaced(draft: Path, wanted: Path) -> Path:
        done.append("name")
        return replace(draft, wanted)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    write_json_atomic(path, {"new": True})
    assert done == ["content", "name", "folder"], "a power cut at any moment leaves the old content or the new"


def test_what_cannot_be_written_leaves_the_old_json_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json_atomic(path, {"old": True})
    for bad in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises((ValueError, TypeError)):
            write_json_atomic(path, bad)
    done = subprocess.run(python(FULL_DISK, path, 4096), capture_output=True, text=True, check=True)
    assert wording(done.stdout)
    assert json.loads(path.read_text()) == {"old": True}
    assert names(tmp_path) == ["summary.json"]


def test_an_unwritable_place_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(EnvironmentRefused, check=wording):
        write_json_atomic(tmp_path / "taken", {})
    assert names(tmp_path) == ["taken"]
    (tmp_path / "runs").write_text("")
    with pytest.raises(EnvironmentRefused, check=wording):
        RunFolder.create(tmp_path / "runs", "ar-gsm8k", DIGEST, RUN)
    check_writable(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentRefused, check=wording):
        check_writable(tmp_path / "file")


def test_lines_come_back_and_are_on_disk_when_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "requests.jsonl"
    rows: list[dict[str, Any]] = [
        {"i": 0, "text": "line\nbreak \u2028 \U0001f600 é"},
        {"i": 1, "ids": [1, 2]},
        {"i": 2},
    ]
    log = RequestLog(path)
    assert list(log.read()) == []
    log.append(rows[0])
    log.append(rows[1])
    log.close()
    log.close()
    again = RequestLog(path)
    assert again.kept == 2
    again.append(rows[2])
    assert list(again.read()) == rows
    assert path.read_bytes().count(b"\n") == 3
    log = RequestLog(tmp_path / "other.jsonl")
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: sizes.append(os.fstat(fd).st_size))
    log.append({"i": 0})
    assert sizes == [len(b'{"i":0}\n')]


def test_a_last_line_torn_anywhere_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    first, last = b'{"i":0}\n', b'{"i":1,"text":"abc"}\n'
    for cut in range(len(last)):
        path.write_bytes(first + last[:cut])
        assert [row for _, row in read_requests(path)] == [{"i": 0}]
        log = RequestLog(path)
        assert log.kept == 1
        assert path.read_bytes() == first
        log.append({"i": 2})
        assert path.read_bytes() == first + b'{"i":2}\n'
        log.close()
    path.write_bytes(b'{"i":0}\n{"text":"' + b"x" * 3_000_000 + b'"}\n{"text":"' + b"y" * 3_000_000)
    log = RequestLog(path)
    assert log.kept == 2
    log.append({"i": 2})
    assert [len(str(row.get("text", ""))) for row in log.read()] == [0, 3_000_000, 0]


@pytest.mark.parametrize("damage", [b'{"i":\n', b"[1]\n", b"\x00\x00\xff\n", b"\n"])
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(b'{"i":0}\n' + damage + b'{"i":2}\n')
    with pytest.raises(UsageError, check=wording):
        list(read_requests(path))


def test_a_full_disk_keeps_whole_lines_and_the_run_goes_on_later(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    done = subprocess.run(python(FULL_DISK, path, 4096), capture_output=True, text=True, check=True)
    kept = len(path.read_bytes().splitlines())
    assert 20 < kept < 40
    assert wording(done.stdout)
    assert path.read_bytes().endswith(b"}\n")  # not merely skipped when read: cut off
    log = RequestLog(path)
    log.append({"i": kept})
    assert [row["i"] for row in log.read()] == list(range(kept + 1))


def test_a_disk_that_fails_on_sync_keeps_no_doubtful_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "requests.jsonl"
    log = RequestLog(path)
    log.append({"i": 0})

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(EnvironmentRefused, check=wording):
            log.append({"i": 1})
    assert path.read_bytes() == b'{"i":0}\n'


def test_ctrl_c_within_a_line_does_not_damage_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "requests.jsonl"
    log = RequestLog(path)
    log.append({"i": 0})
    pwrite = os.pwrite

    def interrupted(fd: int, data: bytes, offset: int) -> int:
        pwrite(fd, data, offset)
        raise KeyboardInterrupt  # before append() has counted the line

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.append({"i": 1, "text": "long"})
    log.append({})  # shorter than what was left
    assert list(log.read()) == [{"i": 0}, {}]


def test_sigkill_at_any_moment_loses_nothing_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    pauses = random.Random(0)
    for _ in range(6):
        process = subprocess.Popen(python(WRITER, path), stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        first = process.stdout.readline()  # it writes
        time.sleep(pauses.uniform(0.0, 0.15))
        process.kill()
        lines = (first + process.stdout.read()).split("\n")[:-1]
        assert process.wait() == -signal.SIGKILL
        acknowledged = int(lines[-1])
        rows = [row["i"] for _, row in read_requests(path)]
        assert rows == list(range(len(rows)))  # no gap, no repetition, across restarts too
        assert acknowledged < len(rows) <= acknowledged + 2  # one more may be written but not yet acknowledged
    log = RequestLog(path)
    log.append({"i": log.kept})
    assert len(list(log.read())) == log.kept > 6


def test_a_folder_without_run_json_is_never_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def interrupted(path: Path, _: object) -> None:
        seen.append([name for name in names(tmp_path) if not name.startswith(".")])
        raise KeyboardInterrupt

    monkeypatch.setattr(run_folder, "write_json_atomic", interrupted)
    with pytest.raises(KeyboardInterrupt):
        RunFolder.create(tmp_path, "ar-gsm8k", DIGEST, RUN)
    assert seen == [[]]
    assert names(tmp_path) == []


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), ValueError("a mistake"), KeyboardInterrupt()])
def test_a_folder_of_files_that_cannot_all_be_written_is_none(tmp_path: Path, error: BaseException) -> None:
    def write(folder: Path) -> None:
        (folder / "first").write_text("")
        raise error

    with pytest.raises(EnvironmentRefused if isinstance(error, OSError) else type(error)) as raised:
        write_folder(tmp_path, "profile", DIGEST, write)
    assert not isinstance(error, OSError) or "disk full while writing" in str(raised.value)
    assert names(tmp_path) == []


def test_an_interrupted_run_is_found_and_a_finished_one_is_not(tmp_path: Path) -> None:
    assert RunFolder.find_unfinished(tmp_path / "none", DIGEST) is None
    with RunFolder.create(tmp_path, "ar-gsm8k", DIGEST, RUN) as first:
        first.log.append({"i": 0})
        assert not first.finished
    with RunFolder.find_unfinished(tmp_path, DIGEST) or pytest.fail("not found") as again:
        assert again.path == first.path
        assert again.run == STORED
        assert [row for _, row in read_requests(again.requests_path)] == [{"i": 0}]
        again.log.append({"i": 1})
        assert again.summary() is None
        again.finish(SUMMARY)
    assert names(first.path) == ["DONE", "requests.jsonl", "run.json", "summary.json"]
    assert RunFolder.find_unfinished(tmp_path, DIGEST) is None
    read = RunFolder.load(first.path)
    assert read.finished
    assert read.summary() == SUMMARY
    assert [row["i"] for _, row in read_requests(read.requests_path)] == [0, 1]


def test_the_newest_whole_run_that_suits_is_found_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(1)
    monkeypatch.setattr(files, "_utc", lambda: datetime(2026, 1, next(clock), tzinfo=timezone.utc))
    assert RunFolder.find_finished(tmp_path / "none", DIGEST) is None
    made = []
    for digest in (DIGEST, DIGEST, DIGEST[:8] + "f" * 56, DIGEST, DIGEST):  # the third shares the short digest only
        with RunFolder.create(tmp_path, "ar-gsm8k", digest, RUN) as folder:
            made.append(folder.path)
            if len(made) < 5:  # the last was broken off
                folder.finish(SUMMARY.model_copy(update={"bootstrap_seed": len(made)}))
    (made[3] / "summary.json").write_text("{")

    found = known(RunFolder.find_finished(tmp_path, DIGEST))
    assert (found.path, found.summary()) == (made[1], SUMMARY.model_copy(update={"bootstrap_seed": 2}))
    older = known(RunFolder.find_finished(tmp_path, DIGEST, lambda found: found.path != made[1]))
    assert older.path == made[0]
    assert RunFolder.find_finished(tmp_path, DIGEST, lambda found: False) is None


def test_only_the_same_digest_is_resumed_and_the_newest_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(1)
    monkeypatch.setattr(files, "_utc", lambda: datetime(2026, 1, next(clock), tzinfo=timezone.utc))
    for digest in (DIGEST, DIGEST, DIGEST[:8] + "f" * 56):  # the third shares the short digest only
        RunFolder.create(tmp_path, "ar-gsm8k", digest, RUN).close()
    (tmp_path / f"20270101T000000Z-ar-gsm8k-{DIGEST[:8]}").mkdir()  # not a run
    damaged = tmp_path / f"20270102T000000Z-ar-gsm8k-{DIGEST[:8]}"
    damaged.mkdir()
    (damaged / "run.json").write_text('{"digest": "')
    with RunFolder.find_unfinished(tmp_path, DIGEST) or pytest.fail("not found") as found:
        assert found.path.name.startswith("20260102")


def test_two_processes_cannot_write_to_one_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "ar-gsm8k", DIGEST, RUN)
    with pytest.raises(EnvironmentRefused, check=wording):
        RunFolder.find_unfinished(tmp_path, DIGEST)
    folder.close()
    holder = subprocess.Popen(
        python(HOLDER, tmp_path, DIGEST), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == folder.path.name
    with pytest.raises(EnvironmentRefused, check=wording):
        RunFolder.find_unfinished(tmp_path, DIGEST)
    RunFolder.load(folder.path)  # reading is always possible
    holder.kill()
    holder.communicate()
    with RunFolder.find_unfinished(tmp_path, DIGEST) or pytest.fail("lock outlived its process") as found:
        assert found.path == folder.path


def test_a_run_that_finished_while_it_was_looked_up_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path, "ar-gsm8k", DIGEST, RUN)
    acquire = run_folder._acquire

    def finishes_first(path: Path) -> int:
        folder.finish(SUMMARY)
        return acquire(path)

    monkeypatch.setattr(run_folder, "_acquire", finishes_first)
    assert RunFolder.find_unfinished(tmp_path, DIGEST) is None


def test_a_run_that_is_finished_or_cannot_be_stays_as_it_is(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "ar-gsm8k", DIGEST, RUN) as folder:
        (folder.path / "summary.json").mkdir()
        with pytest.raises(EnvironmentRefused, check=wording):
            folder.finish(SUMMARY)
        assert not folder.finished
    with RunFolder.create(tmp_path / "another", "ar-gsm8k", DIGEST, RUN) as folder:
        path = folder.path
    folder = RunFolder.load(path)
    with pytest.raises(ValueError, check=wording):
        folder.log.append({})
    with pytest.raises(ValueError, check=wording):
        folder.finish(SUMMARY)
    assert names(path) == [".lock", "run.json"]


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    newer = SCHEMA_VERSION + 2
    for content in (None, '{"schema_version": 1, "meth', "[1]", "{}", f'{{"schema_version": {newer}}}'):
        if content is not None:
            (tmp_path / "run.json").write_text(content)
        with pytest.raises(UsageError, check=wording):
            RunFolder.load(tmp_path)


@pytest.mark.parametrize("kind", ["run", "files"])
def test_a_new_folder_has_its_name_on_disk_before_it_is_used(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, seen = os.fsync, list[list[str]]()

    def synced(fd: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{fd}")) == tmp_path:
            seen.append([name for name in names(tmp_path) if not name.startswith(".")])
        fsync(fd)

    monkeypatch.setattr(os, "fsync", synced)
    if kind == "run":
        with RunFolder.create(tmp_path, "ar-gsm8k", DIGEST, RUN) as folder:
            path = folder.path
    else:
        path = write_folder(tmp_path, "profile", DIGEST, lambda draft: None)
    assert seen == [[path.name]], "else a power cut takes the folder and all that is written to it"


# As FULL_DISK; takes the requests in argv[3] out of a log.
ASIDE = """
import resource, sys
from pathlib import Path
from specbench.common.errors import EnvironmentRefused
from specbench.results.request_log import set_aside
path, limit = Path(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    set_aside(path, sys.argv[3].split(","))
except EnvironmentRefused as refused:
    print(refused)
"""


def logged(path: Path, **texts: int) -> dict[str, bytes]:
    """A log of requests with texts of so many letters; returns their lines."""
    rows = {name: f'{{ "text":"{"é" * size}","request_id":"{name}" }}\n'.encode() for name, size in texts.items()}
    path.write_bytes(b"".join(rows.values()))
    return rows


def test_requests_that_are_set_aside_stay_next_to_the_log_as_they_were_written(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    rows = logged(log, a=3, b=0, c=5, d=1)
    set_aside(log, {"d", "b", "no such request"})
    restarted = tmp_path / "requests.restarted.jsonl"
    assert (log.read_bytes(), restarted.read_bytes()) == (rows["a"] + rows["c"], rows["b"] + rows["d"])
    # A second time, after the earlier lines; an incomplete last line is not a request and is removed.
    again = logged(log, a=3, b=7, c=5)
    log.write_bytes(log.read_bytes() + b'{"request_id": "d", "te')
    set_aside(log, {"b", "d"})
    assert (log.read_bytes(), restarted.read_bytes()) == (rows["a"] + rows["c"], rows["b"] + rows["d"] + again["b"])
    assert names(tmp_path) == ["requests.jsonl", "requests.restarted.jsonl"]


def test_a_run_restarts_some_requests_and_goes_on_in_its_log(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "ar-gsm8k", DIGEST, RUN) as folder:
        rows = logged(folder.requests_path, a=1, b=1)
        folder.restart({"a"})
        folder.log.append({"request_id": "a", "text": "anew"})
        assert [row["request_id"] for row in folder.log.read()] == ["b", "a"]
        assert (folder.path / "requests.restarted.jsonl").read_bytes() == rows["a"]
    with pytest.raises(ValueError, check=wording):
        RunFolder.load(folder.path).restart({"b"})
    assert len(folder.requests_path.read_bytes().splitlines()) == 2


@pytest.mark.parametrize(("kept", "gone"), [(10, 5000), (5000, 10)], ids=["restarted file", "log"])
def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path, kept: int, gone: int) -> None:
    log = tmp_path / "requests.jsonl"
    before = b"".join(logged(log, kept=kept, gone=gone).values())
    done = subprocess.run(python(ASIDE, log, 4096, "gone"), capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"disk full while writing {tmp_path / 'requests.'}")
    assert done.stdout.endswith("free space and repeat the same command\n")
    assert log.read_bytes() == before
    assert not [name for name in names(tmp_path) if name.endswith(".tmp")]
    set_aside(log, {"gone"})  # when there is space again
    assert (
        log.read_bytes() + (tmp_path / "requests.restarted.jsonl").read_bytes().splitlines(keepends=True)[-1] == before
    )
