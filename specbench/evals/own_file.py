"""Options of a task that reads a user's own file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypeVar

from specbench.common import Options as OptionsBase
from specbench.common import UsageError, option, read_bytes

_LARGEST = 1 << 30  # bytes: half a million long prompts


class OwnFileOptions(OptionsBase):
    """The file, and the hash that says which one it was."""

    file: str = option("", help="the .jsonl file, set by --data-file; recorded without its folder")
    sha256: str = option("", help="sha256 of the file; when set, another file is refused", pattern=r"^([0-9a-f]{64})?$")


Own = TypeVar("Own", bound=OwnFileOptions)


def with_hash(options: Own) -> Own:
    """The options with the file's hash; UsageError if they name another one."""
    path = Path(options.file)
    digest = hashlib.sha256(read_bytes(path, "give a .jsonl file with --data-file", _LARGEST)).hexdigest()
    if options.sha256 not in ("", digest):
        raise UsageError(f"{path} has sha256 {digest}, not {options.sha256}; give that file or leave sha256 out")
    return options.model_copy(update={"sha256": digest})
