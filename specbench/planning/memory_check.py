"""Room: whether the trees of a plan fit in this machine's memory, before a model is loaded for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.common import EnvironmentRefused
from specbench.decoding import Method
from specbench.engine import TreesTooLarge, Widths, assert_trees_fit
from specbench.hardware import ModelShape, free_ram_bytes, gpus, ram_bytes
from specbench.models import configured_shape, names
from specbench.planning.plan import Decoding

# An option is worth naming if half of it leaves at most so much of the tree.
_SMALLER = 0.8


@dataclass(frozen=True)
class MemoryBudget:
    """What steps of a plan may take: bytes of its device in all and free now, None where unknown.

    ``capacity`` is the least number of tokens that a sequence reaches; ``dense`` masks are matrices, see
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
        """That of a plan on its device."""
        shape = configured_shape(names.resolve(plan.model), dtype_of(plan), plan.revision)
        memory, free = _memory(plan)
        dense = not on_gpu(plan) or plan.attention == "reference"
        return cls(shape, memory, free, plan.max_new_tokens or 1, slots, dense)

    def refusal(self, methods: Sequence[Method], *, now: bool) -> str | None:
        """Why trees of some methods do not fit, with the option to lower; None where they do, or that is not known.

        The largest tree decides; ``now`` looks at what is free and not at what the machine has.
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
    """Refuse trees that do not fit in what is free now, naming the option to lower, and the bytes."""
    why = MemoryBudget.of(plan, slots).refusal(methods, now=True)
    if why is not None:
        raise EnvironmentRefused(why)


def how_to_shrink(method: Method) -> str:
    """What makes a method's tree smaller, as an order: the options that do when halved, the strongest first."""
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
    """The precision of a plan's weights, by torch's name."""
    return names.DTYPES.get(plan.dtype, "bfloat16" if on_gpu(plan) else "float32")


def on_gpu(plan: Decoding) -> bool:
    """Whether a plan runs on a GPU, as far as that is known without torch."""
    named = plan.gpu != "auto" or plan.device.startswith("cuda")
    return named or (plan.device == "auto" and bool(gpus.seen()))


def _memory(plan: Decoding) -> tuple[float | None, float | None]:
    """Bytes that the device has, and that are free."""
    if not on_gpu(plan):
        return float(ram_bytes()), free_ram_bytes()
    cards = gpus.seen()
    board = gpus.find(plan.gpu) if plan.gpu != "auto" else gpus.identify(cards[0], None) if cards else None
    memory = board.memory_gb * 1e9 if board else None
    return memory, memory
