"""The race against llama.cpp, as far as it can be looked at without one: weights, the server's replies, sums."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.engines import replies, send, serving
from support.wording import wording

from benchmarks import vs_llama_cpp
from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.models.loader import load

REPLY: dict[str, Any] = {"tokens": [5, 6, 7], "timings": {"prompt_n": 2, "predicted_n": 3, "predicted_ms": 40.0}}


def test_a_reply_is_read() -> None:
    with serving() as server:
        server.answer = replies(200, json.dumps(REPLY).encode())
        timed = vs_llama_cpp.by_server(server.url, [1, 2], 3)
    assert timed.ids == [5, 6, 7]
    assert timed.seconds == 0.04
    assert timed.tok_s == 2 / 0.04  # the first token is not the decode's
    assert timed.wall > 0
    (asked,) = server.asked
    assert server.paths[0].endswith("/completion")
    assert asked["prompt"] == [1, 2]
    assert asked["n_predict"] == 3
    assert (asked["temperature"], asked["top_k"]) == (0, 1)
    assert (asked["ignore_eos"], asked["cache_prompt"], asked["return_tokens"]) == (True, False, True)


def test_an_invalid_reply_is_refused() -> None:
    timings = REPLY["timings"]
    wrong: list[Any] = [
        {}, [REPLY], {"tokens": [5, 6, 7]}, {**REPLY, "tokens": "5 6 7"}, {**REPLY, "tokens": [5, 6, None]},
        {**REPLY, "tokens": []}, *({**REPLY, "timings": {**timings, **other}} for other in (
            {"prompt_n": 1}, {"predicted_n": 2}, {"predicted_ms": 0}, {"predicted_ms": None})),
    ]  # fmt: skip
    with serving() as server:
        for reply in wrong:
            server.answer = replies(200, json.dumps(reply).encode())
            with pytest.raises(UsageError):
                vs_llama_cpp.by_server(server.url, [1, 2], 3)
        server.answer = replies(400, b'{"error": {"message": "the request exceeds\\nthe context"}}')
        with pytest.raises(EnvironmentRefused, match="400"):
            vs_llama_cpp.by_server(server.url, [1, 2], 3)
    with pytest.raises(EnvironmentRefused):
        vs_llama_cpp.by_server(server.url, [1, 2], 3)


OLD = "--model --host --port --threads --threads-batch --ctx-size --parallel --cache-type-k --cache-type-v"


def test_a_server_is_given_options_that_it_knows() -> None:
    def given(help_text: str) -> list[str]:
        return vs_llama_cpp.options(help_text, Path("weights.gguf"), 2, 192, 8123)

    found = dict(zip(given(OLD)[::2], given(OLD)[1::2], strict=True))
    assert (found["--threads"], found["--threads-batch"], found["--ctx-size"]) == ("2", "2", "192")
    assert (found["--cache-type-k"], found["--cache-type-v"], found["--parallel"]) == ("f32", "f32", "1")
    assert given(f"{OLD} --no-webui")[18:] == ["--no-webui"]
    assert given(f"{OLD}, --no-ui, --cache-ram N")[18:] == ["--no-ui", "--cache-ram", "0"]
    assert given(f"{OLD} -fa, --flash-attn [on|off|auto]")[18:] == ["--flash-attn", "off"]
    assert given(f"{OLD} -fa, --flash-attn  enable flash attention")[18:] == []
    assert given(f"{OLD} --device-draft")[18:] == []  # another option that begins alike
    with pytest.raises(UsageError, check=wording):
        given(OLD.replace("--threads ", ""))


# A program with a server's options; it takes requests once it has been asked twice whether it does.
FAKE = """#!{python}
import sys
given = sys.argv[1:]
if given == ["--help"]:
    print({known!r})
    sys.exit()
if given[-1] == "--broken":
    print("loading", file=sys.stderr)
    sys.exit("no such tensor")
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Handler.asked += 1
        self.send_response(503 if Handler.asked < 2 else 200)
        self.end_headers()
        self.wfile.write(b'{{"status": "ok"}}')
    def log_message(self, *given):
        pass
HTTPServer(("127.0.0.1", int(given[given.index("--port") + 1])), Handler).serve_forever()
"""


def test_a_server_is_started_and_stopped(tmp_path: Path) -> None:
    binary, weights = tmp_path / "llama-server", tmp_path / "weights.gguf"
    binary.write_text(FAKE.format(python=sys.executable, known=OLD))
    binary.chmod(0o755)
    with vs_llama_cpp.serving(str(binary), weights, 1, 64, []) as url:
        assert vs_llama_cpp.answers(url)
    assert not vs_llama_cpp.answers(url)
    with (
        pytest.raises(EnvironmentRefused, check=wording),
        vs_llama_cpp.serving(str(binary), weights, 1, 64, ["--broken"]),
    ):
        pass
    with (
        pytest.raises(EnvironmentRefused, check=wording),
        vs_llama_cpp.serving(str(tmp_path / "none"), weights, 1, 64, []),
    ):
        pass


def test_who_goes_first_alternates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vs_llama_cpp, "REST_S", 0)
    order: list[str] = []
    timed = {name: vs_llama_cpp.Timed([], 1.0, 1.0) for name in ("theirs", "ours")}

    def arm(name: str) -> vs_llama_cpp.Timed:
        order.append(name)
        return timed[name]

    arms = [partial(arm, name) for name in timed]
    for number in range(3):
        assert vs_llama_cpp.interleave(arms, number) == list(timed.values())
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]


def test_prompts_have_exactly_the_length_and_begin_elsewhere(task_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECBENCH_DATA", str(task_data))
    loaded = load("config:tiny")
    prompts = vs_llama_cpp.prompts_of(loaded, 64, 3)
    assert [len(ids) for ids in prompts] == [64] * 3
    assert len({tuple(ids[:48]) for ids in prompts}) == 3
    with pytest.raises(UsageError, check=wording):
        vs_llama_cpp.prompts_of(loaded, 10**6, 1)


class Rival:
    """Answers as a server of the same weights does, with a token exchanged in its last answer."""

    def __init__(self, model: Any) -> None:
        self.answers = 0
        self._model = model

    @torch.inference_mode()
    def __call__(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        ids, prompt = list(body["prompt"]), len(body["prompt"])
        for _ in range(body["n_predict"]):
            ids.append(int(self._model(torch.tensor([ids])).logits[0, -1].argmax()))
        self.answers += 1
        if self.answers == 3:
            ids[prompt + 2] += 1
        timings = {"prompt_n": prompt, "predicted_n": body["n_predict"], "predicted_ms": 1e3 * self.answers}
        send(handler, 200, json.dumps({"tokens": ids[prompt:], "timings": timings}).encode())


def test_a_race_says_who_is_faster_and_where_ids_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load("config:tiny", device="cpu")
    monkeypatch.setattr(vs_llama_cpp, "REST_S", 0)
    monkeypatch.setattr(vs_llama_cpp, "bandwidth", lambda threads: 1e9 * threads)
    prompts = {4: [[7] * 4, [8] * 4, [9] * 4]}
    monkeypatch.setattr(vs_llama_cpp, "prompts_of", lambda loaded, length, count: prompts[length][:count])
    args = SimpleNamespace(threads=[torch.get_num_threads()], contexts=[4], pairs=2, tokens=5, server_args="")
    with serving() as server:
        server.answer = Rival(load("config:tiny", device="cpu").model)
        result = vs_llama_cpp.race(loaded, lambda threads, capacity: nullcontext(server.url), args)
    (cell,) = result["cells"]
    assert [pair["theirs_tok_s"] for pair in cell["pairs"]] == [4 / 2, 4 / 3]  # the first answer was to warm up
    assert cell["theirs_tok_s"] == pytest.approx((4 / 2 + 4 / 3) / 2)
    assert cell["ratio_min"] <= cell["ratio"] <= cell["ratio_max"]
    for pair in cell["pairs"]:
        assert pair["ratio"] == pair["ours_tok_s"] / pair["theirs_tok_s"]
    assert cell["bound_tok_s"] == 1e9 * args.threads[0] / loaded.spec.weight_bytes
    (found,) = cell["differences"]
    assert not cell["ids_equal"]
    assert (found["pair"], found["at"], found["theirs"]) == (2, 2, found["ours"] + 1)
    assert found["logits"][0] > found["logits"][1]
    args.tokens = 10**6
    with pytest.raises(UsageError, check=wording):
        vs_llama_cpp.race(loaded, lambda threads, capacity: nullcontext(server.url), args)
