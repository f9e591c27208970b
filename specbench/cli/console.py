"""The entry point of the ``specbench`` script."""

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
_LEAVE_S = 2.0  # seconds for exit functions of libraries


def entry() -> None:
    """Run the command line and exit with its code.

    Commands that run plug-ins run in a child of this process, which then only waits. The garbage collector is off until
    a command runs, which saves a tenth of the time of ``--help``.
    """
    gc.disable()
    try:
        code = _run()
    except KeyboardInterrupt:  # while modules are imported, before anything has started
        _last_word()
        os.write(2, b"error: interrupted before anything started\n")
        code = _INTERRUPTED
        if "specbench.common.heartbeat" in sys.modules:  # report the end to the supervisor
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
    except Exception as error:  # our own bug: the process is alive, and repeating does not help
        import traceback

        traceback.print_exc()
        text = f"error: specbench failed with {type(error).__name__}: {error}"
        os.write(
            2,
            " ".join(f"{text}; finished requests are kept; report this with the lines above".split()).encode() + b"\n",
        )
        code = _FAILED
    _last_word()
    heartbeat.ended(code)
    return code


def _end(code: int) -> NoReturn:
    """End this process now, because Python would wait for ever for a thread that a plug-in left running.

    Exit functions, such as those that remove temporary folders, still run, for at most 2 s.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(
            OSError, ValueError, AttributeError
        ):  # closed, or replaced by something that is not a stream
            stream.flush()
    last = threading.Timer(_LEAVE_S, os._exit, (code,))
    last.daemon = True
    last.start()
    atexit._run_exitfuncs()
    os._exit(code)


def _last_word() -> None:
    """Ignore signals from now on: the result has been reported."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
