"""Choose the code that runs a model's layers: our C++ on a CPU, kernels on a GPU, torch.compile, or transformers'."""

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

#: Our own layers, by device type.
OF_DEVICE: dict[str, type[OwnLayers] | type[FusedLayers]] = {"cpu": OwnLayers, "cuda": FusedLayers}


class LayerBackend:
    """Switch a model between its own attention and layers and the engine's.

    Args:
        native: run layers with our own code (:mod:`specbench.engine.layers`); None: if it is available.
        captured: whether steps are captured; a capture on a CPU can hold only torch operations.
        products: computes products of few rows.

    Attributes:
        native_attention: name in transformers of the model's own attention.
        linears: code that computes products: "own", "onednn" or "torch".
        why: why the layers are not our own, or an empty string if they are.
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
        self.model, self.compiles, self._asked = model, compile, native is True
        self.native_attention: str = model.config._attn_implementation
        if self.native_attention == interface.NAME:
            raise ValueError("this model is already attached to an engine; close() that one first")
        self._always: list[Any] = [HeldRotary(model)]
        self._parts: list[Any] = []
        self.products = products
        self._fused: FusedLayers | None = None
        self.linears, self._barred = "torch", self._why_barred(native, captured)
        self.why = self._barred

    def _why_barred(self, native: bool | None, captured: bool) -> str:
        """Return why our own code cannot be used at all, or an empty string."""
        if native is False:
            return "not requested"
        if self.compiles:
            return "torch.compile was requested"
        device = self.model.device.type
        if device not in OF_DEVICE:
            return "our own layers need a CPU or CUDA"
        return "captured steps can hold only torch operations" if captured and device == "cpu" else ""

    def choose(self, cache: StaticCache, calls: Calls, check: Callable[[], None]) -> None:
        """Choose the code, check it against the model's own forward, and leave it attached."""
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
                # If our layers are not to blame, the check below raises the error again.
                wrong = isinstance(error, UnsupportedAttention) and error.__cause__ is None
                self.why = "its layers do not compute what their modules suggest" if wrong else reason(error)
            self._leave()
        if self._asked:
            raise EnvironmentRefused(f"cannot run layers with our own code: {self.why}; leave --native out")
        kind = linear_kind(self.model)
        with self.detached():  # products are found with a forward without an engine
            linears = Linears(self.model, kind)
        self._take([linears, compiled.Fused(self.model, self.compiles)], kind)
        try:
            check()
        except Exception as error:
            stated = isinstance(error, SpecbenchError) and error.__cause__ is None
            if stated or not self.compiles or memory.ran_out(error):
                raise
            self._leave()
            self._take([linears], kind)
            check()  # raises the error again if the compiler is not to blame
            why = f"cannot compile this model's layers: {reason(error)}; leave --compile out"
            raise EnvironmentRefused(why) from error

    def hold(self, part: Any) -> None:
        """Attach ``part`` too, here and with every :meth:`attach`, whichever code is chosen for the layers."""
        self._always.append(part)
        part.attach()

    def _take(self, parts: list[Any], linears: str) -> None:
        self._parts, self.linears = parts, linears
        for part in parts:
            part.attach()

    def _leave(self) -> None:
        for part in reversed(self._parts):
            part.detach()
        self._parts = []

    def attach(self) -> None:
        """Use the engine's attention and layers from now on."""
        self.model.set_attn_implementation(interface.NAME)
        for part in (*self._always, *self._parts):
            part.attach()

    def detach(self) -> None:
        """Give the model its own attention and layers back."""
        for part in reversed([*self._always, *self._parts]):
            part.detach()
        self.model.set_attn_implementation(self.native_attention)

    @contextmanager
    def detached(self) -> Iterator[None]:
        """Context manager in which the model runs its own attention and layers."""
        self.detach()
        try:
            yield
        finally:
            self.attach()

    def release(self) -> None:
        """Drop the engine's layers, which refer to its cache; they must be detached."""
        self._always, self._parts, self._fused = [], [], None

    def weights(self) -> dict[tuple[int, int], list[Tensor]]:
        """Weights of the products that ``products`` computes, by shape."""
        return self._fused.weights() if self._fused is not None and self._fused in self._parts else {}

    def report(self) -> dict[str, Any]:
        """The choice, for the run's record."""
        device = self.model.device.type
        found: dict[str, Any] = {"linears": self.linears}
        if self._fused is not None and self._fused in self._parts:
            return {**found, **self._fused.report()}
        if self.why and device in OF_DEVICE:
            found["why_not_own" if device == "cpu" else "why_not_fused"] = self.why
        return found
