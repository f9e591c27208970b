"""A llama-server that is none: it speaks the fields that the backend reads, as recorded from a real one, badly.

As a program it takes llama-server's options, and FAKE_LLAMA in the environment says how it behaves. What is proven
against it is proven against it only: test_llama_cpp.py's slow tests look its options and fields up in a real one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HELP = """
-m,    --model FNAME                    model path to load
-t,    --threads N                      threads
-tb,   --threads-batch N                threads for prompts
-c,    --ctx-size N                     size of the prompt context
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
-ctk,  --cache-type-k TYPE              KV cache data type for K
-ctv,  --cache-type-v TYPE              KV cache data type for V
-dev,  --device <dev1,dev2,..>          devices
-cram, --cache-ram N                    set the maximum cache size in MiB
-np,   --parallel N                     number of server slots
--host HOST                             ip address
--port PORT                             port to listen
-lm,   --load-mode MODE                 model loading mode
--spec-type none,draft-simple,draft-eagle3,ngram-simple,ngram-map-k,ngram-map-k4v,ngram-mod,ngram-cache
--spec-draft-type-k, -ctkd, --cache-type-k-draft TYPE
--spec-draft-type-v, -ctvd, --cache-type-v-draft TYPE
--spec-draft-model, -md, --model-draft FNAME
--spec-draft-n-max N
--spec-draft-n-min N
--spec-draft-p-min P
--spec-ngram-mod-n-min N
--spec-ngram-mod-n-max N
--spec-ngram-mod-n-match N
--spec-ngram-simple-size-n N
--spec-ngram-simple-size-m N
--spec-ngram-simple-min-hits N
--spec-ngram-map-k-size-n N
--spec-ngram-map-k-size-m N
--spec-ngram-map-k-min-hits N
--spec-ngram-map-k4v-size-n N
--spec-ngram-map-k4v-size-m N
--spec-ngram-map-k4v-min-hits N
"""


class Fake(ThreadingHTTPServer):
    """Answers with ids that count up from the prompt's last.

    Args:
        behaviour: what it does wrong, empty for nothing.
        port: 0 is a free one.
        speculative: it drafts two tokens in every second step and accepts one.
    """

    daemon_threads = True

    def __init__(self, behaviour: str = "", port: int = 0, *, speculative: bool = False) -> None:
        self.behaviour, self.speculative = behaviour, speculative
        self.asked: list[dict[str, Any]] = []
        self.busy = 0
        self.room, self.slots = 512, 1
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client has closed its connection."""


class Handler(BaseHTTPRequestHandler):
    server: Fake
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        slot = {
            "id": 0,
            "n_ctx": self.server.room,
            "speculative": self.server.speculative,
            "is_processing": self.server.busy > 0,
        }
        found = {
            "/health": {"status": "ok"},
            "/props": {"build_info": "b1-fake", "total_slots": 1},
            "/slots": {} if self.server.behaviour == "no slots" else [slot] * self.server.slots,
        }
        self._whole(200, json.dumps(found[self.path]).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        # The first answer is the one of the start.
        behaviour = self.server.behaviour if len(self.server.asked) > 1 else ""
        if behaviour == "error":
            return self._whole(500, json.dumps({"error": {"code": 500, "message": "out\nof luck"}}).encode())
        if behaviour == "no json error":
            return self._whole(503, b"<html>busy")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.server.busy += 1
        try:
            self._stream(body, behaviour)
        finally:
            time.sleep(0.05 if behaviour == "slow" else 0)
            self.server.busy -= 1

    def _stream(self, body: dict[str, Any], behaviour: str) -> None:
        prompt, budget = body["prompt"], body["n_predict"]
        timings: dict[str, Any] = {"prompt_n": len(prompt), "prompt_ms": 2.0, "predicted_n": 0, "predicted_ms": 0.001}
        if behaviour == "cached":
            timings["prompt_n"] = 1
        sent = step = 0
        end = {"beyond": budget + 2, "early": 3, "eos": 3}.get(behaviour, budget)
        while sent < end:
            accepted = 0
            if self.server.speculative and step % 2 and budget - sent > 2:
                timings["draft_n"] = timings.get("draft_n", 0) + 2
                accepted = 1
                timings["draft_n_accepted"] = timings.get("draft_n_accepted", 0) + 1
            step += 1
            for _ in range(1 + accepted):
                sent += 1
                timings |= {"predicted_n": sent, "predicted_ms": 10.0 * (step - 1) or 0.001}
                tokens: list[Any] = [prompt[-1] + sent]
                if sent == 3 and behaviour in WRONG_IDS:
                    tokens = WRONG_IDS[behaviour]
                if sent == 3 and behaviour == "held back":
                    continue
                if sent == 3 and behaviour == "death":
                    os.kill(os.getpid(), signal.SIGSEGV)
                    time.sleep(100)  # the signal may reach another thread first, and this one would go on
                if sent == 3 and behaviour == "break":
                    return self.connection.shutdown(socket.SHUT_RDWR)
                if sent == 3 and behaviour == "stall":
                    time.sleep(100)
                if sent == 3 and behaviour == "trickle":
                    for _ in range(1000):
                        self._chunk(b":\n\n")
                        time.sleep(0.02)
                if sent == 3 and behaviour == "garbage":
                    self._chunk(b'data: {"tokens": [1\n\n')
                if sent == 3 and behaviour == "huge":
                    self._chunk(b"data: " + b"x" * (5 << 20))
                if sent == 3 and behaviour == "an error":
                    return self._event({"error": {"code": 500, "message": "context is full"}})
                time.sleep(0.01 if behaviour == "slow" else 0)
                event = {"index": 0, "content": "t.", "tokens": tokens, "stop": False, "tokens_predicted": sent}
                timed = body["timings_per_token"] and behaviour != "no timings"
                self._event(event | ({"timings": timings} if timed else {}))
        why = "eos" if behaviour == "eos" else "limit"
        event = {"index": 0, "content": "", "tokens": [], "stop": True, "tokens_predicted": sent, "stop_type": why}
        self._event(event | {"timings": timings})
        self._chunk(b"")

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _whole(self, code: int, content: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


WRONG_IDS: dict[str, list[Any]] = {"text for ids": ["the"], "floats for ids": [1.5], "negative ids": [-1]}


def main() -> None:
    behaviour = os.environ.get("FAKE_LLAMA", "")
    if "--version" in sys.argv:
        sys.exit("version: 0.0.0-fake (build 7, commit abc)\nbuilt with nothing")
    if "--help" in sys.argv:
        sys.stdout.write(HELP.replace("--cache-ram", "--cash-ram") if behaviour == "another help" else HELP)
        return
    reading = argparse.ArgumentParser(allow_abbrev=False)
    reading.add_argument("--port", type=int)
    reading.add_argument("--spec-type")
    given, _ = reading.parse_known_args()
    if behaviour == "bad file":
        sys.exit("\x1b[31mgguf_init_from_file: invalid magic\x1b[0m\nerror: failed to load model")
    if behaviour == "never ready":
        time.sleep(100)
    with Fake(behaviour, given.port, speculative=given.spec_type is not None) as server, suppress(KeyboardInterrupt):
        server.serve_forever(poll_interval=0.01)


if __name__ == "__main__":
    main()
