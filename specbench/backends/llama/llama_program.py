"""Find the program llama-server, its version, and the options that it supports."""

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
        path: path of the program; empty is the one of ``make engines``, else the one on the PATH.
    """

    def __init__(self, path: str) -> None:
        made = cache_folder("engines")
        places = [path] if path else [*([str(made / "llama.cpp" / _NAME)] if made else []), _NAME]
        found = next(filter(None, map(shutil.which, places)), None)
        if found is None:
            where = f"there is no program {path}" if path else "it is not installed"
            raise EngineFault(f"{where}; run make engines to build it, or give --set llama.cpp:ar.server=PATH")
        self.path = found

    def version(self) -> str:
        """Return the version with build and commit."""
        found = re.search(r"^version: (.+)$", self._asked("--version"), re.MULTILINE)
        return one_line(found[1], 80) if found else "unknown"

    def arguments(self, options: Mapping[str, object], more: str) -> list[str]:
        """Return options as a command line, after checking that ``--help`` has them: names change between builds.

        Args:
            options: values by name; the value of ``--spec-type`` must be in the help too.
            more: further options of the user, as on a command line.
        """
        ours = {"--model": "", "--port": "", **options}
        for name in (*ours, *(str(value) for option, value in options.items() if option == "--spec-type")):
            if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", self._help):
                raise EngineFault(f"its --help does not list {name}; use a newer llama-server")
        try:
            words = shlex.split(more)
        except ValueError as error:
            raise EngineFault(f"its server_args are not a valid command line ({error})") from None
        for name in (word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)):
            if any(each in ours or each.startswith("--spec-") for each in self._spellings(name)):
                raise EngineFault(f"its server_args have {name}, which is set by the run or by an option of the mode")
        return [*(str(part) for pair in sorted(options.items()) for part in pair), *words]

    @cached_property
    def _help(self) -> str:
        return self._asked("--help")

    def _spellings(self, name: str) -> set[str]:
        """Return all names of an option, which are on the same line of the help."""
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
            raise EngineFault(f"{self.path} {about} cannot be run ({one_line(str(error), 100)})") from error
        return done.stdout + done.stderr
