"""A fast path that a machine cannot run is left out with its reason, the run goes on, and the model is not blamed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.models import attached, autoregressive, prompt, supported
from support.wording import wording

from specbench.common.errors import EnvironmentRefused
from specbench.decoding.tree import TokenTree
from specbench.engine import fast_paths, graphs
from specbench.engine.attention import choice, flash
from specbench.engine.attention.backends import ReferenceAttention
from specbench.engine.attention.interface import LayerAttention, UnsupportedAttention
from specbench.engine.engine import Engine
from specbench.engine.graphs import CaptureFailed
from specbench.engine.layers import compiled, sums

ABI = ImportError("flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E")
NO_IMAGE = RuntimeError("CUDA error: no kernel image is available for execution on the device")
NO_COMPILER = RuntimeError("Failed to find C compiler. Please specify via CC environment variable")
CPU = torch.device("cpu")


def raising(error: BaseException) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        raise error

    return call


def capture_like_cuda(device: torch.device) -> Any:
    """Runs the work instead of capturing it, and says of an error what a capture says."""

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        try:
            work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CaptureFailed("this model's forward cannot be captured; use --graphs off") from error
        return work

    return capture


class TritonStandIn(ReferenceAttention):
    """What serves as "triton" on a CPU: the engine takes it for kernels of its own."""

    error: Exception | None = None

    def __init__(self, visibility: Any, splits: int | None = None) -> None:
        super().__init__(visibility)

    def __call__(self, *args: Any) -> torch.Tensor:
        if self.error is not None:
            raise self.error
        return super().__call__(*args)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> type[TritonStandIn]:
    """Makes "triton" the backend that auto chooses, as on a GPU."""

    class Kernels(TritonStandIn):
        pass

    class Chosen(choice.Attentions):
        def __init__(self, asked: str, model: Any, *, pinned: bool = False) -> None:
            super().__init__("reference", model, pinned=pinned)
            self.asked = asked
            self.tree = self.chain = "triton"

        def ops(self) -> Any:
            return choice.TorchOps()

        def height(self, rows: int, attention: str, tall: bool) -> int:
            return 0

    monkeypatch.setattr("specbench.engine.engine.Attentions", Chosen)
    monkeypatch.setattr("specbench.engine.attention.backends.TritonAttention", Kernels)
    return Kernels


@pytest.mark.parametrize("error", [NO_COMPILER, NO_IMAGE], ids=["compiler", "image"])
def test_triton_is_tried_by_one_launch(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Any] = []

    def launch(device: torch.device) -> None:
        tries.append(device)
        raise error

    pytest.importorskip("triton")
    monkeypatch.setattr(fast_paths, "interpreted", lambda: False)
    monkeypatch.setattr(choice, "interpreted", lambda: False)
    monkeypatch.setattr(fast_paths, "_launch", launch)
    fast_paths._launch_fault.cache_clear()
    model: Any = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16)
    try:
        found, again = choice.Attentions("auto", model), choice.Attentions("auto", model)
        assert found.of([TokenTree.chain([1])]) == ("reference", False)
        assert str(error) in found.report()["why"]
        assert [str(error) in note for note in found.notes] == [True]
        assert len(tries) == 1
        assert again.notes == found.notes
        with pytest.raises(EnvironmentRefused, match=str(error)[:20]):
            choice.Attentions("triton", model)
    finally:
        fast_paths._launch_fault.cache_clear()


@pytest.mark.parametrize("error", [NO_COMPILER, NO_IMAGE, TypeError("no such option")], ids=["cc", "image", "other"])
def test_kernels_that_raise_leave_the_oracle(error: Exception, kernels: Any) -> None:
    model, ids = supported("llama"), prompt(7, 97)
    with attached(model, capacity=40, max_rows=4, backend="reference") as engine:
        expected = autoregressive(engine, ids, 8)
    kernels.error = error
    with attached(model, capacity=40, max_rows=4, native=False) as engine:
        report = engine.report()
        assert report["attention"] == "reference"
        assert str(error) in report["why"]
        assert any(str(error) in note for note in report["notes"])
        assert engine.attentions.asked == "reference"  # which draft heads ask for too
        assert autoregressive(engine, ids, 8) == expected


def test_kernels_that_were_asked_for_are_refused_with_the_reason(kernels: Any) -> None:
    model = supported("llama")
    kernels.error = NO_COMPILER
    with pytest.raises(EnvironmentRefused, check=wording) as refusal:
        Engine(model, capacity=40, max_rows=4, backend="triton", native=False)
    assert refusal.value.exit_code == 3
    assert model.config._attn_implementation != "specbench"


def test_a_model_at_fault_is_still_refused_as_such(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(ReferenceAttention):
        def __call__(self, query: Any, key: Any, value: Any, how: LayerAttention) -> Any:
            scale = 1.3 * (how.scale or query.shape[-1] ** -0.5)
            return super().__call__(query, key, value, replace(how, scale=scale))

    monkeypatch.setattr(choice, "ReferenceAttention", Wrong)
    kernels.error = NO_IMAGE
    with pytest.raises(UnsupportedAttention, check=wording):
        Engine(supported("llama"), capacity=40, max_rows=4, native=False)


FAKE = "flash_attn"


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (None, "ImportError"),
        (SimpleNamespace(), "flash_attn_with_kvcache"),
        (SimpleNamespace(flash_attn_with_kvcache=raising(NO_IMAGE)), "no kernel image"),
    ],
    ids=["abi", "namespace", "image"],
)
def test_flash_attention_is_tried_by_one_launch(module: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if module is None:
        monkeypatch.setattr(flash.importlib, "import_module", raising(ABI))
    monkeypatch.setitem(sys.modules, FAKE, module or SimpleNamespace())
    flash.flash_fault.cache_clear()
    try:
        assert words in flash.flash_fault("flash", CPU, torch.bfloat16)
    finally:
        flash.flash_fault.cache_clear()


@pytest.fixture
def rivals(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """An engine whose steps are captured and whose chains may go by FlashAttention, as on a GPU."""
    monkeypatch.setattr(graphs, "cuda_capture", capture_like_cuda)

    def make(**modules: Any) -> Engine:
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, flash.VERSIONS[name].module, module)
        engine = Engine(supported("llama"), capacity=60, max_rows=4, graphs=True, native=False)
        engine._graphs_asked = False
        engine.attentions._rivals = list(modules)
        return engine

    return make


@pytest.mark.parametrize("error", [ABI, NO_IMAGE, torch.OutOfMemoryError("CUDA out of memory")])
def test_a_rival_that_raises_costs_no_graph(error: Exception, rivals: Callable[..., Engine]) -> None:
    engine = rivals(flash=SimpleNamespace(flash_attn_with_kvcache=raising(error)))
    engine.prepare(4)
    report = engine.report()
    engine.close()
    assert report["attention"] == "reference"
    assert report["graphs"] > 0
    assert any(str(error) in note for note in report["notes"])
    assert "model" not in " ".join(report["notes"])


def test_a_rival_that_computes_something_else_is_left_out(rivals: Callable[..., Engine]) -> None:
    engine = rivals(flash=SimpleNamespace(flash_attn_with_kvcache=lambda q, *args, **named: torch.zeros_like(q)))
    engine.prepare(4)
    report = engine.report()
    engine.close()
    assert report["attention"] == "reference"
    assert ["relative error" in note for note in report["notes"]] == [True]


def test_a_compiler_that_is_missing_is_not_the_models_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled.torch, "compile", lambda forward, **options: raising(NO_COMPILER))
    with pytest.raises(EnvironmentRefused, check=wording):
        Engine(supported("llama"), capacity=40, max_rows=4, compile=True)


def test_layers_of_our_own_that_raise_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.engine.layers.code.OwnLayers.__init__", raising(OSError("cannot map the library")))
    with attached(supported("llama"), capacity=40, max_rows=4) as engine:
        assert wording(engine.report()["why_not_own"])
    with pytest.raises(EnvironmentRefused, check=wording):
        Engine(supported("llama"), capacity=40, max_rows=4, native=True)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), CaptureFailed("cannot be captured")])
def test_a_late_capture_that_fails_is_a_step_without_graph(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def full(work: Callable[[], None]) -> Any:
        tries.append(1)
        raise error

    ids = prompt(5, 97)
    with attached(supported("llama"), capacity=60, max_rows=8) as engine:
        slot = engine.alloc()
        engine.prefill(slot, ids)
        expected = [engine.step({slot: TokenTree.chain([5])}, top_k=2)[slot].next_tokens for _ in range(2)]
    monkeypatch.setattr(graphs, "cuda_capture", capture_like_cuda)
    with attached(supported("llama"), capacity=60, max_rows=8, graphs=True) as engine:
        engine.prepare(4)
        assert engine._graphs is not None
        monkeypatch.setattr(engine._graphs, "capture", full)
        slot = engine.alloc()
        engine.prefill(slot, ids)
        found = [engine.step({slot: TokenTree.chain([5])}, top_k=2)[slot].next_tokens for _ in range(2)]
        report = engine.report()
    assert found == expected
    assert len(tries) == 1  # the next step of its kind does not try again
    assert len(report["notes"]) == 1
    assert report["graphs"] > 0


def test_other_errors_of_a_late_capture_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", lambda device: raising(RuntimeError("an illegal memory access")))
    with attached(supported("llama"), capacity=60, max_rows=8, graphs=True) as engine:
        slot = engine.alloc()
        engine.prefill(slot, [3, 4])
        with pytest.raises(RuntimeError, check=wording):
            engine.step({slot: TokenTree.chain([5])})


def test_products_sum_in_float32_while_an_engine_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "_open", 0)  # engines that other tests have left open
    monkeypatch.setattr(sums, "_before", {})
    matmul = torch.backends.cuda.matmul
    names = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")

    def allowed() -> list[bool]:
        return [getattr(matmul, name) for name in names]

    before = allowed()
    try:
        for name in names:
            setattr(matmul, name, True)
        first = Engine(supported("llama"), capacity=40, max_rows=4)
        second = Engine(supported("qwen2"), capacity=40, max_rows=4)
        with first.detached():
            assert allowed() == [False, False]
        first.close()
        first.close()
        assert allowed() == [False, False]
        second.close()
        assert allowed() == [True, True]
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(matmul, name, value)
