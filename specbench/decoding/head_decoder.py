"""The base of decoders that draft with a head over the target's features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.common import UsageError
from specbench.decoding.protocol import Context, Decoder
from specbench.decoding.tree import TokenTree


class HeadDecoder(Decoder):
    """Holds a sequence's slot of the head.

    What :meth:`prepare` returns has ``rounds`` (open, close, hold, nbytes), ``taps`` and ``weights``.
    """

    def __init__(self, options: Any, context: Context) -> None:
        self._shared: Any = context.shared
        self._place = context.slot  # of the target; the head has its own
        self._slot: int | None = None

    @staticmethod
    def taps(options: Any, shared: Any) -> tuple[int, ...]:
        return shared.taps if shared else ()

    @staticmethod
    def weights(shared: Any) -> Mapping[str, str]:
        return shared.weights if shared else {}

    @staticmethod
    def memory_bytes(shared: Any) -> int:
        return shared.rounds.nbytes if shared else 0

    def begin(self, prompt: Sequence[int]) -> TokenTree | None:
        self._slot = self._shared.rounds.open(self._place)
        return None

    def instead(self, tree: TokenTree) -> None:
        # The features of what is accepted come as ever; no pass of the head is run.
        if self._slot is not None:
            self._shared.rounds.hold(self._slot)

    def end(self) -> None:
        if self._slot is not None:
            self._shared.rounds.close(self._slot)
            self._slot = None


def no_head(method: str) -> UsageError:
    """The error for a method that has no head for the model."""
    return UsageError(
        f"{method} drafts with a head that was trained for the model; give it one with --head FOLDER or "
        "--head OWNER/NAME, or time an untrained one with --head random"
    )
