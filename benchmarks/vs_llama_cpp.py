"""Compare our AR with llama.cpp's ``llama-server``: same float32 weights and prompts, interleaved in one run, greedy.

The weights from ``specbench.models.load`` are written unrounded into a GGUF file and served. Prompts are token ids of
HumanEval's text, cut to exactly the requested length, and the vocabulary of that file has no stop token, so that both
decode the same number of tokens. The arm that goes first alternates from pair to pair.

The KV cache is float32 on both sides, and llama.cpp's flash attention is off: with it, build 0c1e57098 rounds the whole
cache to float16 in every step, which takes longer and gives other ids. All other settings are the server's defaults;
``--server-args "--flash-attn auto --cache-type-k f16 --cache-type-v f16"`` restores the defaults of these two as well.

Both decode times go from the first token to the last. Ours is the record's ``decode_s``. In the server's ``timings``,
``predicted_ms`` begins when the first token has been sampled from the prompt's logits and ends with the last token, but
``predicted_n`` counts the first token as well: there are ``predicted_n - 1`` steps. The wall times cover the whole
call, prompt included, ours in this process and theirs over HTTP.

With ``--pack Q8_0`` both arms run one file of packed matrices, ours with ``--dtype packed``. llama.cpp then rounds the
rows to 8 bits as well, and ours do not, so ids differ more often.

A decode step reads every weight once, so bandwidth / weight bytes bounds both arms. If ids differ, the position and
transformers' logits of both tokens show whether it is a tie of floating-point sums or an error.

    python benchmarks/vs_llama_cpp.py --server PATH|URL [--model smollm2-135m] [--threads 1,2] [--contexts 64,1024]
        [--pairs 5] [--tokens 128] [--server-args "--load-mode none"] [--json]
        [--pack Q8_0]
    python benchmarks/vs_llama_cpp.py --gguf FILE  # only write the weights for a server that you start yourself
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

import gguf
import torch

from specbench.common import EnvironmentRefused, SpecbenchError, UsageError, registry
from specbench.common.reading import json_object, parse_json
from specbench.hardware import environment
from specbench.hardware.bandwidth import BandwidthProbe
from specbench.models import LoadedModel, load
from specbench.models.export.gguf_file import Vocabulary, export_gguf
from specbench.models.export.graph import graph_of
from specbench.planning.methods import plan_methods
from specbench.runner import Request as Asked
from specbench.runner import Session, StopRule

PROBE_BYTES = 512 << 20
REST_S = 0.3  # before each arm, so that spinning threads of the other arm have stopped

# Options that only some versions of the server have, with their values; the first one that ``--help`` lists is used.
WHERE_KNOWN: tuple[tuple[tuple[str, ...], list[str]], ...] = (
    (("--no-webui", "--no-ui"), []),
    (("--device",), ["none"]),
    (("--cache-ram",), ["0"]),  # otherwise it saves the last prompt's cache while the next request waits
)


@dataclass(frozen=True)
class Timed:
    """One answer: its ids, the seconds of the steps after the first token, and the seconds of the whole call."""

    ids: list[int]
    seconds: float
    wall: float

    @property
    def tok_s(self) -> float:
        return (len(self.ids) - 1) / self.seconds


def bandwidth(threads: int) -> float:
    """Measure the bytes per second that this number of threads reads from memory."""
    with BandwidthProbe(PROBE_BYTES) as probe:
        return probe.read(threads)


# ---------------------------------------------------------------------------------------------------------- the server


def options(help_text: str, file: Path, threads: int, capacity: int, port: int) -> list[str]:
    """Return the command-line options for a server.

    Args:
        help_text: output of its ``--help``.
        file: file with the weights.
        threads: threads for prompt and decoding.
        capacity: tokens of prompt and answer.
        port: port on this machine.

    Raises:
        UsageError: the server lacks a required option.
    """

    def knows(option: str) -> bool:
        return re.search(rf"(?<![\w-]){option}(?![\w-])", help_text) is not None

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
            raise UsageError(
                f"cannot use the server: its --help does not list {option}; use a newer llama-server with --server"
            )
    found = list(chain.from_iterable(fixed.items()))
    if re.search(r"--flash-attn\s+\[on\|off", help_text):  # in older versions it is a flag and off by default
        found += ["--flash-attn", "off"]
    for names, value in WHERE_KNOWN:
        known = next(filter(knows, names), None)
        found += [known, *value] if known else []
    return found


@contextmanager
def serving(binary: str, file: Path, threads: int, capacity: int, more: Sequence[str]) -> Iterator[str]:
    """Start a server, wait until it takes requests, yield its address, and stop it at the end.

    Raises:
        EnvironmentRefused: the server cannot be started or ends early; the message has its last output.
    """
    with socket.socket() as free, tempfile.TemporaryFile("w+", errors="replace") as log:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        try:
            shown = subprocess.run([binary, "--help"], capture_output=True, text=True, errors="replace", timeout=60)
            given = options(shown.stdout + shown.stderr, file, threads, capacity, port)
            process = subprocess.Popen(
                [binary, *given, *more], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EnvironmentRefused(f"cannot start {binary}: {error}; build llama-server for this machine") from error
        url = f"http://127.0.0.1:{port}"
        try:
            until = time.monotonic() + 300
            while not answers(url):
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    last = " ".join(log.read().split("\n")[-2:]).strip()
                    raise EnvironmentRefused(
                        f"cannot use {binary}: it does not serve ({last}); start it by hand with the file of --gguf"
                    )
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
    """Send a request to a server and return its reply.

    Raises:
        EnvironmentRefused: the server does not answer, or answers with an error status.
        UsageError: the reply is not a JSON object.
    """
    todo = "name a llama-server with --server"
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data=data, headers={"Content-Type": "application/json"})
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=3600) as reply:
            content = reply.read()
    except HTTPError as error:
        reason = error.read(400).decode(errors="replace")
        raise EnvironmentRefused(f"{url} answers {error.code} ({' '.join(reason.split())}); {todo}") from error
    except (URLError, OSError) as error:
        raise EnvironmentRefused(f"{url} does not answer ({error}); {todo}") from error
    return json_object(parse_json(content, url, todo), url, todo)


def answers(url: str) -> bool:
    """Whether a server has loaded its weights."""
    try:
        return fetch(f"{url}/health").get("status") == "ok"
    except SpecbenchError:
        return False


def by_server(url: str, ids: Sequence[int], tokens: int) -> Timed:
    """Decode one request with llama.cpp, timed by the server's clock and from outside.

    Raises:
        EnvironmentRefused: the server refuses.
        UsageError: the answer is not the requested one, see :func:`parsed`.
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
    """Return ids and decode seconds of an answer.

    Args:
        reply: reply of the server.
        prompt: number of prompt tokens that the server had to read.
        tokens: number of tokens that the server had to generate.

    Raises:
        UsageError: the server read or generated other numbers of tokens, or does not report them.
    """
    ids, timings = reply.get("tokens"), reply.get("timings")
    if not isinstance(ids, list) or any(type(one) is not int for one in ids) or not isinstance(timings, dict):
        raise UsageError(
            "cannot use the server: it returns no token ids with timings; use a newer llama-server with --server"
        )
    read, wrote, ms = (timings.get(key) for key in ("prompt_n", "predicted_n", "predicted_ms"))
    if (read, wrote, len(ids)) != (prompt, tokens, tokens):
        raise UsageError(
            f"the server read {read} of {prompt} tokens and generated {wrote} of {tokens} ({len(ids)} ids); "
            "serve the file of --gguf, with a context that holds prompt and answer"
        )
    if not isinstance(ms, (int, float)) or not ms > 0:
        raise UsageError(f"the server reports {ms!r} ms for {tokens} tokens; use a newer llama-server with --server")
    return ids, ms / 1e3


def pack(source: Path, file: Path, kind: str) -> None:
    """Copy a GGUF file of float32 weights, with all matrices rounded to a packed format."""
    reader, wanted = gguf.GGUFReader(source), gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(file, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            main, *of = field.types
            writer.add_key_value(name, field.contents(), main, of[-1] if of else None)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    for tensor in reader.tensors:
        packed = tensor.data.ndim == 2
        data = gguf.quantize(tensor.data, wanted) if packed else tensor.data
        writer.add_tensor(tensor.name, data, raw_dtype=wanted if packed else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ------------------------------------------------------------------------------------------------------------
# comparison


def by_session(session: Session, ids: Sequence[int], tokens: int) -> Timed:
    """Decode one request with AR on our engine, timed as in a run."""
    start = time.perf_counter()
    (record,) = session.decode(session.methods[0], [Asked("prompt", 0, ids, StopRule(frozenset(), (), tokens, str))])
    return Timed(record.output_ids, record.decode_s, time.perf_counter() - start)


def prompts_of(loaded: LoadedModel, length: int, count: int) -> list[list[int]]:
    """Join HumanEval's prompts and cut the text to a length; each result begins with another prompt.

    Raises:
        UsageError: the text is shorter than requested.
    """
    module = registry.task("humaneval").load()
    texts = module.Task(module.Options()).prompts(loaded.has_chat_template)
    encoded = [loaded.encode(text) for text in texts]
    if length > sum(map(len, encoded)) or count > len(encoded):
        raise UsageError(
            f"HumanEval has {sum(map(len, encoded))} tokens in {len(encoded)} prompts; lower --contexts or --pairs"
        )
    return [list(chain(*encoded[first:], *encoded[:first]))[:length] for first in range(count)]


def interleave(arms: Sequence[Callable[[], Timed]], number: int) -> list[Timed]:
    """Run both arms; which one goes first depends on the pair's number."""
    timed: dict[int, Timed] = {}
    for arm in (0, 1) if number % 2 else (1, 0):
        time.sleep(REST_S)
        timed[arm] = arms[arm]()
    return [timed[0], timed[1]]


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Return the first position at which two answers of the same length differ."""
    return next((place for place, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other), None)


def logits_there(model: Any, prompt: Sequence[int], theirs: Sequence[int], ours: Sequence[int], at: int) -> list[float]:
    """Return transformers' logits of both tokens at a position, ours first. The model must have its own attention."""
    with torch.inference_mode():
        row = model(torch.tensor([[*prompt, *ours[:at]]])).logits[0, -1]
    return [float(row[ours[at]]), float(row[theirs[at]])]


def cell(session: Session, url: str, prompts: Sequence[Sequence[int]], tokens: int, threads: int) -> dict[str, Any]:
    """Measure all pairs at one number of threads and one context; the first prompt is an untimed warm-up."""
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
    """Measure all cells; ``served`` yields the address of a server for a number of threads and a capacity."""
    capacity = max(args.contexts) + args.tokens
    if loaded.context is not None and capacity > loaded.context:
        raise UsageError(
            f"{loaded.spec.name} has {loaded.context} positions, {capacity} are needed; lower --contexts or --tokens"
        )
    prompts = {length: prompts_of(loaded, length, args.pairs + 1) for length in args.contexts}
    cells, build = [], ""
    for threads in args.threads:
        torch.set_num_threads(threads)
        # A new engine, because an engine may read the number of threads when it is made.
        with (
            served(threads, capacity) as url,
            Session(loaded, plan_methods(["ar"], []), capacity=capacity) as session,
        ):
            build = str(fetch(f"{url}/props").get("build_info"))
            cells += [cell(session, url, prompts[length], args.tokens, threads) for length in args.contexts]
    return {
        "model": f"{loaded.spec.name} {loaded.spec.dtype} {loaded.model.device}",
        "cpu": this_cpu(),
        "weight_bytes": loaded.spec.weight_bytes,
        "server": build,
        "server_args": args.server_args,
        "pairs_each": args.pairs,
        "tokens_each": args.tokens,
        "cells": cells,
    }


def this_cpu() -> dict[str, Any]:
    """Name, generation and vector instructions of this machine's CPU."""
    cpu = environment.capture("cpu").cpu
    return {"model": cpu.model, "cpuid": cpu.cpuid, "instructions": torch.backends.cpu.get_cpu_capability()}


def show(result: dict[str, Any]) -> None:
    """Print a line per cell, and a line per pair whose ids differ."""
    more = f" with {result['server_args']}" if result["server_args"] else ""
    print(f"{result['model']} · {result['cpu']['model']} · llama.cpp {result['server']}{more}")
    print(
        f"{result['tokens_each']} tokens, medians of {result['pairs_each']} pairs: decode tok/s, ratio of ours "
        "to theirs, wall seconds with the prompt, GB/s of memory and the upper bound of tok/s"
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
    """Parse comma-separated positive integers."""
    found = [int(part) for part in text.split(",")]
    if min(found) < 1:
        raise ValueError(text)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--server", help="a llama-server program, or the address of a running one; default: llama-server on the PATH"
    )
    parser.add_argument("--gguf", type=Path, help="file for the weights; without --server only write them")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--contexts", type=numbers, default=[64, 1024])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--server-args", default="", help="further options for a server that is started here")
    parser.add_argument("--pack", choices=("Q8_0", "Q4_0", "Q4_1"), help="run both arms on packed matrices")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    url = args.server if args.server and args.server.startswith(("http://", "https://")) else None
    if url and (len(args.threads) > 1 or args.server_args or args.gguf or args.pack):
        parser.error(
            "a running server has its own threads, options and weights: give --threads one value, without "
            "--server-args, --gguf and --pack"
        )
    if args.tokens < 2 or args.pairs < 1:
        parser.error("--tokens has to be at least 2 and --pairs at least 1")
    binary = None if url or (args.gguf and not args.server) else shutil.which(args.server or "llama-server")
    if args.server and not url and not binary:
        parser.error(f"{args.server} is not a program; build llama.cpp's llama-server and give its path")
    if not (url or binary or args.gguf):
        # Not a failure: `make bench` runs every benchmark, and llama.cpp is optional.
        print("nothing compared: no llama-server on the PATH; build it and name it with --server")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # otherwise the server would outlive this process
    try:
        loaded = load(args.model, dtype="float32", device="cpu")
        graph_of(loaded.model, loaded.spec.name)
        with tempfile.TemporaryDirectory(prefix="specbench-llama-") as scratch:
            file = args.gguf or Path(scratch) / "weights.gguf"
            if not url:
                vocabulary: Vocabulary = "tokenizer" if args.pack else "placeholders"
                export_gguf(loaded, file, dtype="float32", vocabulary=vocabulary)
            if args.pack:
                plain, file = file, file.with_suffix(f".{args.pack}.gguf")
                pack(plain, file, args.pack)
                loaded = load(str(file), dtype="packed", device="cpu")
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
