"""A worker for the tests: ``python -m answering``."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

from specbench.evals.grading.workers import Job, serve


def prepare() -> Callable[[Job], Job]:
    if os.environ.get("ANSWERING") == "broken":
        raise ImportError("no module named parse")

    def handle(job: Job) -> Job:
        print("noise, as libraries make it")  # noqa: T201
        if job["do"] == "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        if job["do"] == "spin":
            while True:
                pass
        if job["do"] == "fill":
            return {"much": len(bytearray(8 << 30))}
        if job["do"] == "die":
            os._exit(1)
        if job["do"].startswith("write "):  # as a library does that finds the pipe
            for descriptor in range(3, 10):
                with contextlib.suppress(OSError):
                    os.write(descriptor, job["do"].removeprefix("write ").encode() + b"\n")
        if job["do"] == "flood":
            for descriptor in range(3, 10):
                with contextlib.suppress(OSError):
                    while True:
                        os.write(descriptor, bytes(1 << 20))
        if job["do"] == "raise":
            raise RecursionError
        if job["do"] == "alarm":
            signal.signal(signal.SIGALRM, lambda *_: None)
            signal.alarm(0)
        main = threading.current_thread() is threading.main_thread()
        return {"pid": os.getpid(), "main": main, "echo": job["do"], "seed": os.environ["PYTHONHASHSEED"]}

    return handle


if __name__ == "__main__":
    serve(prepare)
