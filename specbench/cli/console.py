"""Console: what the `specbench` script calls."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
from typing import NoReturn

_INTERRUPTED, _FAILED = 130, 3
_LEAVE_S = 2.0  # that exit functions of libraries may take


def entry() -> None:
    """Run the command line and exit with its code.

    What runs plug-ins runs in a child of this process, which then waits and imports nothing more. The garbage collector
    is off until a command runs: a tenth of ``--help`` or more.
    """
    gc.disable()
    try:
        code = _run()
    except KeyboardInterrupt:  # while modules are imported, before anything is begun
        _last_word()
        os.write(2, b"error: interrupted; nothing was begun\n")
        code = _INTERRUPTED
        if "specbench.common.heartbeat" in sys.modules:  # who watches this process is told that this was its end
            sys.modules["specbench.common.heartbeat"].ended(code)
    _end(code)


def _run() -> int:
    from specbench.cli import streams, supervisor

    streams.open_streams()
    if supervisor.watched(sys.argv[1:]) and (code := supervisor.supervise()) is not None:
        return code
    from specbench.cli.app import main  # everything else
    from specbench.common import heartbeat

    try:
        code = streams.closing(main())
    except Exception as error:  # a fault of ours: nothing ended this process, and repeating does not help
        import traceback

        traceback.print_exc()
        said = f"error: specbench failed with {type(error).__name__}: {error}"
        os.write(
            2, " ".join(f"{said}; what was finished is kept, report this with the lines above".split()).encode() + b"\n"
        )
        code = _FAILED
    _last_word()
    heartbeat.ended(code)
    return code


def _end(code: int) -> NoReturn:
    """End this process now: Python would wait without an end for a thread that a plug-in has left.

    Exit functions still run, such as those that remove temporary folders, for as long as they take no more than 2 s.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or replaced by what is no stream
            stream.flush()
    last = threading.Timer(_LEAVE_S, os._exit, (code,))
    last.daemon = True
    last.start()
    atexit._run_exitfuncs()
    os._exit(code)


def _last_word() -> None:
    """It is said what came of it: a signal on the way out changes nothing."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
