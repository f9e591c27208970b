"""llama-server's program: where it is, what it says of itself, and the options that it knows."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from functools import cached_property

from specbench.common import EngineFault, cache_folder, one_line

_NAME = "llama-server"


class Program:
    """A llama-server on this machine.

    Args:
        path: of it; empty is the one of ``make engines``, or else that on the PATH.
    """

    def __init__(self, path: str) -> None:
        made = cache_folder("engines")
        places = [path] if path else [*([str(made / "llama.cpp" / _NAME)] if made else []), _NAME]
        found = next(filter(None, map(shutil.which, places)), None)
        if found is None:
            where = f"there is no program {path}" if path else "it is not installed"
            raise EngineFault(f"{where}; make engines builds it, or name one by --set llama.cpp:ar.server=PATH")
        self.path = found

    def version(self) -> str:
        """Its version with build and commit."""
        found = re.search(r"^version: (.+)$", self._asked("--version"), re.MULTILINE)
        return one_line(found[1], 80) if found else "unknown"

    def arguments(self, options: Mapping[str, object], more: str) -> list[str]:
        """Options as a command line, once all of them are in its ``--help``: names change between builds.

        Args:
            options: by their names; of ``--spec-type`` the value has to be there too.
        """
        ours = {"--model": "", "--port": "", **options}
        for name in (*ours, *(str(value) for option, value in options.items() if option == "--spec-type")):
            if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", self._help):
                raise EngineFault(f"its --help does not name {name}; build a llama-server of this year")
        try:
            words = shlex.split(more)
        except ValueError as error:
            raise EngineFault(f"its server_args are no command line ({error})") from None
        for name in (word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)):
            if self._spellings(name) & ours.keys() or name.startswith("--spec-"):
                raise EngineFault(f"its server_args have {name}, which the run sets, or an option of the mode")
        return [*(str(part) for pair in sorted(options.items()) for part in pair), *words]

    @cached_property
    def _help(self) -> str:
        return self._asked("--help")

    def _spellings(self, name: str) -> set[str]:
        """All names of an option, which are on one line of the help."""
        for line in self._help.splitlines():
            names = set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", line)) if line.startswith("-") else set()
            if name in names:
                return names
        return {name}

    def _asked(self, about: str) -> str:
        try:
            done = subprocess.run(
                [self.path, about], stdin=subprocess.DEVNULL, capture_output=True, errors="replace", timeout=60
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EngineFault(f"{self.path} cannot be asked for {about} ({one_line(str(error), 100)})") from error
        return done.stdout + done.stderr
