"""Schema of ``requests.jsonl``: what a run records about each request. Times are in seconds."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from specbench.results.columns import NO_COLUMN, SPARSE, named_columns
from specbench.results.schema import Count, Figure, FinishReason, Record, Whole


class GpuTrace(Record):
    """State of the GPU during one request, from NVML; None for values that NVML does not report."""

    sm_clock_mhz: Whole | None = Field(description="clock of the GPU's cores at the end of the request, in MHz")
    memory_clock_mhz: Whole | None
    temperature_c: Whole | None = Field(description="the higher temperature of start and end, in °C")
    energy_j: Figure | None = Field(
        description="joules that the GPU consumed during the request, split evenly over the sequences in the slots"
    )
    power_w: Figure | None = Field(description="mean power of the whole GPU during the request, in watts")
    throttled: list[str] | None = Field(
        description="reasons that held the clocks down at the start, at the end or in between",
        json_schema_extra=NO_COLUMN,
    )


class Draft(Record):
    """The draft tree of one step without its root: lists start with row 1, and row numbers count the root as 0."""

    ids: list[int]
    parents: list[int] | None = Field(description="row of each token's parent, 0 for the root; None for a chain")
    origins: str = Field(description="one letter per row for the token's origin, see TokenTrace")
    draft_only: list[int] = Field(description="rows that only generate drafts and could not be accepted")
    path: list[int] = Field(description="rows that were accepted, from the root down")
    scores: list[Figure | None] | None = Field(
        default=None,
        description="the drafter's natural log-probability of each row's token given its parent, temperature 1; "
        "absent if the drafter has no scores",
    )

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out absent scores, so that older records keep their form."""
        written: dict[str, Any] = write(self)
        if self.scores is None:
            written.pop("scores", None)
        return written


class TokenTrace(Record):
    """Origin of each kept token and its part of the text, so that a viewer needs no tokenizer.

    In strings of origins, ``LETTERS[i]`` stands for the i-th entry of ``words``. ``chars`` counts characters of
    ``text + tail``; a character belongs to the token that completes it.
    """

    words: list[str] = Field(description="origins in order of appearance; see specbench.decoding.tree.ORIGINS")
    origins: str = Field(description="one letter per kept token: prefill, bonus, or how the token was drafted")
    rows: list[int] = Field(description="tree rows of each target forward after prefill")
    chars: list[int] = Field(description="characters of each kept token")
    tail: str = Field(description="text of the kept tokens after `text`: what was cut off at a stop string")
    drafts: list[Draft] | None = Field(
        default=None, description="with --trace: the draft tree of each of these forwards"
    )
    pieces: dict[int, str] | None = Field(default=None, description="with --trace: text of each drafted token id")


#: See :class:`TokenTrace`.
LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits


class DraftedBranch(Record):
    """The best branch of one tree according to the drafter's scores."""

    step: Count = Field(description="index of the target forward after the prefill that verified the tree, from 0")
    ids: list[int] = Field(min_length=1, description="token ids of the branch, without the root")
    log_probability: Figure = Field(
        description="log-probability of the branch under the drafter, in nats, at temperature 1"
    )


class RequestRecord(Record):
    """One prompt decoded once by one method.

    ``first_tokens + sum(accepted_lengths) == output_tokens``; our prefill emits one token, the first arrival from
    another engine may contain more. ``*_share_s`` is the request's share of the engine's time: a step's time is split
    evenly over the sequences that it served; at concurrency 1 the shares equal ``ttft_s`` and ``decode_s``.
    """

    request_id: str = Field(
        max_length=25_000, description="method|prompt|repeat, and |turn after the first turn; unique in a run"
    )
    method: str = Field(max_length=1000)
    prompt_id: str = Field(max_length=10_000)
    grown_from: str = Field(
        default="",
        max_length=10_000,
        description="with --contexts: id of the prompt that was grown; absent otherwise",
        json_schema_extra=NO_COLUMN,
    )
    repeat: Count
    turn: Count = Field(1, description="turn of the conversation, from 1")
    category: str = Field(default="", max_length=10_000)
    prompt_tokens: Count
    prefix_tokens: Count = Field(
        default=0,
        description="with --keep-prefix: first tokens of the prompt that the turn before has too, whose KV was kept",
    )
    output_ids: list[int] = Field(
        description="tokens kept: up to and including the first stop, never past the budget",
        json_schema_extra=NO_COLUMN,
    )
    text: str = Field(
        description="the answer as the task scores it: special tokens dropped, cut before a stop string",
        json_schema_extra=NO_COLUMN,
    )
    finish_reason: FinishReason
    output_tokens: Count
    overshoot_tokens: Count = Field(
        description="tokens that a step emitted after the stop or beyond the budget; dropped and not counted"
    )
    stop_tail_tokens: Count = Field(description="kept tokens that lie entirely within or after a stop string")
    first_tokens: Count = Field(
        default=1,
        description="kept tokens of the first arrival: 1 in our engine, 0 or more where the method fills masked "
        "blocks, maybe more in another engine",
    )
    accepted_lengths: list[int] = Field(
        description="kept tokens of each target forward after prefill; for another engine that does not report each "
        "forward, of each arrival after the first",
        json_schema_extra=NO_COLUMN,
    )
    tree_rows: Count = Field(description="tree rows that the target computed after prefill")
    target_forwards: Count = Field(description="target forwards after prefill; 0 if another engine does not count them")
    draft_forwards: Count
    draft_tokens: Count | None = Field(
        default=None,
        description="draft tokens that the forwards after prefill verified: tree nodes without the root and without "
        "rows that could not be accepted; None in older records, and if another engine does not count them",
    )
    acceptance_histogram: list[Count] | None = Field(
        default=None,
        description="forwards after prefill that verified a draft, by number of accepted draft tokens, from 0 up; what "
        "was accepted after a stop or beyond the budget counts. None like draft_tokens",
        json_schema_extra=NO_COLUMN,
    )
    start_s: Figure = Field(description="start of the request in seconds, on the clock of its segment")
    waited_s: Figure | None = Field(
        default=None,
        description="under load (--rate): seconds from the request's arrival to its start, which ttft_s and latency_s "
        "include: in our engine, waiting for a slot; of another engine, how late the client sent it",
    )
    ahead: Count | None = Field(
        default=None, description="under load: requests in the system when this one arrived, itself left out"
    )
    segment: Count = Field(description="number of the segment: requests of one method without interruption")
    place: Count | None = Field(
        default=None,
        description="for a stateful method: number of the request since the method started with empty state, from 1; "
        "otherwise absent",
    )
    ttft_s: float
    decode_s: float
    latency_s: float
    prefill_share_s: float
    decode_share_s: float
    step_s: list[Figure] | None = Field(
        default=None,
        description="seconds of each target forward after prefill, drafting included, shared out like decode_share_s; "
        "None in older records",
        json_schema_extra=NO_COLUMN,
    )
    gap_s: list[Figure] | None = Field(
        default=None,
        description="seconds between the arrivals of each target forward's tokens and of those before, as a user sees "
        "them; absent where sequences were not stepped together, and step_s says the same",
        json_schema_extra=NO_COLUMN,
    )
    phases_s: dict[str, list[Figure]] | None = Field(
        default=None,
        description="with --trace: seconds of each step by phase, shared out like decode_share_s",
        json_schema_extra=NO_COLUMN,
    )
    peak_memory_bytes: Count | None = Field(
        default=None,
        description="peak of torch's allocator on the GPU from the start of the segment to the end of the request, in "
        "bytes, weights and cache included; None on a CPU",
    )
    measures: dict[str, float] = Field(
        default_factory=dict,
        description="figures that the method defines itself, see its method.toml",
        json_schema_extra=named_columns("measure"),
    )
    branches: list[DraftedBranch] | None = Field(
        default=None,
        description="best branches of some of the request's trees, if the method's drafts have scores; branches.jsonl "
        "has the target's log-probabilities",
        json_schema_extra=NO_COLUMN,
    )
    gpu: GpuTrace | None = Field(
        default=None, description="state of the GPU, if NVML is available", json_schema_extra=SPARSE
    )
    tokens: TokenTrace | None = Field(
        default=None,
        description="origins and texts of the kept tokens; None in older records",
        json_schema_extra=NO_COLUMN,
    )

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out fields added later at their defaults, so that older records keep their form."""
        written: dict[str, Any] = write(self)
        if not self.prefix_tokens:
            written.pop("prefix_tokens", None)
        if self.first_tokens == 1:
            written.pop("first_tokens", None)
        if not self.grown_from:
            written.pop("grown_from", None)
        for name in ("place", "gap_s", "waited_s", "ahead", "draft_tokens", "acceptance_histogram"):
            if getattr(self, name) is None:
                written.pop(name, None)
        return written

    @property
    def sample(self) -> str:
        """The prompt as it was sampled: one prompt at several lengths is no independent sample."""
        return self.grown_from or self.prompt_id

    @property
    def decoded_tokens(self) -> int:
        """Output tokens after the first arrival: the tokens of ``decode_s``."""
        return self.output_tokens - self.first_tokens

    @property
    def arrived_s(self) -> float:
        """When the request arrived, on the clock of its segment."""
        return self.start_s - (self.waited_s or 0.0)

    @property
    def forwards_distinct(self) -> bool:
        """Whether ``accepted_lengths`` has one entry per target forward: always true for our engine."""
        return len(self.accepted_lengths) == self.target_forwards

    @property
    def tokens_per_forward(self) -> float | None:
        """Decoded tokens divided by target forwards after prefill; None without a forward."""
        return self.decoded_tokens / self.target_forwards if self.target_forwards else None

    @property
    def arrivals_s(self) -> list[float]:
        """Seconds between two arrivals of tokens, of one token or of several at once; empty if they were not timed."""
        waits = self.gap_s or self.step_s or []
        return [wait for wait, tokens in zip(waits, self.accepted_lengths, strict=True) if tokens] if waits else []

    @property
    def tpot_s(self) -> float | None:
        """Seconds per decoded token as a user sees them; None without decoded tokens.

        ``decode_s / decoded_tokens`` at any concurrency. With several sequences it exceeds the request's share.
        """
        return self.decode_s / self.decoded_tokens if self.decoded_tokens else None

    def decode_tok_s(self, shared: bool) -> float | None:
        """Decoded tokens divided by :meth:`decoding_s`; None if that is 0."""
        seconds = self.decoding_s(shared)
        return self.decoded_tokens / seconds if seconds else None

    def decoding_s(self, shared: bool) -> float:
        """Decode seconds; if sequences share the engine (``shared``), the request's share of the steps."""
        return self.decode_share_s if self._shares(shared) else self.decode_s

    def prefill_s(self, shared: bool) -> float:
        """Seconds to the first token; if sequences share the engine (``shared``), the share of the prefill."""
        return self.prefill_share_s if self._shares(shared) else self.ttft_s

    def whole_s(self, shared: bool) -> float:
        """Seconds of prefill and decoding together."""
        return self.prefill_share_s + self.decode_share_s if self._shares(shared) else self.latency_s

    def _shares(self, shared: bool) -> bool:
        """Whether shares of the engine's time count: also under load, where times include waiting."""
        return shared or self.waited_s is not None

    @property
    def text_tokens(self) -> int:
        """Tokens of the answer's text, without the stop token and tokens of a stop string."""
        return self.output_tokens - self.stop_tail_tokens - (self.finish_reason == "stop")

    def untraced(self) -> RequestRecord:
        """Return the record without ``tokens``, which takes most of its memory and which no figure needs."""
        return self if self.tokens is None else self.model_copy(update={"tokens": None})

    def without_drafts(self) -> RequestRecord:
        """Return the record without its draft trees, which take far more memory than the kept tokens."""
        if self.tokens is None or self.tokens.drafts is None:
            return self
        tokens = self.tokens.model_copy(update={"drafts": None, "pieces": None})
        return self.model_copy(update={"tokens": tokens})


def acceptance_histogram(accepted: Sequence[int]) -> list[int]:
    """Number of drafts by accepted draft tokens, from 0 up, of drafts with these accepted tokens."""
    return [accepted.count(kept) for kept in range(max(accepted, default=-1) + 1)]


def request_key(method: str, prompt_id: str, repeat: int, turn: int = 1) -> str:
    """Build the ``request_id`` of a request."""
    return f"{method}|{prompt_id}|{repeat}" + (f"|{turn}" if turn > 1 else "")


#: Phases in the order of a step. ``draft`` and ``observe`` are the decoder's, ``build`` makes device inputs from the
#: trees, ``forward`` is the target with its sampler, ``accept`` finds the accepted path, ``commit`` keeps its KV
#: entries.
PHASES = ("draft", "build", "forward", "accept", "commit", "observe")

#: Origins of tokens that were not drafted: the first token of an answer, and the target's own next token of each step.
PREFILL, BONUS = "prefill", "bonus"
