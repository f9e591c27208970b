"""Layer code: what runs a model's layers: our own on a CPU, few kernels on a GPU, a compiler's, or transformers'."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from specbench.common import EnvironmentRefused, SpecbenchError
from specbench.engine import memory
from specbench.engine.attention import interface
from specbench.engine.attention.interface import Calls, UnsupportedAttention
from specbench.engine.cache import StaticCache
from specbench.engine.fast_paths import reason
from specbench.engine.layers import compiled
from specbench.engine.layers.cpu_layers import OwnLayers
from specbench.engine.layers.gpu_layers import FusedLayers
from specbench.engine.layers.onednn import Linears, linear_kind
from specbench.engine.layers.parts import Unlike
from specbench.engine.layers.rotary import HeldRotary
from specbench.engine.layers.skinny import SkinnyProducts

#: Layers of our own, by the kind of device.
OF_DEVICE: dict[str, type[OwnLayers] | type[FusedLayers]] = {"cpu": OwnLayers, "cuda": FusedLayers}


class LayerCode:
    """Switches a model between its own attention and layers and the engine's.

    Args:
        native: run them by our own code (:mod:`specbench.engine.layers`); None is
            where that can be had.
        captured: whether steps are captured, which on a CPU holds operations of torch alone.
        products: what multiplies few rows.

    Attributes:
        native_attention: the model's own, by its name in transformers.
        linears: what computes products: "own", "onednn" or "torch".
        why: why the layers are not our own; empty where they are.
    """

    def __init__(
        self,
        model: Any,
        *,
        compile: bool,
        native: bool | None,
        captured: bool,
        products: SkinnyProducts,
    ) -> None:
        self.model, self._compile, self._asked = model, compile, native is True
        self.native_attention: str = model.config._attn_implementation
        if self.native_attention == interface.NAME:
            raise ValueError("this model already serves an engine; close() that one first")
        self._rotary = HeldRotary(model)
        self._parts: list[Any] = []
        self.products = products
        self._fused: FusedLayers | None = None
        self.linears, self._barred = "torch", self._why_barred(native, captured)
        self.why = self._barred

    def _why_barred(self, native: bool | None, captured: bool) -> str:
        """Why our own code is out of the question."""
        if native is False:
            return "not asked for"
        if self._compile:
            return "torch.compile was asked for"
        device = self.model.device.type
        if device not in OF_DEVICE:
            return "our own layers are for CPUs and CUDA"
        return "captured steps hold operations of torch alone" if captured and device == "cpu" else ""

    def choose(self, cache: StaticCache, calls: Calls, check: Callable[[], None]) -> None:
        """Chooses, checks what is chosen against the model's own forward, and leaves it attached."""
        self._leave()
        self.why = self._barred
        if not self.why:
            try:
                layers: OwnLayers | FusedLayers
                if OF_DEVICE[self.model.device.type] is FusedLayers:
                    layers = FusedLayers(self.model, cache, calls, self.products)
                else:
                    layers = OwnLayers(self.model, cache, calls)
                self._take([layers], "own" if isinstance(layers, OwnLayers) else "torch")
                if isinstance(layers, FusedLayers):
                    self._fused = layers
                    with layers.learn():
                        check()
                check()
                return
            except Unlike as unlike:
                self.why = f"{unlike}"
            except Exception as error:
                if memory.ran_out(error):
                    raise
                # Unless the layers are what is wrong, the check says so again.
                wrong = isinstance(error, UnsupportedAttention) and error.__cause__ is None
                self.why = "its layers compute something else than their parts say" if wrong else reason(error)
            self._leave()
        if self._asked:
            raise EnvironmentRefused(f"layers of our own cannot be had: {self.why}; leave --native out")
        kind = linear_kind(self.model)
        with self.detached():  # products are found by a forward without an engine
            linears = Linears(self.model, kind)
        self._take([linears, compiled.Fused(self.model, self._compile)], kind)
        try:
            check()
        except Exception as error:
            stated = isinstance(error, SpecbenchError) and error.__cause__ is None
            if stated or not self._compile or memory.ran_out(error):
                raise
            self._leave()
            self._take([linears], kind)
            check()  # raises again what is no fault of the compiler's
            why = f"cannot compile this model's layers: {reason(error)}; leave --compile out"
            raise EnvironmentRefused(why) from error

    def _take(self, parts: list[Any], linears: str) -> None:
        self._parts, self.linears = parts, linears
        for part in parts:
            part.attach()

    def _leave(self) -> None:
        for part in reversed(self._parts):
            part.detach()
        self._parts = []

    def attach(self) -> None:
        """Runs the engine's attention and layers from now on."""
        self.model.set_attn_implementation(interface.NAME)
        for part in (self._rotary, *self._parts):
            part.attach()

    def detach(self) -> None:
        """Gives the model its own attention and layers back."""
        for part in (*reversed(self._parts), self._rotary):
            part.detach()
        self.model.set_attn_implementation(self.native_attention)

    @contextmanager
    def detached(self) -> Iterator[None]:
        """The model as it is without an engine."""
        self.detach()
        try:
            yield
        finally:
            self.attach()

    def release(self) -> None:
        """Drops the engine's layers, which hold its cache; they are detached."""
        self._parts, self._fused = [], None

    def weights(self) -> dict[tuple[int, int], list[Tensor]]:
        """By shape the weights of products that ``products`` computes."""
        return self._fused.weights() if self._fused is not None and self._fused in self._parts else {}

    def report(self) -> dict[str, Any]:
        """What was chosen, for the records."""
        device = self.model.device.type
        found: dict[str, Any] = {"linears": self.linears}
        if self._fused is not None and self._fused in self._parts:
            return {**found, **self._fused.report()}
        if self.why and device in OF_DEVICE:
            found["why_not_own" if device == "cpu" else "why_not_fused"] = self.why
        return found
