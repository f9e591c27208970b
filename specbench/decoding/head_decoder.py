"""The base of decoders that draft with a head over the target's features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from specbench.common import Options, UsageError, option
from specbench.decoding.pairs import MethodName, retrieve_option
from specbench.decoding.protocol import Context, Decoder
from specbench.decoding.tree import Branch, StepResult, TokenTree
from specbench.decoding.trees.paths import best_path, expected_accepted


class HeadOptions(Options):
    """Options of every method that drafts with a head."""

    head: str | None = option(
        None,
        help="folder or hub id of the draft head, ::SUBFOLDER may follow; random: untrained, for timing; default is "
        "the head that comes with the model's alias, where there is one",
    )
    budget: int = option(64, "B", help="rows of the tree at most, root included", ge=2, le=512)
    width: int = option(7, "K", "k", help="candidates of a position at most", ge=1, le=512)
    retrieve: MethodName | None = retrieve_option()


@dataclass(frozen=True)
class Drafting:
    """What the sequences of a run share: what :meth:`HeadDecoder.prepare` returns.

    Attributes:
        rounds: a :class:`specbench.engine.HeadRounds`.
        tree: slot -> the tree that the head drafts there.
    """

    rounds: Any
    tree: Callable[[int], TokenTree]


class HeadDecoder(Decoder):
    """Gives the head what the target computed, and drafts the tree that it makes.

    A method names itself, and loads its head in :meth:`prepare`, which returns a :class:`Drafting`.
    """

    METHOD: ClassVar[str]

    def __init__(self, options: Any, context: Context) -> None:
        self._shared: Drafting = context.shared
        self._place = context.slot  # of the target; the head has its own
        self._slot: int | None = None
        self._unread: list[int] = []  # tokens of the prompt that the first features stand before
        self._trees: list[TokenTree] = []

    @staticmethod
    def max_rows(options: Any) -> int:
        return int(options.budget)

    @classmethod
    def check(cls, options: Any, model: str) -> None:
        if options.head is None and shipped_head(cls.METHOD, model) is None:
            raise UsageError(
                f"{cls.METHOD} drafts with a head that was trained for the model; give it one with --head FOLDER or "
                "--head OWNER/NAME, or time an untrained one with --head random"
            )

    @staticmethod
    def taps(options: Any, shared: Drafting | None) -> tuple[int, ...]:
        return shared.rounds.taps if shared else ()

    @staticmethod
    def weights(shared: Drafting | None) -> Mapping[str, str]:
        return shared.rounds.weights if shared else {}

    @staticmethod
    def memory_bytes(shared: Drafting | None) -> int:
        return shared.rounds.nbytes if shared else 0

    def begin(self, prompt: Sequence[int]) -> TokenTree | None:
        self._slot, self._unread = self._shared.rounds.open(self._place), list(prompt[1:])
        return None

    def observe(self, result: StepResult) -> None:
        # The features of each token come with the token after it.
        self._shared.rounds.append(self._slot, [*self._unread, *result.emitted], result.hidden)
        self._unread = []

    def draft(self) -> TokenTree:
        assert self._slot is not None
        self._trees.append(self._shared.tree(self._slot))
        self.draft_forwards += self._shared.rounds.forwards
        return self._trees[-1]

    def instead(self, tree: TokenTree) -> None:
        # The features of what is accepted come as ever; no pass of the head is run.
        if self._slot is not None:
            self._shared.rounds.hold(self._slot)

    def end(self) -> None:
        if self._slot is not None:
            self._shared.rounds.close(self._slot)
            self._slot = None

    def branches(self) -> Sequence[Branch]:
        return [Branch(step, *best_path(tree)) for step, tree in enumerate(self._trees)]

    def measures(self, kept: int, stopped: bool) -> Mapping[str, float]:
        rounds = len(self._trees)
        if not rounds:
            return {}
        return {
            "expected": sum(map(expected_accepted, self._trees)) / rounds,
            "tree_depth": sum(tree.depth for tree in self._trees) / rounds,
        }


def shipped_head(method: str, model: str) -> Path | None:
    """The folder of the head that comes with specbench for a method and a model's alias; None where there is none."""
    folder = Path(__file__).parents[1] / "methods" / method / "heads" / model
    return folder if model and (folder / "config.json").is_file() else None
