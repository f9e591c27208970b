"""What a run records of each request, versioned (DESIGN §8). Times are seconds unless the name says otherwise."""

from __future__ import annotations

import string
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from specbench.results.columns import NO_COLUMN, SPARSE, named_columns
from specbench.results.schema import Count, Figure, FinishReason, Record, Whole


class GpuTrace(Record):
    """The GPU over one request, through NVML; None is what it does not tell."""

    sm_clock_mhz: Whole | None = Field(description="when the request ended, as the memory's")
    memory_clock_mhz: Whole | None
    temperature_c: Whole | None = Field(description="the higher one of start and end")
    energy_j: Figure | None = Field(description="its even share of what the GPU consumed while it was in its slot")
    power_w: Figure | None = Field(description="mean of the whole GPU from its start to its end")
    throttled: list[str] | None = Field(
        description="what held the clocks down at its start, its end or between", json_schema_extra=NO_COLUMN
    )


class Draft(Record):
    """The tree of one step, its root left out: row 1 comes first, as in ``parents`` and ``path``."""

    ids: list[int]
    parents: list[int] | None = Field(description="row of each one's parent, 0 is the root; None: a chain")
    origins: str = Field(description="a letter per row, see TokenTrace")
    draft_only: list[int] = Field(description="rows that only generate drafts and could not be accepted")
    path: list[int] = Field(description="rows that were accepted, top down")
    scores: list[Figure | None] | None = Field(
        default=None,
        description="natural log-probability that the drafter gave each row's token under its parent, temperature 1; "
        "absent where it has none",
    )

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without scores it is written as ever."""
        written: dict[str, Any] = write(self)
        if self.scores is None:
            written.pop("scores", None)
        return written


class TokenTrace(Record):
    """How each kept token came, and which part of the text is its own: what a viewer needs, without the tokenizer.

    The i-th word of ``words`` is written as ``LETTERS[i]``. ``chars`` are of ``text + tail``: a character belongs to
    the token that completes it.
    """

    words: list[str] = Field(description="origins in order of appearance; see specbench.decoding.tree.ORIGINS")
    origins: str = Field(description="a letter per kept token; prefill, bonus, or how its draft was made")
    rows: list[int] = Field(description="tree rows of each target forward after prefill")
    chars: list[int] = Field(description="characters of each kept token")
    tail: str = Field(description="what the kept tokens say behind text: what was cut at a stop string")
    drafts: list[Draft] | None = Field(default=None, description="with --trace: what each of these forwards verified")
    pieces: dict[int, str] | None = Field(default=None, description="with --trace: text of each drafted id by itself")


#: See :class:`TokenTrace`.
LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits


class DraftedBranch(Record):
    """The best branch of one tree, as what drafted it scored it."""

    step: Count = Field(description="which target forward behind the prefill verified the tree, from 0")
    ids: list[int] = Field(min_length=1, description="below the root")
    log_probability: Figure = Field(description="that the drafter gave it, in nats, at temperature 1")


class RequestRecord(Record):
    """One prompt decoded once by one method.

    ``first_tokens + sum(accepted_lengths) == output_tokens``; our prefill emits one token, another engine may hand over
    more at once. ``*_share_s`` is the request's share of the engine's time: a step's time is split evenly over the
    sequences that it served; at concurrency 1 the shares equal ``ttft_s`` and ``decode_s``.
    """

    request_id: str = Field(
        max_length=25_000, description="method|prompt|repeat, and |turn after the first; unique in its run"
    )
    method: str = Field(max_length=1000)
    prompt_id: str = Field(max_length=10_000)
    repeat: Count
    turn: Count = Field(1, description="of a conversation, from 1")
    category: str = Field(default="", max_length=10_000)
    prompt_tokens: Count
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
    overshoot_tokens: Count = Field(description="committed behind the stop or the budget, dropped and not counted")
    stop_tail_tokens: Count = Field(description="kept tokens that lie wholly in or behind a stop string")
    first_tokens: Count = Field(
        default=1, description="kept tokens of the first arrival: of another engine they may be more than one"
    )
    accepted_lengths: list[int] = Field(
        description="kept tokens of each target forward after prefill; of another engine that does not tell its "
        "forwards apart, of each arrival after the first",
        json_schema_extra=NO_COLUMN,
    )
    tree_rows: Count = Field(description="forwarded after prefill")
    target_forwards: Count = Field(description="after prefill; 0 of another engine that does not count them")
    draft_forwards: Count
    start_s: Figure = Field(description="on the clock of its segment")
    segment: Count = Field(description="counts the stretches of uninterrupted running of one method")
    place: Count | None = Field(
        default=None,
        description="of a stateful row: which request it was since the row began empty, from 1; absent of others",
    )
    ttft_s: float
    decode_s: float
    latency_s: float
    prefill_share_s: float
    decode_share_s: float
    step_s: list[Figure] | None = Field(
        default=None,
        description="seconds of each target forward after prefill, drafting included, shared out like decode_share_s; "
        "None in records from before there were any",
        json_schema_extra=NO_COLUMN,
    )
    phases_s: dict[str, list[Figure]] | None = Field(
        default=None,
        description="with --trace: seconds of each step by phase, shared out like decode_share_s",
        json_schema_extra=NO_COLUMN,
    )
    peak_memory_bytes: Count | None = Field(
        default=None,
        description="the most that torch's allocator held on the GPU from the start of its segment to its end, weights "
        "and cache included; None on a CPU",
    )
    measures: dict[str, float] = Field(
        default_factory=dict,
        description="the method's own figures, see method.toml",
        json_schema_extra=named_columns("measure"),
    )
    branches: list[DraftedBranch] | None = Field(
        default=None,
        description="best branches of some of its trees, of methods whose drafts have scores; what the target says of "
        "them is in branches.jsonl",
        json_schema_extra=NO_COLUMN,
    )
    gpu: GpuTrace | None = Field(default=None, description="where NVML answers", json_schema_extra=SPARSE)
    tokens: TokenTrace | None = Field(
        default=None, description="None in records from before there was one", json_schema_extra=NO_COLUMN
    )

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """With one first token and without a state it is written as ever."""
        written: dict[str, Any] = write(self)
        if self.first_tokens == 1:
            written.pop("first_tokens", None)
        if self.place is None:
            written.pop("place", None)
        return written

    @property
    def decoded_tokens(self) -> int:
        """Output tokens after the first arrival: those whose decoding was timed."""
        return self.output_tokens - self.first_tokens

    @property
    def forwards_told_apart(self) -> bool:
        """Whether ``accepted_lengths`` are of forwards: always in our engine, not in every other one."""
        return len(self.accepted_lengths) == self.target_forwards

    @property
    def tokens_per_forward(self) -> float | None:
        """Decoded tokens over target forwards after prefill; None without a forward."""
        return self.decoded_tokens / self.target_forwards if self.target_forwards else None

    @property
    def tpot_s(self) -> float | None:
        """Seconds per decoded token, as its reader waits for them; None without one.

        ``decode_s / decoded_tokens`` at any concurrency: there it is longer than the request's share.
        """
        return self.decode_s / self.decoded_tokens if self.decoded_tokens else None

    def decode_tok_s(self, shared: bool) -> float | None:
        """Decoded tokens over the seconds that their decoding counts; None without any."""
        seconds = self.decoding_s(shared)
        return self.decoded_tokens / seconds if seconds else None

    def decoding_s(self, shared: bool) -> float:
        """Seconds that its decoding counts: where sequences share the engine, its share of the steps."""
        return self.decode_share_s if shared else self.decode_s

    def prefill_s(self, shared: bool) -> float:
        """Seconds that its first token counts, likewise."""
        return self.prefill_share_s if shared else self.ttft_s

    def whole_s(self, shared: bool) -> float:
        """Seconds of both together."""
        return self.prefill_share_s + self.decode_share_s if shared else self.latency_s

    @property
    def text_tokens(self) -> int:
        """Tokens of the answer's text: neither the stop token nor what belongs to a stop string."""
        return self.output_tokens - self.stop_tail_tokens - (self.finish_reason == "stop")

    def untraced(self) -> RequestRecord:
        """The record without how its tokens came, which is most of what it takes of memory and no figure needs."""
        return self if self.tokens is None else self.model_copy(update={"tokens": None})

    def without_drafts(self) -> RequestRecord:
        """The record without the trees that were verified, which take far more than the tokens that came of them."""
        if self.tokens is None or self.tokens.drafts is None:
            return self
        tokens = self.tokens.model_copy(update={"drafts": None, "pieces": None})
        return self.model_copy(update={"tokens": tokens})


def request_key(method: str, prompt_id: str, repeat: int, turn: int = 1) -> str:
    """``request_id`` of a request."""
    return f"{method}|{prompt_id}|{repeat}" + (f"|{turn}" if turn > 1 else "")


#: In the order of a step. ``draft`` and ``observe`` are the decoder's, ``build`` makes device inputs of the trees,
#: ``forward`` is the target with its sampler, ``accept`` finds the path and reads it, ``commit`` keeps its KV.
PHASES = ("draft", "build", "forward", "accept", "commit", "observe")

#: Origins of tokens that were no drafts: the first one of an answer, and the target's own next token of every step.
PREFILL, BONUS = "prefill", "bonus"
