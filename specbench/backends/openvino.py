"""Run OpenVINO GenAI on the CPU: a worker process in an environment of its own, with weights converted there.

A step of its pipeline is one target forward, and may contain a draft's forwards. It counts no drafts of requests that
are stepped from outside, so only tokens per forward are known.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from specbench.backends.protocol import PLAIN, EngineOptions, Mode
from specbench.backends.weights import drafter
from specbench.backends.workers.program import Program
from specbench.backends.workers.worker_requests import PIPE, WorkerBackend
from specbench.common import EngineFault, SpecbenchError, keys, one_line, option, parse_json
from specbench.results import EngineFacts, ServedWeights

if TYPE_CHECKING:
    from specbench.models import Exported, LoadedModel

_EXPORT = Path(__file__).parent / "workers" / "openvino_export.py"
_HINTS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
_WEIGHTS = "openvino_model.bin"
_CONVERTING_S = 3600.0


class Plain(EngineOptions):
    """Options of every mode."""

    python: str = option("", help="interpreter of OpenVINO's environment; default is the one of make engines")
    kv_cache_gib: int = option(1, help="memory of the KV cache in GiB", ge=1, le=4096)


class Lookup(Plain):
    """Options of prompt lookup; defaults are OpenVINO's."""

    num_assistant_tokens: int = option(5, "k", help="most tokens per draft", ge=1, le=256)
    max_ngram_size: int = option(3, help="longest n-gram to look up", ge=1, le=64)


class Draft(Plain):
    """Options of a draft model; defaults are OpenVINO's."""

    model: str = option("", help="draft model, a value of --model; must have the target's vocabulary")
    num_assistant_tokens: int = option(5, "k", help="tokens per draft", ge=1, le=256)


_RUN = "run: openvino-genai 2026.4.1"


class Backend(WorkerBackend):
    """OpenVINO GenAI's pipeline with continuous batching, without its prefix cache."""

    title = "OpenVINO GenAI"
    modes: ClassVar = {
        PLAIN: Mode("plain", Plain, measures=PIPE, tried=_RUN),
        "pld": Mode("prompt lookup", Lookup, measures=PIPE, tried=_RUN),
        "draft": Mode("a draft model", Draft, measures=PIPE, tried=_RUN),
    }

    @classmethod
    def version(cls, options: Any) -> str:
        return Program("openvino", options.python, "openvino:ar").version

    def start(self) -> EngineFacts:
        program = Program("openvino", self.options.python, self.served.label)
        folder, weights = converted(self.served.model, self.served.dtype, program)
        engine = self._engine()
        outside = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(self.served.threads)}
        begun = time.perf_counter()
        draft = self._draft(program)
        self._launch(
            program.python,
            "openvino_worker.py",
            outside,
            ("OPENVINO_", "OV_"),
            {**engine, "model": str(folder), "draft": draft},
        )
        return EngineFacts(
            engine="openvino",
            version=program.version,
            how="worker",
            command=[f"{name}={json.dumps(value)}" for name, value in engine.items()],
            dtype=self.served.dtype,
            weights=weights,
            counts="forwards",
            start_s=time.perf_counter() - begun,
        )

    def _engine(self) -> dict[str, Any]:
        """Return the worker's settings without folders."""
        hint, served = _HINTS[self.served.dtype], self.served
        own = self.options.model_dump(include={"num_assistant_tokens", "max_ngram_size"})
        return {
            "scheduler": {
                "cache_size": self.options.kv_cache_gib,
                "max_num_seqs": served.together,
                "max_num_batched_tokens": max(256, served.capacity),  # a whole prompt in one forward
                "enable_prefix_caching": False,
            },
            "properties": {
                "INFERENCE_PRECISION_HINT": hint,
                "KV_CACHE_PRECISION": hint,  # 8 bits unless set
                "INFERENCE_NUM_THREADS": served.threads,
                "NUM_STREAMS": 1,
                "ENABLE_CPU_PINNING": False,
            },
            "lookup": self.mode == "pld",
            "speculation": own,
        }

    def _draft(self, program: Program) -> str:
        if not isinstance(self.options, Draft):
            return ""
        if not self.options.model:
            raise EngineFault(f"it needs a draft model; give --set {self.served.label}.model=NAME")
        return str(converted(drafter(self.options.model, self.served), self.served.dtype, program)[0])


def converted(model: LoadedModel, dtype: str, program: Program) -> tuple[Path, ServedWeights]:
    """Return the folder with a model's weights for OpenVINO, converted in its environment unless the cache has it."""
    from specbench.models import exported, kept

    try:
        source = exported(model, "hf", dtype)
        name = f"openvino-{program.version}-{source.path.parent.name}"
        folder, files = kept(name, lambda draft: _convert(program, source.path, draft / "model"))
    except SpecbenchError as error:
        raise EngineFault(f"its weights cannot be exported: {error}") from error
    verified = _verified(folder / "model")
    return folder / "model", ServedWeights(
        format="openvino",
        sha256=files[f"model/{_WEIGHTS}"].sha256,
        fingerprint=source.fingerprint if verified else None,
        verified=verified,
    )


def export_openvino(model: LoadedModel, folder: Path, *, dtype: str) -> tuple[Exported, bool]:
    """Write a model's weights into a folder for OpenVINO; return also whether they were found to be the model's."""
    from specbench.models import Exported, drafted

    made, weights = converted(model, dtype, Program("openvino", "", "openvino:ar"))
    with drafted(folder) as draft:
        shutil.copytree(made, draft)
    size = (folder / _WEIGHTS).stat().st_size
    exported = Exported(folder, "openvino", dtype, weights.sha256 or "", size, weights.fingerprint or "")
    return exported, weights.verified


def _convert(program: Program, checkpoint: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    command = [program.python, "-I", str(_EXPORT), str(checkpoint), str(folder)]
    environment = {**keys.environment(), "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            errors="replace",
            env=environment,
            timeout=_CONVERTING_S,
        )
    except subprocess.TimeoutExpired:
        raise EngineFault(f"its weights were not converted within {_CONVERTING_S:g} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        raise EngineFault(f"its weights cannot be converted: {one_line(lines[-1], 240)}")


def _verified(folder: Path) -> bool:
    """Return whether the conversion found every tensor of the checkpoint among the constants of its model."""
    return parse_json((folder / "conversion.json").read_bytes(), "conversion.json", "").get("verified") is True
