"""Compare our AR with llama.cpp's ``llama-server``: same float32 weights and prompts, interleaved in one run, greedy.

The server is that of the row ``llama.cpp:ar``: the model's weights are written unrounded into a GGUF file and served.
Prompts are token ids of HumanEval's text, cut to exactly the requested length, and the vocabulary of that file has no
stop token, so that both decode the same number of tokens. The arm that goes first alternates from pair to pair.

The KV cache is float32 on both sides, and llama.cpp's flash attention is off: with it, build 0c1e57098 rounds the whole
cache to float16 in every step, which takes longer and gives other ids. All other settings are the server's defaults;
``--set flash_attn=auto --set cache_type=f16`` restores the defaults of these two as well.

Both decode times go from the first token to the last. Ours is the record's ``decode_s``. In the server's ``timings``,
``predicted_ms`` begins when the first token has been sampled from the prompt's logits and ends with the last token. The
wall times cover the whole call, prompt included, ours in this process and theirs over HTTP.

With ``--pack Q8_0`` both arms run one file of packed matrices, ours with ``--dtype packed``. llama.cpp then rounds the
rows to 8 bits as well, and ours do not, so ids differ more often.

A decode step reads every weight once, so bandwidth / weight bytes bounds both arms. If ids differ, the position and
transformers' logits of both tokens show whether it is a tie of floating-point sums or an error.

    python benchmarks/vs_llama_cpp.py [--server PATH|URL] [--model smollm2-135m] [--threads 1,2] [--contexts 64,1024]
        [--pairs 5] [--tokens 128] [--set server_args=--no-mmap] [--json] [--pack Q8_0]

A server that you start yourself needs the file of ``specbench export-model``.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import gguf
import torch

from specbench.backends.llama import llama_cpp
from specbench.backends.llama.llama_options import ServerOptions
from specbench.backends.llama.llama_program import Program
from specbench.backends.protocol import PLAIN, Backend, Question, Served
from specbench.common import EngineFault, SpecbenchError, UsageError, registry
from specbench.common.options import parse_options
from specbench.hardware import environment
from specbench.hardware.bandwidth import BandwidthProbe
from specbench.models import LoadedModel, load
from specbench.models.export.gguf_file import Vocabulary, export_gguf
from specbench.models.export.graph import graph_of
from specbench.planning.methods import plan_methods
from specbench.results import ServedWeights
from specbench.runner import Request as Asked
from specbench.runner import Session, StopRule

PROBE_BYTES = 512 << 20
REST_S = 0.3  # before each arm, so that spinning threads of the other arm have stopped


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


@contextmanager
def serving(
    loaded: LoadedModel, file: Path | None, given: dict[str, str], url: str | None, threads: int, capacity: int
) -> Iterator[tuple[Backend, str]]:
    """Start a server on a model's weights, or on a file of packed ones, or connect to one; yield it and its version."""
    options = parse_options(ServerOptions, given, "llama.cpp:ar", "--set")
    engine = llama_cpp.Backend(PLAIN, options, Served("llama.cpp:ar", loaded, "float32", threads, capacity, url))
    if file:
        engine.weights_of = lambda *_: (file, ServedWeights(format="gguf", verified=False))
    try:
        facts = engine.start()
        yield engine, facts.version
    finally:
        engine.close()


def by_server(engine: Backend, ids: Sequence[int], tokens: int) -> Timed:
    """Decode one request with llama.cpp, timed by the server's clock and from outside."""
    start = time.perf_counter()
    question = Question(ids, tokens, stop_ids=frozenset())
    found = [token for arrival in engine.ask(question) for token in arrival.ids]
    wall = time.perf_counter() - start
    ms = engine.counters().own.get("predicted_ms", 0.0)
    if len(found) != tokens or not ms > 0:
        raise UsageError(f"the server generated {len(found)} of {tokens} tokens in {ms} ms; use a newer llama-server")
    return Timed(found, ms / 1e3, wall)


def packed(loaded: LoadedModel, folder: Path, vocabulary: Vocabulary, kind: str) -> Path:
    """Write a GGUF file of a model, with all matrices rounded to a packed format."""
    source, file = folder / f"{vocabulary}.gguf", folder / f"{vocabulary}.{kind}.gguf"
    export_gguf(loaded, source, dtype="float32", vocabulary=vocabulary)
    reader, wanted = gguf.GGUFReader(source), gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(file, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            main, *of = field.types
            writer.add_key_value(name, field.contents(), main, of[-1] if of else None)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    for tensor in reader.tensors:
        matrix = tensor.data.ndim == 2
        data = gguf.quantize(tensor.data, wanted) if matrix else tensor.data
        writer.add_tensor(tensor.name, data, raw_dtype=wanted if matrix else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


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


def cell(
    session: Session, engine: Backend, prompts: Sequence[Sequence[int]], tokens: int, threads: int
) -> dict[str, Any]:
    """Measure all pairs at one number of threads and one context; the first prompt is an untimed warm-up."""
    pairs: list[tuple[Sequence[int], Timed, Timed, float]] = []
    for number, ids in enumerate(prompts):
        arms = [partial(by_server, engine, ids, tokens), partial(by_session, session, ids, tokens)]
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


def race(
    loaded: LoadedModel, served: Callable[[int, int], AbstractContextManager[tuple[Backend, str]]], args: Any
) -> dict[str, Any]:
    """Measure all cells; ``served`` yields a server and its version for a number of threads and a capacity."""
    capacity = max(args.contexts) + args.tokens
    if loaded.context is not None and capacity > loaded.context:
        raise UsageError(
            f"{loaded.spec.name} has {loaded.context} positions, {capacity} are needed; lower --contexts or --tokens"
        )
    prompts = {length: prompts_of(loaded, length, args.pairs + 1) for length in args.contexts}
    cells: list[dict[str, Any]] = []
    build = ""
    for threads in args.threads:
        torch.set_num_threads(threads)
        # A new engine, because an engine may read the number of threads when it is made.
        with (
            served(threads, capacity) as (engine, version),
            Session(loaded, plan_methods(["ar"], []), capacity=capacity) as session,
        ):
            build = version
            cells += [cell(session, engine, prompts[length], args.tokens, threads) for length in args.contexts]
    return {
        "model": f"{loaded.spec.name} {loaded.spec.dtype} {loaded.model.device}",
        "cpu": this_cpu(),
        "weight_bytes": loaded.spec.weight_bytes,
        "server": build,
        "settings": args.settings,
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
    more = f" with {', '.join(result['settings'])}" if result["settings"] else ""
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
    parser.add_argument("--server", default="", help="a llama-server program, or the address of a running one")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--contexts", type=numbers, default=[64, 1024])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument(
        "--set", action="append", default=[], dest="settings", help="OPTION=VALUE of the row llama.cpp:ar"
    )
    parser.add_argument("--pack", choices=("Q8_0", "Q4_0", "Q4_1"), help="run both arms on packed matrices")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    url = args.server if args.server.startswith(("http://", "https://")) else None
    if url and (len(args.threads) > 1 or args.pack):
        parser.error("a running server has its own threads and weights: give --threads one value, without --pack")
    if args.tokens < 2 or args.pairs < 1:
        parser.error("--tokens has to be at least 2 and --pairs at least 1")
    given = dict(each.partition("=")[::2] for each in args.settings)
    if not url:
        given["server"] = args.server
        try:
            Program(args.server)
        except EngineFault as fault:
            # Not a failure: `make bench` runs every benchmark, and llama.cpp is optional.
            print(f"nothing compared: {fault}")
            return int(bool(args.server))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # otherwise the server would outlive this process
    try:
        loaded = load(args.model, dtype="float32", device="cpu")
        graph_of(loaded.model, loaded.spec.name)
        with tempfile.TemporaryDirectory(prefix="specbench-llama-") as scratch:
            theirs = None
            if args.pack:
                theirs, ours = (
                    packed(loaded, Path(scratch), kind, args.pack) for kind in ("placeholders", "tokenizer")
                )
                loaded = load(str(ours), dtype="packed", device="cpu")
            result = race(loaded, partial(serving, loaded, theirs, given, url), args)
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
