"""Base class and options of decoders that draft with a head over the target's features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from specbench.common import Options, UsageError, option
from specbench.decoding.limits import confidence_option, confident, stop_option
from specbench.decoding.pairs import MethodName, retrieve_option
from specbench.decoding.protocol import Context, Decoder
from specbench.decoding.tree import Branch, StepResult, TokenTree
from specbench.decoding.trees.paths import best_path, expected_accepted


class HeadOptions(Options):
    """Options of every method that drafts with a head."""

    head: str | None = option(
        None,
        help="folder or hub id of the draft head, with optional ::SUBFOLDER; random is an untrained head for timing; "
        "default is the head for the model's alias, if it has one",
    )
    budget: int = option(64, "B", help="most rows of the tree, root included", ge=2, le=512)
    width: int = option(7, "K", "k", help="most candidates per position", ge=1, le=512)
    confidence: float = confidence_option()
    stop: bool = stop_option()
    retrieve: MethodName | None = retrieve_option()


@dataclass(frozen=True)
class Drafting:
    """Objects that the sequences of a run share, returned by :meth:`HeadDecoder.prepare`.

    Attributes:
        rounds: a :class:`specbench.heads.HeadRounds`.
        tree: the head's slot -> the tree that it drafts for the sequence.
        confidence: smallest probability of a draft token, see :func:`~specbench.decoding.limits.confident`.
    """

    rounds: Any
    tree: Callable[[int], TokenTree]
    confidence: float = 0.0


class HeadDecoder(Decoder):
    """Decoder that passes the target's features to a head and drafts the head's tree.

    A subclass sets ``METHOD``, and loads its head in :meth:`prepare`, which returns a :class:`Drafting`.
    """

    METHOD: ClassVar[str]

    def __init__(self, options: Any, context: Context) -> None:
        self._shared: Drafting = context.shared
        self._place = context.slot  # slot of the target
        self._slot: int | None = None  # slot of the head
        self._unread: list[int] = []  # prompt tokens from the second on: features are paired with the next token
        self._trees: list[TokenTree] = []

    @staticmethod
    def max_rows(options: Any) -> int:
        return int(options.budget)

    @classmethod
    def check(cls, options: Any, model: str) -> None:
        if options.head is None and shipped_head(cls.METHOD, model) is None:
            raise UsageError(
                f"cannot run {cls.METHOD} without a head trained for the model; give one with --head FOLDER or --head "
                "OWNER/NAME, or time an untrained one with --head random"
            )
        if options.head is not None and not options.head.startswith("random"):
            check_head_name(options.head)

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
        # The head reads the features of each token together with the token after it.
        self._shared.rounds.append(self._slot, [*self._unread, *result.emitted], result.hidden)
        self._unread = []

    def draft(self) -> TokenTree:
        assert self._slot is not None
        self._trees.append(confident(self._shared.tree(self._slot), self._shared.confidence))
        self.draft_forwards += self._shared.rounds.forwards
        return self._trees[-1]

    def instead(self, tree: TokenTree) -> None:
        # The head does not run; features of accepted tokens still arrive through observe.
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


def check_head_name(name: str) -> None:
    """Refuse a head's name that is neither a folder, with optional ::SUBFOLDER, nor looks like a hub id."""
    base = name.partition("::")[0]
    if not Path(base).expanduser().is_dir() and (base.count("/") != 1 or base.startswith((".", "/", "~"))):
        raise UsageError(
            f"cannot read head {base}: the folder does not exist; give a folder or a hub id such as OWNER/NAME"
        )


def shipped_head(method: str, model: str) -> Path | None:
    """Return the folder of the head in the package for a method and a model's alias, or None."""
    folder = Path(__file__).parents[1] / "methods" / method / "heads" / model
    return folder if model and (folder / "config.json").is_file() else None
