"""Check whether the trees of a plan fit in this machine's memory, before the model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.common import EnvironmentRefused
from specbench.decoding import Method
from specbench.engine import TreesTooLarge, Widths, assert_trees_fit
from specbench.hardware import ModelShape, free_ram_bytes, gpus, ram_bytes
from specbench.models import configured_shape, names
from specbench.planning.plan import Decoding

# An option is suggested if halving it shrinks the tree at least to this share.
_SMALLER = 0.8


@dataclass(frozen=True)
class MemoryBudget:
    """Memory for the steps of a plan: bytes of its device in total and free now, None if unknown.

    ``capacity`` is the number of tokens that a sequence reaches at least; for ``dense`` attention masks see
    :func:`specbench.engine.memory_budget.step_memory`.
    """

    shape: ModelShape | None
    memory: float | None
    free: float | None
    capacity: int
    slots: int
    dense: bool

    @classmethod
    def of(cls, plan: Decoding, slots: int) -> MemoryBudget:
        """Return the budget of a plan on its device."""
        shape = configured_shape(names.resolve(plan.model), dtype_of(plan), plan.revision)
        memory, free = _memory(plan)
        dense = not on_gpu(plan) or plan.attention == "reference"
        return cls(shape, memory, free, plan.max_new_tokens or 1, slots, dense)

    def refusal(self, methods: Sequence[Method], *, now: bool) -> str | None:
        """Explain why the largest tree does not fit and which option to lower; None if it fits or memory is unknown.

        ``now`` compares with free memory instead of the device's total.
        """
        widest = max(methods, key=lambda method: method.max_rows)
        room = self.free if now else self.memory
        if room is not None and self.shape is not None:
            room -= self.shape.parameters * self.shape.weight_bytes
        widths = Widths.of(self.shape) if self.shape else None
        try:
            assert_trees_fit(widths, widest.max_rows, self.capacity, self.slots, room, dense=self.dense)
        except TreesTooLarge as error:
            return f"{widest.label}: {error}; {how_to_shrink(widest)}"
        return None


def assert_fits(plan: Decoding, methods: Sequence[Method], slots: int) -> None:
    """Raise EnvironmentRefused if trees do not fit in free memory, with the bytes and the option to lower."""
    why = MemoryBudget.of(plan, slots).refusal(methods, now=True)
    if why is not None:
        raise EnvironmentRefused(why)


def how_to_shrink(method: Method) -> str:
    """Advice on how to shrink a method's tree: names the options that shrink it when halved, strongest first."""
    smaller: dict[str, int] = {}
    for name in type(method.options).model_fields:
        value = getattr(method.options, name)
        if type(value) is int and value > 1:
            halved = method.options.model_copy(update={name: value // 2})
            smaller[name] = int(method.decoder.max_rows(halved))
    ordered = sorted((rows, name) for name, rows in smaller.items() if rows <= _SMALLER * method.max_rows)
    if not ordered:
        return f"make the tree of {method.label} smaller, see specbench list {method.name}"
    return f"lower {' or '.join(name for _, name in ordered)}"


def dtype_of(plan: Decoding) -> str:
    """Precision of a plan's weights, as torch names it."""
    return names.DTYPES.get(plan.dtype, "bfloat16" if on_gpu(plan) else "float32")


def on_gpu(plan: Decoding) -> bool:
    """Whether a plan runs on a GPU, as far as can be known without torch."""
    named = plan.gpu != "auto" or plan.device.startswith("cuda")
    return named or (plan.device == "auto" and bool(gpus.seen()))


def _memory(plan: Decoding) -> tuple[float | None, float | None]:
    """Bytes of the device, and free bytes; for a GPU both are its total."""
    if not on_gpu(plan):
        return float(ram_bytes()), free_ram_bytes()
    cards = gpus.seen()
    board = gpus.find(plan.gpu) if plan.gpu != "auto" else gpus.identify(cards[0], None) if cards else None
    memory = board.memory_gb * 1e9 if board else None
    return memory, memory
