"""Console: what the `specbench` script calls."""

from __future__ import annotations

import gc
import sys


def entry() -> None:
    """Runs the command line and exits with its code.

    Garbage is not looked for before a command runs: imports make next to none, and looking through what they make is a
    tenth of ``--help`` or more.
    """
    gc.disable()
    from specbench.cli.app import main  # everything else

    sys.exit(main())
