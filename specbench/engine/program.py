"""Device side of a step: from packed trees to a packed outcome, without a host read in between.

The same code runs eagerly on exact shapes and under capture on the shapes of a bucket.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from specbench.decoding import COMPUTED, TypicalAcceptance
from specbench.engine import pack
from specbench.engine.attention.interface import Backend, Calls, UnsupportedAttention, Visibility
from specbench.engine.buckets import ROW_BUCKETS
from specbench.engine.cache import StaticCache
from specbench.engine.layers.recurrent import CACHE_NAMES
from specbench.engine.layout import Group, Layout
from specbench.engine.logits.processors import TextRows, processed
from specbench.engine.ops import Ancestry, Ops, typical_next
from specbench.engine.sampler import Sampling, perturbed


def decoder_layers(model: Any) -> list[nn.Module]:
    """Return the modules of each ModuleList whose length equals the number of the model's layers."""
    count = model.config.get_text_config().num_hidden_layers
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    return [layer for modules in lists for layer in modules]


def base_model(model: Any) -> Any:
    """Return the model without its LM head."""
    base = model.base_model
    # Llama 4's names no attribute of the class that has the LM head, so transformers returns the whole model.
    return model.model if base is model and isinstance(getattr(model, "model", None), nn.Module) else base


def tap_points(model: Any) -> list[nn.Module]:
    """Return the modules whose outputs can be tapped: each decoder layer, then the base model.

    The base model's output is what the LM head reads: that of the last layer after the final norm.
    """
    return [*decoder_layers(model)[: model.config.get_text_config().num_hidden_layers], base_model(model)]


@contextmanager
def tapped(points: Sequence[nn.Module], taps: Sequence[int]) -> Iterator[list[Tensor]]:
    """Collect outputs [S, rows, hidden size] of the :func:`tap_points` ``taps``, in that order, from the next forward.

    ``output_hidden_states`` is not used: transformers implements it with hooks that it never removes, some of them
    inside the layers, where each hook costs every later step a call and breaks the layer's torch.compile graph.
    """
    found: dict[int, Tensor] = {}
    outputs: list[Tensor] = []

    def keeper(layer: int) -> Any:
        def keep(_: nn.Module, __: Any, output: Any) -> None:
            found[layer] = output if isinstance(output, Tensor) else output[0]

        return keep

    handles = [points[layer].register_forward_hook(keeper(layer)) for layer in set(taps)]
    try:
        yield outputs
        outputs += [found[layer] for layer in taps]
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _all_rows(base: nn.Module | None) -> Iterator[None]:
    """Hide ``logits_to_keep`` from the base model (without LM head), so that it runs all rows; None needs no hook."""
    if base is None:
        yield
        return

    def unasked(_: nn.Module, args: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {name: value for name, value in named.items() if name != "logits_to_keep"}

    handle = base.register_forward_pre_hook(unasked, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


_LOGIT_ROWS = ROW_BUCKETS[-1]  # most rows whose logits are in memory at the same time

MakeBackend = Callable[[Visibility], Backend]
Mark = Callable[[str], None]


def unmarked(phase: str) -> None:
    """Do nothing: the stopwatch of a step that is not traced."""


@dataclass(frozen=True)
class StepKind:
    """Everything but the shape that decides what a step computes; every kind has its own graphs.

    Attributes:
        forced: whether some computed next tokens may be replaced.
        tall: whether attention uses tiles of many rows of a sequence rather than of about one row.
        probabilities: whether to return the distribution of each row's next token; in greedy decoding at temperature 1.
        acceptance: rule that accepts drafts instead of exact acceptance; only above temperature 0.
        fill: None for trees. For passes over masked positions the token id that they never predict, -1 to allow all;
            ``top_k`` is then 2 with entropies, else 1.
    """

    sampling: Sampling
    top_k: int = 0
    taps: tuple[int, ...] = ()
    forced: bool = False
    attention: str = "reference"
    tall: bool = True
    probabilities: bool = False
    acceptance: TypicalAcceptance | None = None
    fill: int | None = None


class Computed(NamedTuple):
    """Outputs of a step on the device. N rows, S slots.

    Attributes:
        outcome: int32 [shape.width_out(kind.top_k)].
        hidden: with tapped layers, hidden states [head + N, taps × hidden size]: first the rows of the head, then each
            slot's rows along its path.
        probabilities: if requested, float32 [N, V]: distribution of the next token after each row of the trees.
    """

    outcome: Tensor
    hidden: Tensor | None = None
    probabilities: Tensor | None = None


class Program:
    """Run a model over the rows of token trees.

    ``positions``: number of positions the model has; rows after the last position get the last one, None is no limit.
    ``vocabulary``: token ids must be less than this.
    """

    def __init__(self, model: Any, ops: Ops, positions: int | None = None) -> None:
        self._model = model
        self.vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self._last = None if positions is None else positions - 1
        self._points = tap_points(model)
        # A model whose last layers store no keys and values may run them only for the rows whose logits are kept: its
        # attention and the tapped outputs would then have fewer rows than the step.
        base = base_model(model)
        drops = base is not model and "logits_to_keep" in inspect.signature(base.forward).parameters
        self._drops_rows = base if drops else None
        names = [name for name in CACHE_NAMES if name in inspect.signature(model.forward).parameters]
        if not names:
            raise UnsupportedAttention("this model has no cache that can be passed to its forward")
        self._cache_name = names[0]
        self.ops = ops

    @torch.inference_mode()
    def run(
        self,
        packed: Tensor,
        shape: pack.Shape,
        kind: StepKind,
        cache: StaticCache,
        backend: MakeBackend,
        *,
        groups: tuple[Group, ...] | None = None,
        head: Tensor | None = None,
        commit: bool = True,
        mark: Mark = unmarked,
        texts: Sequence[TextRows] = (),
    ) -> Computed:
        """Run one forward over the trees of some slots.

        ``packed``: int32 [shape.width_in] on the device; ``groups``: groups of the layout if the host knows them, None
        under capture; ``head``: int64 [H], prompt tokens before the root, in a prefill of one slot; ``commit``: whether
        to move the KV of accepted rows here rather than in the caller; ``texts``: the text before each tree, if the
        sampling needs it.
        """
        fields = pack.split(packed, shape, groups)
        layout = fields.layout
        ancestry = self.ops.ancestry(fields.parents, layout)
        lengths = fields.lengths if head is None else fields.lengths + len(head)
        positions = (layout.of_rows(lengths) + ancestry.depth)[None] + 1
        with self._forward(fields, ancestry, cache, backend, head, mark, kind.taps) as (logits, outputs):
            chosen, row = [], 0
            for some in logits:
                if kind.sampling.processes:
                    some = processed(some, kind.sampling, texts, row)
                chosen.append(self._choose(some, positions[:, row : row + some.shape[1]], kind))
                row += some.shape[1]
        hidden = torch.cat(outputs, dim=-1) if kind.taps else None
        next_token, top, probabilities = _joined(chosen)
        if kind.acceptance is not None:
            assert probabilities is not None
            tree = fields.tokens, fields.parents, fields.accept, ancestry.depth, layout
            next_token = typical_next(kind.acceptance, probabilities[0], *tree)[None].to(next_token.dtype)
            probabilities = probabilities if kind.probabilities else None
        if kind.forced:
            next_token = torch.where(fields.forced == COMPUTED, next_token, fields.forced)
        mark("forward")
        count, path, bonus = self.ops.accept(
            fields.tokens, fields.parents, fields.accept, ancestry, next_token[0], layout
        )
        if commit:
            self.ops.commit(cache.buffers, layout, lengths, count, path)
        if hidden is not None:
            hidden = _along(hidden[0], path, layout)
        outcome = pack.join(next_token[0], path, count, bonus, top)
        return Computed(outcome, hidden, None if probabilities is None else probabilities[0])

    @torch.inference_mode()
    def fill(
        self,
        packed: Tensor,
        shape: pack.Shape,
        kind: StepKind,
        cache: StaticCache,
        backend: MakeBackend,
        *,
        groups: tuple[Group, ...] | None = None,
        outputs: int | None = None,
        mark: Mark = unmarked,
    ) -> Computed:
        """Run one forward over masked positions; arguments as of :meth:`run`.

        ``outputs``: the rows, counted from the end, whose predictions are computed; None is all.
        """
        fields = pack.split(packed, shape, groups)
        layout, sees, positions = fields.layout, fields.parents, fields.accept.long()
        text, ancestry = self.ops.spans(sees, layout)
        see = Visibility(layout, text.to(torch.int32), ancestry.depth, ancestry.rows, fields.lengths)
        kept = outputs or len(positions)
        found, row = [], len(positions) - kept
        with self._pass(fields.tokens, positions, sees, fields.lengths, see, kept, cache, backend, mark) as (logits, _):
            for some in logits:
                found.append(self._confident(some, positions[None, row : row + some.shape[1]] + 1, kind))
                row += some.shape[1]
        mark("forward")
        tokens, scores = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Computed(pack.fill_outcome(shape, tokens, scores))

    def _confident(self, logits: Tensor, positions: Tensor, kind: StepKind) -> tuple[Tensor, Tensor]:
        """Predict the tokens of rows with ``logits`` [1, n, V]: (tokens [n], float32 [n, 1 or 2]) for
        :func:`~specbench.engine.pack.fill_outcome`."""
        if kind.fill is not None and kind.fill >= 0:
            logits = logits.clone()
            logits[
                :, :, kind.fill
            ] = -torch.inf  # a view and a number: an index on the host would be copied in a capture
        kept = self.ops.filtered(logits, kind.sampling)
        # The noise of a position is the same in every pass, so that a token changes only if its distribution does.
        greedy = kind.sampling.greedy
        tokens = kept.argmax(-1) if greedy else self.ops.draw(kept.clone(), positions, kind.sampling)
        wide = kept.float()
        logs = wide.gather(2, tokens.long()[:, :, None]) - wide.logsumexp(-1, keepdim=True)
        scores = [logs.exp()]
        if kind.top_k == 2:
            scores.append(torch.special.entr(wide.softmax(-1)).sum(-1, keepdim=True))
        return tokens[0].to(torch.int32), torch.cat(scores, dim=-1)[0]

    @torch.inference_mode()
    def logits(
        self,
        packed: Tensor,
        shape: pack.Shape,
        cache: Any,
        backend: MakeBackend,
        *,
        groups: tuple[Group, ...] | None = None,
        calls: Calls | None = None,
    ) -> Tensor:
        """Logits [N, V], without choosing tokens and without a commit; for the load-time checks."""
        fields = pack.split(packed, shape, groups)
        ancestry = self.ops.ancestry(fields.parents, fields.layout)
        with self._forward(fields, ancestry, cache, backend, None, unmarked, calls=calls) as (logits, _):
            return torch.cat(list(logits), dim=1)[0]

    @contextmanager
    def _forward(
        self,
        fields: pack.Fields,
        ancestry: Ancestry,
        cache: Any,
        backend: MakeBackend,
        head: Tensor | None,
        mark: Mark,
        taps: tuple[int, ...] = (),
        calls: Calls | None = None,
    ) -> Iterator[tuple[LogitChunks, list[Tensor]]]:
        """Yield (logits [1, N, V] in chunks, tapped layers [1, head + N, hidden size]).

        The list of tapped layers is filled when the context ends.
        """
        tokens, parents, layout = fields.tokens.long(), fields.parents, fields.layout
        kept, lead = len(tokens), 1
        if head is not None:
            lead += len(head)
            tokens, parents, ancestry, layout = _prepend_prompt(head, tokens, parents, ancestry, layout)
        positions = layout.of_rows(fields.lengths) + ancestry.depth
        see = Visibility(layout, fields.lengths, ancestry.depth, ancestry.rows)
        with self._pass(
            tokens, positions, parents, fields.lengths, see, kept, cache, backend, mark, taps, calls, lead
        ) as found:
            yield found

    @contextmanager
    def _pass(
        self,
        tokens: Tensor,
        positions: Tensor,
        parents: Tensor,
        starts: Tensor,
        see: Visibility,
        kept: int,
        cache: Any,
        backend: MakeBackend,
        mark: Mark,
        taps: tuple[int, ...] = (),
        calls: Calls | None = None,
        lead: int = 1,
    ) -> Iterator[tuple[LogitChunks, list[Tensor]]]:
        """Run the model over rows that are stored after ``starts`` [S] cells; yield the logits of the last ``kept``."""
        if self._last is not None:
            positions = positions.clamp(max=self._last)
        cache.aim(see.layout, starts, self.ops, positions, parents, lead=lead)
        step = backend(see)
        mark("build")
        arguments = {
            "input_ids": tokens.long()[None],
            "position_ids": positions[None].long(),
            self._cache_name: cache,
            "use_cache": True,
            "step": step,
            "calls": calls,
        }
        with tapped(self._points, taps) as outputs, _all_rows(self._drops_rows):
            yield LogitChunks(self._model, arguments, kept), outputs

    def _choose(self, logits: Tensor, positions: Tensor, kind: StepKind) -> Chosen:
        """Choose the next token of every row from logits [1, n, V], with top-k or probabilities if requested."""
        sampling, shares = kind.sampling, kind.probabilities or kind.acceptance is not None
        if not kind.top_k and not shares:
            return Chosen(self.ops.choose(logits, positions, sampling))
        kept = self.ops.filtered(logits, sampling)
        probabilities = kept.float().softmax(-1) if shares else None
        if not kind.top_k:  # with kernels, where available, like steps without probabilities
            return Chosen(self.ops.draw(kept, positions, sampling), probabilities=probabilities)
        chosen = perturbed(kept, positions, sampling)
        best = chosen.topk(kind.top_k, dim=-1)
        return Chosen(chosen.argmax(-1), (best.values, best.indices), probabilities)


class LogitChunks:
    """Logits of a forward in chunks of rows: the logits of thousands of rows are larger than the weights.

    The layers run once. For each further chunk the model's own forward runs on their stored output, so that its scaling
    or capping of logits still applies.
    """

    def __init__(self, model: Any, arguments: Mapping[str, Any], kept: int) -> None:
        self._model, self._arguments = model, arguments
        self._rows = range(arguments["input_ids"].shape[1])[-kept:]

    def __iter__(self) -> Iterator[Tensor]:
        """Yield logits [1, up to 512, V], in the order of the rows."""
        if len(self._rows) <= _LOGIT_ROWS:
            yield self._model(**self._arguments, logits_to_keep=len(self._rows)).logits
            return
        base, found = base_model(self._model), []
        hook = base.register_forward_hook(lambda *given: found.append(given[-1]))
        device = self._arguments["input_ids"].device
        try:
            for start in range(self._rows.start, self._rows.stop, _LOGIT_ROWS):
                rows = torch.arange(start, min(start + _LOGIT_ROWS, self._rows.stop), device=device)
                yield self._model(**self._arguments, logits_to_keep=rows).logits
                base.__dict__["forward"] = lambda *_, **__: found[0]
        finally:
            base.__dict__.pop("forward", None)
            hook.remove()


class Chosen(NamedTuple):
    """``next_token`` [1, n] of n rows; ``top``: (scores, ids) [1, n, k]; ``probabilities``: float32 [1, n, V]."""

    next_token: Tensor
    top: tuple[Tensor, Tensor] | None = None
    probabilities: Tensor | None = None


def _joined(chosen: Sequence[Chosen]) -> Chosen:
    """Concatenate the choices of all chunks."""
    if len(chosen) == 1:
        return chosen[0]
    tops = [each.top for each in chosen if each.top is not None]
    top = (torch.cat([best for best, _ in tops], dim=1), torch.cat([ids for _, ids in tops], dim=1)) if tops else None
    parts = [each.probabilities for each in chosen if each.probabilities is not None]
    return Chosen(
        torch.cat([each.next_token for each in chosen], dim=1), top, torch.cat(parts, dim=1) if parts else None
    )


def _along(hidden: Tensor, path: Tensor, layout: Layout) -> Tensor:
    """Reorder the trees' rows by ``path`` [N]; rows of a prompt's head stay in front."""
    before = len(hidden) - len(path)
    rows = torch.where(layout.real, layout.of_rows(layout.first) + path, torch.arange(len(path), device=path.device))
    return torch.cat([hidden[:before], hidden[before + rows]])


def _prepend_prompt(
    head: Tensor, tokens: Tensor, parents: Tensor, ancestry: Ancestry, layout: Layout
) -> tuple[Tensor, Tensor, Ancestry, Layout]:
    """Put the rows of a prompt in front of those of the tree under its last token."""
    before, rows = len(head), len(tokens)
    chain = torch.arange(-1, before, dtype=parents.dtype, device=parents.device).clamp(min=0)  # the root's is the last
    parents = torch.cat([chain, before + parents[1:]])
    # Pointer jumping over a thousand rows is not needed: a prompt is a chain that every tree row sees.
    reach = torch.ones(before + rows, before + rows, dtype=torch.bool, device=head.device).tril_()
    reach[before:, before:] = ancestry.rows
    depth = torch.cat([torch.arange(before, device=head.device), before + ancestry.depth])
    assert layout.groups is not None
    (group,) = layout.groups
    assert group.extent is not None
    group = group._replace(rows=slice(0, before + rows), extent=group.extent + before, exact=False)
    longer = replace(
        layout,
        slot=torch.cat([layout.slot[:1].expand(before), layout.slot]),
        count=torch.where(layout.count > 0, layout.count + before, 0),
        groups=(group,),
    )
    return torch.cat([head, tokens]), parents, Ancestry(depth, reach), longer
