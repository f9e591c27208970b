"""OpenVINO GenAI in a worker process; ``worker.py`` loads this file in OpenVINO's environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Engine:
    """A pipeline with continuous batching on the CPU, stepped from outside."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        import openvino
        import openvino_genai as genai

        properties = dict(settings["properties"])
        able = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        wanted = {"f32": "FP32", "bf16": "BF16", "f16": "FP16"}[properties["INFERENCE_PRECISION_HINT"]]
        if wanted not in able:
            raise ValueError(f"OpenVINO does not compute in {wanted} on this CPU; use dtype=float32")
        scheduler = genai.SchedulerConfig()
        for name, value in settings["scheduler"].items():
            setattr(scheduler, name, value)
        if settings["lookup"]:
            properties["prompt_lookup"] = True
        if settings["draft"]:
            properties["draft_model"] = genai.draft_model(settings["draft"], "CPU", **properties)
        self._genai, self._openvino, self._speculation = genai, openvino, settings["speculation"]
        self._pipeline = genai.ContinuousBatchingPipeline(settings["model"], scheduler, "CPU", properties)
        self._handles: dict[int, Any] = {}

    def versions(self) -> Mapping[str, Any]:
        """Return versions."""
        return {"ready": self._genai.get_version(), "openvino": self._openvino.get_version()}

    def counters(self) -> Mapping[str, int]:
        """Return nothing: it has no counters of requests that are stepped from outside."""
        return {}

    def add(self, number: int, ask: Mapping[str, Any]) -> None:
        """Add a request."""
        import numpy

        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.apply_chat_template = ask["budget"], False
        if ask["stop_ids"]:  # an end token that is set replaces the model's own
            config.eos_token_id, config.stop_token_ids = ask["stop_ids"][0], set(ask["stop_ids"])
        else:
            config.ignore_eos = True
        if ask["temperature"] > 0:
            config.do_sample, config.temperature, config.top_p = True, ask["temperature"], ask["top_p"]
            config.rng_seed = ask["seed"]
            if ask["top_k"]:
                config.top_k = ask["top_k"]
        for name, value in self._speculation.items():
            setattr(config, name, value)
        ids = self._openvino.Tensor(numpy.array([ask["ids"]], dtype=numpy.int64))
        self._handles[number] = self._pipeline.add_request(number, ids, config)

    def step(self) -> list[tuple[int, list[int], None, bool, Mapping[str, int]]]:
        """Run a step; a request that found no memory is an error."""
        self._pipeline.step()
        found: list[tuple[int, list[int], None, bool, Mapping[str, int]]] = []
        for number, handle in list(self._handles.items()):
            ids = (
                [one for output in handle.read().values() for one in output.generated_ids] if handle.can_read() else []
            )
            status = handle.get_status()
            if status == self._genai.GenerationStatus.IGNORED:
                raise RuntimeError("the KV cache is too small for a request; raise kv_cache_gib")
            ended = status != self._genai.GenerationStatus.RUNNING
            if ended:
                del self._handles[number]
            if ids or ended:
                found.append((number, ids, None, ended, {}))
        return found

    def give_up(self, number: int) -> None:
        """Abort a request."""
        self._handles.pop(number).cancel()
        if not self._handles:
            self._pipeline.step()  # frees the request's memory
