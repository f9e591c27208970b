"""Our AR against llama.cpp's ``llama-server``: same float32 weights, same prompts, one run, interleaved, greedy.

The weights that ``specbench.models.load`` gives are written into a GGUF file, unrounded, and served. Prompts are token
ids of HumanEval's text at exactly the length asked for, and no token of that file's vocabulary ends an answer, so that
both decode as many tokens. Of each pair the arm that goes first alternates.

The KV cache is float32 on both sides, and llama.cpp's flash attention is off: with it build 0c1e57098 rounds the whole
cache to float16 in every step, which takes longer and gives other ids. All else is as the server has it by default;
``--server-args "--flash-attn auto --cache-type-k f16 --cache-type-v f16"`` makes these two so as well.

Both decode times go from the first token to the last. Ours is the record's ``decode_s``. Of the server's ``timings``,
``predicted_ms`` begins when the first token has been sampled from the prompt's logits and ends when the last has, while
``predicted_n`` counts the first one as well: its steps are ``predicted_n - 1``. The wall clocks are around the whole
call, prompt included, ours in this process and theirs over HTTP.

A decode step reads every weight once, so bandwidth / weight bytes bounds both arms. Where ids differ, the place and
transformers' logits of both tokens there tell a tie of float sums from an error.

    python benchmarks/vs_llama_cpp.py --server PATH|URL [--model smollm2-135m] [--threads 1,2] [--contexts 64,1024]
        [--pairs 5] [--tokens 128] [--server-args "--load-mode none"] [--json]
    python benchmarks/vs_llama_cpp.py --gguf FILE  # writes what a server has to be given whose URL comes later
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

import torch

from specbench.common import EnvironmentRefused, SpecbenchError, UsageError, registry
from specbench.common.reading import json_object, parse_json
from specbench.hardware.bandwidth import BandwidthProbe
from specbench.models import LoadedModel, load
from specbench.models.export.gguf_file import export_gguf
from specbench.models.export.graph import graph_of
from specbench.planning.methods import plan_methods
from specbench.runner import Request as Asked
from specbench.runner import Session, StopRule

PROBE_BYTES = 512 << 20
REST_S = 0.3  # before each arm: threads of the other one that wait for work by spinning have stopped

# Options of the server that are there in some versions only, each with its value; the first that ``--help`` names.
WHERE_KNOWN: tuple[tuple[tuple[str, ...], list[str]], ...] = (
    (("--no-webui", "--no-ui"), []),
    (("--device",), ["none"]),
    (("--cache-ram",), ["0"]),  # or it copies the last prompt's cache aside while the next request waits
)


@dataclass(frozen=True)
class Timed:
    """One answer: its ids, the seconds of the steps behind its first token, and those of the whole call."""

    ids: list[int]
    seconds: float
    wall: float

    @property
    def tok_s(self) -> float:
        return (len(self.ids) - 1) / self.seconds


def bandwidth(threads: int) -> float:
    """Bytes per second that so many threads read from memory now."""
    with BandwidthProbe(PROBE_BYTES) as probe:
        return probe.read(threads)


# ---------------------------------------------------------------------------------------------------------- the server


def options(said: str, file: Path, threads: int, capacity: int, port: int) -> list[str]:
    """What a server is started with.

    Args:
        said: its ``--help``.
        file: the weights.
        threads: of prompt and decode.
        capacity: tokens of prompt and answer.
        port: of this machine.

    Raises:
        UsageError: an option that it cannot go without is not among its own.
    """

    def knows(option: str) -> bool:
        return re.search(rf"(?<![\w-]){option}(?![\w-])", said) is not None

    fixed = {
        "--model": str(file),
        "--host": "127.0.0.1",
        "--port": str(port),
        "--threads": str(threads),
        "--threads-batch": str(threads),
        "--ctx-size": str(capacity),
        "--parallel": "1",
        "--cache-type-k": "f32",
        "--cache-type-v": "f32",
    }
    for option in fixed:
        if not knows(option):
            raise UsageError(f"the server's --help does not name {option}; give --server a llama-server of this year")
    found = list(chain.from_iterable(fixed.items()))
    if re.search(r"--flash-attn\s+\[on\|off", said):  # before that it was a switch, and off
        found += ["--flash-attn", "off"]
    for names, value in WHERE_KNOWN:
        known = next(filter(knows, names), None)
        found += [known, *value] if known else []
    return found


@contextmanager
def serving(binary: str, file: Path, threads: int, capacity: int, more: Sequence[str]) -> Iterator[str]:
    """Starts a server, waits until it takes requests, gives its address, and stops it.

    Raises:
        EnvironmentRefused: it cannot be started, or ends; its last words are in the text.
    """
    with socket.socket() as free, tempfile.TemporaryFile("w+", errors="replace") as log:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        try:
            said = subprocess.run([binary, "--help"], capture_output=True, text=True, errors="replace", timeout=60)
            given = options(said.stdout + said.stderr, file, threads, capacity, port)
            process = subprocess.Popen(
                [binary, *given, *more], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EnvironmentRefused(f"{binary} cannot be started ({error}); build llama-server for here") from error
        url = f"http://127.0.0.1:{port}"
        try:
            until = time.monotonic() + 300
            while not answers(url):
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    last = " ".join(log.read().split("\n")[-2:]).strip()
                    raise EnvironmentRefused(f"{binary} does not serve ({last}); try it by hand with --gguf's file")
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def fetch(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """A server's answer.

    Raises:
        EnvironmentRefused: nobody there, or a status that is an error.
        UsageError: no JSON object.
    """
    todo = "give --server a llama-server"
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data=data, headers={"Content-Type": "application/json"})
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=3600) as reply:
            content = reply.read()
    except HTTPError as error:
        said = error.read(400).decode(errors="replace")
        raise EnvironmentRefused(f"{url} says {error.code} ({' '.join(said.split())}); {todo}") from error
    except (URLError, OSError) as error:
        raise EnvironmentRefused(f"{url} does not answer ({error}); {todo}") from error
    return json_object(parse_json(content, url, todo), url, todo)


def answers(url: str) -> bool:
    """Whether a server has its weights loaded."""
    try:
        return fetch(f"{url}/health").get("status") == "ok"
    except SpecbenchError:
        return False


def by_server(url: str, ids: Sequence[int], tokens: int) -> Timed:
    """Theirs: one request, by the server's own clock and from outside.

    Raises:
        EnvironmentRefused: the server refuses.
        UsageError: its answer is another than was asked for, see :func:`parsed`.
    """
    body = {
        "prompt": list(ids),
        "n_predict": tokens,
        "temperature": 0,
        "top_k": 1,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
    }
    start = time.perf_counter()
    reply = fetch(f"{url}/completion", body)
    wall = time.perf_counter() - start
    found, seconds = parsed(reply, len(ids), tokens)
    return Timed(found, seconds, wall)


def parsed(reply: dict[str, Any], prompt: int, tokens: int) -> tuple[list[int], float]:
    """Ids and decode seconds of an answer.

    Args:
        reply: the server's.
        prompt: tokens it was to read, all of them.
        tokens: it was to write.

    Raises:
        UsageError: it read or wrote fewer or more, or does not say.
    """
    ids, timings = reply.get("tokens"), reply.get("timings")
    if not isinstance(ids, list) or any(type(one) is not int for one in ids) or not isinstance(timings, dict):
        raise UsageError("the server returns no token ids with timings; give --server a llama-server of this year")
    read, wrote, ms = (timings.get(key) for key in ("prompt_n", "predicted_n", "predicted_ms"))
    if (read, wrote, len(ids)) != (prompt, tokens, tokens):
        raise UsageError(
            f"the server read {read} of {prompt} tokens and wrote {wrote} of {tokens} ({len(ids)} ids); "
            "serve what --gguf wrote, with a context for both"
        )
    if not isinstance(ms, (int, float)) or not ms > 0:
        raise UsageError(f"the server decoded {tokens} tokens in {ms!r} ms; give --server a llama-server of this year")
    return ids, ms / 1e3


# ------------------------------------------------------------------------------------------------------------ the race


def by_session(session: Session, ids: Sequence[int], tokens: int) -> Timed:
    """Ours: AR on the engine, as a run times it."""
    start = time.perf_counter()
    (record,) = session.decode(session.methods[0], [Asked("prompt", 0, ids, StopRule(frozenset(), (), tokens, str))])
    return Timed(record.output_ids, record.decode_s, time.perf_counter() - start)


def prompts_of(loaded: LoadedModel, length: int, count: int) -> list[list[int]]:
    """HumanEval's prompts, one behind the other and cut to a length; each of the results begins with another one.

    Raises:
        UsageError: its text is shorter than that.
    """
    module = registry.task("humaneval").load()
    texts = module.Task(module.Options()).prompts(loaded.has_chat_template)
    encoded = [loaded.encode(text) for text in texts]
    if length > sum(map(len, encoded)) or count > len(encoded):
        raise UsageError(f"HumanEval is {sum(map(len, encoded))} tokens in {len(encoded)} prompts; ask for less")
    return [list(chain(*encoded[first:], *encoded[:first]))[:length] for first in range(count)]


def interleave(arms: Sequence[Callable[[], Timed]], number: int) -> list[Timed]:
    """The answers of both arms in their order; who goes first hangs on the pair's number."""
    timed: dict[int, Timed] = {}
    for arm in (0, 1) if number % 2 else (1, 0):
        time.sleep(REST_S)
        timed[arm] = arms[arm]()
    return [timed[0], timed[1]]


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The first place where two answers of one length are not the same."""
    return next((place for place, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other), None)


def logits_there(model: Any, prompt: Sequence[int], theirs: Sequence[int], ours: Sequence[int], at: int) -> list[float]:
    """What transformers makes of both tokens at a place, ours first; called while the model has its own attention."""
    with torch.inference_mode():
        row = model(torch.tensor([[*prompt, *ours[:at]]])).logits[0, -1]
    return [float(row[ours[at]]), float(row[theirs[at]])]


def cell(session: Session, url: str, prompts: Sequence[Sequence[int]], tokens: int, threads: int) -> dict[str, Any]:
    """All pairs at one number of threads and one context; the first prompt is for warming up and is not timed."""
    pairs: list[tuple[Sequence[int], Timed, Timed, float]] = []
    for number, ids in enumerate(prompts):
        arms = [partial(by_server, url, ids, tokens), partial(by_session, session, ids, tokens)]
        theirs, ours = interleave(arms, number)
        if number:
            pairs.append((ids, theirs, ours, bandwidth(threads)))
            note = f"pair {number}: llama.cpp {theirs.tok_s:.1f} tok/s, ours {ours.tok_s:.1f}"
            print(f"{threads} threads, context {len(ids)}, {note}", file=sys.stderr, flush=True)
    session.engine.detach()
    differences = [
        {"pair": number, "at": at, "ours": ours.ids[at], "theirs": theirs.ids[at]}
        | {"logits": logits_there(session.model.model, ids, theirs.ids, ours.ids, at)}
        for number, (ids, theirs, ours, _) in enumerate(pairs, 1)
        if (at := first_difference(ours.ids, theirs.ids)) is not None
    ]
    session.engine.attach()
    ratios = [ours.tok_s / theirs.tok_s for _, theirs, ours, _ in pairs]
    speed = median(rate for *_, rate in pairs)
    return {
        "threads": threads,
        "context": len(prompts[0]),
        "theirs_tok_s": median(theirs.tok_s for _, theirs, _, _ in pairs),
        "ours_tok_s": median(ours.tok_s for _, _, ours, _ in pairs),
        "ratio": median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "theirs_wall_s": median(theirs.wall for _, theirs, _, _ in pairs),
        "ours_wall_s": median(ours.wall for _, _, ours, _ in pairs),
        "bandwidth_gb_s": speed / 1e9,
        "bound_tok_s": speed / session.model.spec.weight_bytes,
        "ids_equal": not differences,
        "differences": differences,
        "pairs": [
            {"theirs_tok_s": theirs.tok_s, "ours_tok_s": ours.tok_s, "ratio": ratio}
            | {"theirs_wall_s": theirs.wall, "ours_wall_s": ours.wall, "bandwidth_gb_s": rate / 1e9}
            for (_, theirs, ours, rate), ratio in zip(pairs, ratios, strict=True)
        ],
    }


def race(loaded: LoadedModel, served: Callable[[int, int], AbstractContextManager[str]], args: Any) -> dict[str, Any]:
    """All cells; ``served`` gives the address of a server for a number of threads and a capacity."""
    capacity = max(args.contexts) + args.tokens
    if loaded.context is not None and capacity > loaded.context:
        raise UsageError(f"{loaded.spec.name} has {loaded.context} positions, {capacity} are asked for; ask for less")
    prompts = {length: prompts_of(loaded, length, args.pairs + 1) for length in args.contexts}
    cells, build = [], ""
    for threads in args.threads:
        torch.set_num_threads(threads)
        # An engine of its own: it may look at the threads that it has when it is made.
        with (
            served(threads, capacity) as url,
            Session(loaded, plan_methods(["ar"], []), capacity=capacity) as session,
        ):
            build = str(fetch(f"{url}/props").get("build_info"))
            cells += [cell(session, url, prompts[length], args.tokens, threads) for length in args.contexts]
    return {
        "model": f"{loaded.spec.name} {loaded.spec.dtype} {loaded.model.device}",
        "weight_bytes": loaded.spec.weight_bytes,
        "server": build,
        "server_args": args.server_args,
        "pairs_each": args.pairs,
        "tokens_each": args.tokens,
        "cells": cells,
    }


def show(result: dict[str, Any]) -> None:
    """Prints a line per cell, and one per pair whose ids differ."""
    more = f" with {result['server_args']}" if result["server_args"] else ""
    print(f"{result['model']} · llama.cpp {result['server']}{more}")
    print(
        f"{result['tokens_each']} tokens, medians of {result['pairs_each']} pairs: tok/s of the decode, ratio of ours "
        "to theirs, wall seconds with the prompt, GB/s read beside it and the tok/s that these bound"
    )
    print(
        f"{'threads':>7} {'context':>7} {'llama.cpp':>9} {'ours':>6} {'ratio':>6} [{'min':>5}, {'max':>5}]  {'ids':9} "
        f"{'wall':>6} {'ours':>6} {'GB/s':>6} {'bound':>6}"
    )
    for one in result["cells"]:
        ids = "equal" if one["ids_equal"] else f"{len(one['differences'])} differ"
        print(
            f"{one['threads']:7} {one['context']:7} {one['theirs_tok_s']:9.1f} {one['ours_tok_s']:6.1f} "
            f"{one['ratio']:6.3f} [{one['ratio_min']:5.3f}, {one['ratio_max']:5.3f}]  {ids:9} "
            f"{one['theirs_wall_s']:6.1f} {one['ours_wall_s']:6.1f} "
            f"{one['bandwidth_gb_s']:6.1f} {one['bound_tok_s']:6.1f}"
        )
        for found in one["differences"]:
            ours, theirs = found["logits"]
            print(
                f"{'':15} pair {found['pair']}: from token {found['at']} on, ours {found['ours']}, theirs "
                f"{found['theirs']}; transformers' logits {ours:.5f} and {theirs:.5f}"
            )


def numbers(text: str) -> list[int]:
    """Positive whole numbers with commas between them."""
    found = [int(part) for part in text.split(",")]
    if min(found) < 1:
        raise ValueError(text)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="a llama-server, or the address of one that runs; default: that on the PATH")
    parser.add_argument("--gguf", type=Path, help="keep the weights there; without --server only write them")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--contexts", type=numbers, default=[64, 1024])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--server-args", default="", help="further options of a server that is started here")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    url = args.server if args.server and args.server.startswith(("http://", "https://")) else None
    if url and (len(args.threads) > 1 or args.server_args or args.gguf):
        parser.error("a server that runs has its own threads, options and weights: one value for --threads, no more")
    if args.tokens < 2 or args.pairs < 1:
        parser.error("--tokens is 2 at least and --pairs 1")
    binary = None if url or (args.gguf and not args.server) else shutil.which(args.server or "llama-server")
    if args.server and not url and not binary:
        parser.error(f"{args.server} is no program; build llama.cpp's llama-server and give its path")
    if not (url or binary or args.gguf):
        # No failure: `make bench` runs every benchmark, and nobody has to have a llama.cpp.
        print("nothing compared: no llama-server on the PATH; build llama.cpp's and name it with --server")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or the server would outlive what started it
    try:
        loaded = load(args.model, dtype="float32", device="cpu")
        graph_of(loaded.model, loaded.spec.name)
        with tempfile.TemporaryDirectory(prefix="specbench-llama-") as scratch:
            file = args.gguf or Path(scratch) / "weights.gguf"
            if not url:
                export_gguf(loaded, file, dtype="float32", vocabulary="placeholders")
            if not (url or binary):
                return 0
            result = race(
                loaded,
                lambda threads, capacity: (
                    nullcontext(url.rstrip("/"))
                    if url
                    else serving(str(binary), file, threads, capacity, shlex.split(args.server_args))
                ),
                args,
            )
    except SpecbenchError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
