"""Choose which steps to measure, the most informative first, and which cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.common import EnvironmentRefused, UsageError
from specbench.engine import Widths, scratch_cells, step_memory
from specbench.hardware import ROWS, LeftOut, ModelShape, Settings, base_context

# One row, a short draft, a tree, a large tree: the curve over rows bends at most once between two of them.
_FEW_ROWS = (1, 16, 64, 256)
_ROWS_OF_SLOTS = (1, 4, 16, 64)


@dataclass(frozen=True)
class Cell:
    """A step to measure: rows per slot, cached tokens of each slot, slots."""

    rows: int
    context: int
    slots: int = 1

    def left_out(self, why: str) -> LeftOut:
        return LeftOut.model_validate({"rows": self.rows, "context": self.context, "slots": self.slots, "why": why})


def ranked(rows: Sequence[int], contexts: Sequence[int], slots: Sequence[int]) -> list[Cell]:
    """The steps of a profile, the most informative first.

    Rows at the base context, the curve that most users ask for; a few rows at the other contexts; several slots with a
    few rows at the base context; then the remaining rows at the remaining contexts. Cheap steps first within each.
    """
    base = base_context(contexts)
    others = [context for context in contexts if context != base]
    few = [count for count in rows if count in _FEW_ROWS]
    of_slots = [count for count in rows if count in _ROWS_OF_SLOTS]
    return [
        *(Cell(count, base) for count in rows),
        *(Cell(count, context) for count in few for context in others),
        *(Cell(count, base, several) for several in slots if several > 1 for count in of_slots),
        *(Cell(count, context) for context in others for count in rows if count not in few),
    ]


def within(
    settings: Settings, shape: ModelShape, positions: int | None, free_bytes: int, dense: bool = True
) -> tuple[list[Cell], list[LeftOut]]:
    """The steps that fit this model and this memory, ranked, and those that do not fit.

    ``positions``: the most that the model supports, or None if unknown; ``free_bytes``: memory for caches and steps;
    ``dense``: as of :func:`specbench.engine.memory_budget.step_memory`.
    """
    rows, contexts = list(settings.rows), list(settings.contexts)
    left_out: list[LeftOut] = []
    if positions is not None:
        fitting = [count for count in rows if count <= max(1, positions // 2)]
        left_out += [Cell(count, base_context(contexts)).left_out("model") for count in rows if count not in fitting]
        rows = fitting
        longest = positions - rows[-1] - 1
        if settings.clip:
            contexts = sorted({min(context, longest) for context in contexts})
        left_out += [Cell(count, at).left_out("model") for at in contexts if at > longest for count in rows]
        contexts = [context for context in contexts if context <= longest]
        if not contexts:
            raise UsageError(
                f"this model takes {positions} positions: with {rows[-1]} rows, give --contexts of at most {longest}"
            )
    # The memory of two engines (one slot up to the longest context, all slots at the base context), and as much for the
    # activations and graphs of both.
    share = free_bytes // 3
    widths = Widths.of(shape)
    narrow = [c for c in rows if c <= ROWS[-1] or step_memory(widths, c, 1, dense=dense).total <= share]
    left_out += [Cell(count, base_context(contexts)).left_out("memory") for count in rows if count not in narrow]
    rows = narrow
    left = [context for context in contexts if _cache_bytes(shape, rows[-1], context, 1) > share]
    left_out += [Cell(count, at).left_out("memory") for at in left for count in rows]
    contexts = [context for context in contexts if context not in left]
    if not contexts:
        raise EnvironmentRefused(
            f"no memory for a KV cache of {left[0]} tokens; give shorter --contexts, or a smaller model"
        )
    base = base_context(contexts)
    of_slots = [count for count in rows if count in _ROWS_OF_SLOTS]
    fits = [some for some in settings.slots if some == 1 or _cache_bytes(shape, of_slots[-1], base, some) <= share]
    left_out += [
        Cell(count, base, some).left_out("memory") for some in settings.slots if some not in fits for count in of_slots
    ]
    return ranked(rows, contexts, fits), left_out


def _cache_bytes(shape: ModelShape, rows: int, context: int, slots: int) -> float:
    """Cache capacity of an engine for these steps, including the scratch cells after the context."""
    return slots * (context + scratch_cells(rows)) * shape.token_bytes
