"""Nodes: what a step of a model launches and moves, and a prediction of its time on a card. No GPU and no weights.

Seconds of a step = nodes × seconds of one small dependent kernel + the longer of bytes / bandwidth and FLOPs / peak.
Nodes are counted on torch's meta device (:mod:`specbench.engine.nodes`), and bytes and FLOPs are the roofline's. Peak
and bandwidth were measured, or follow from the datasheet; no card copies as fast as its datasheet says. What was never
measured is :class:`Assumed`. The sum is simple: launches overlap with nothing, and every node takes as long as the next
one. :meth:`StepNodes.seconds` is that sum, for ``profile --nodes`` and for the GPU check. No torch before something is
counted.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.common import EnvironmentRefused, UsageError
from specbench.common.errors import one_line
from specbench.hardware.gpus import Gpu
from specbench.hardware.profile import datasheet
from specbench.hardware.roofline import Ceilings, Cost, ModelShape, bound_s, step_cost
from specbench.models import resolve
from specbench.models.names import Source, configs, hub_in_reach

if TYPE_CHECKING:
    from specbench.engine.nodes import MetaStep

#: Share of a datasheet's bandwidth that a copy reaches: 4.3 of an H200's 4.8 TB/s.
COPIED = 4.3 / 4.8

#: Rows of a product that our kernel computes at most, which reads a weight as fast as a copy does.
OWN_ROWS = 16


@dataclass(frozen=True)
class Assumed:
    """What a prediction assumes.

    Attributes:
        node_s: seconds from the start of one small kernel of a graph to that of the next, which waits for it.
        library: share of the copy bandwidth at which a library's product of more than :data:`OWN_ROWS` rows reads its
            weight.
        host_s: seconds of a round that the device waits for the host, where something is drafted.
    """

    node_s: float
    library: float
    host_s: float


#: What is expected, and both ends of what is thought possible: the least and the most that steps take.
EXPECTED = Assumed(2.25e-6, 0.885, 0.30e-3)
LEAST, MOST = Assumed(2.1e-6, 0.90, 0.28e-3), Assumed(2.6e-6, 0.87, 0.35e-3)
NODE_S = EXPECTED.node_s

#: Rows of the steps, and cached tokens, unless others are asked for.
ROWS, CONTEXT = (1, 16, 64), 1024

#: Cards that stand for the others where none is named and none is here.
CARDS = ("a100-80gb", "h100-sxm", "h200", "b200")

# A peak that bounds nothing, where a datasheet states none.
_NO_PEAK = sys.float_info.max

_TEMPERATURE = 0.8  # any above 0 launches the same
_TODO = "give another model, or its config.json by config:FILE.json"


def predicted_s(nodes: int, cost: Cost, ceilings: Ceilings, assumed: Assumed = EXPECTED) -> float:
    """Seconds that so many kernels take, which compute and move so much, on a device with these ceilings."""
    return nodes * assumed.node_s + bound_s(cost, ceilings)


def ceilings_of(card: Gpu, dtype: str) -> Ceilings:
    """What a card copies at and its peak for a dtype, by its datasheet; where it states no peak, FLOPs cost nothing."""
    found = datasheet(card, dtype)
    peak = found.flops_per_s if found else _NO_PEAK
    return Ceilings(bytes_per_s=1e9 * COPIED * card.bandwidth_gb_s, flops_per_s=peak)


@dataclass(frozen=True)
class StepNodes:
    """A step of ``rows`` rows of each of ``sequences``: nodes of each layer and ``outside`` of them, bytes and FLOPs.

    ``sampled``: above temperature 0; ``fused``: its layers are, else they are as transformers has them;
    ``cache_bytes``: read and written.
    """

    rows: int
    sampled: bool
    fused: bool
    layers: tuple[int, ...]
    outside: int
    weight_bytes: float
    cache_bytes: float
    flops: float
    sequences: int = 1

    @property
    def nodes(self) -> int:
        """All of them."""
        return sum(self.layers) + self.outside

    @property
    def cost(self) -> Cost:
        """What it computes and moves at least."""
        return Cost(self.flops, self.weight_bytes + self.cache_bytes)

    def seconds(self, ceilings: Ceilings, assumed: Assumed = EXPECTED) -> float:
        """Predicted, on a device with these ceilings."""
        moved = self.moved_s(ceilings, assumed)
        return self.nodes * assumed.node_s + max(moved, self.flops / ceilings.flops_per_s)

    def moved_s(self, ceilings: Ceilings, assumed: Assumed = EXPECTED) -> float:
        """Seconds in which its bytes are read."""
        slower = 1.0 if self.rows * self.sequences <= OWN_ROWS else assumed.library
        return (self.weight_bytes / slower + self.cache_bytes) / ceilings.bytes_per_s

    def computes(self, ceilings: Ceilings) -> bool:
        """Whether its FLOPs take longer than its bytes."""
        return self.flops / ceilings.flops_per_s > self.moved_s(ceilings)


@dataclass(frozen=True)
class NodeCount:
    """The steps of a model.

    Attributes:
        model, dtype: what was counted; weights and cache are of that dtype.
        context: cached tokens of each sequence.
        slots: sequences.
        held_bytes: of all weights, and of the cache at that context.
        fusions: parts of layers that are fused, as far as their modules tell.
        not_fused: the other parts, with why not.
        why_not_fused: why nothing is; empty where something is.
        steps: each with its layers as transformers has them, behind the same with fused ones where there are any, or
            what of both was asked for.
    """

    model: str
    dtype: str
    context: int
    slots: int
    held_bytes: float
    fusions: tuple[str, ...]
    not_fused: Mapping[str, str]
    why_not_fused: str
    steps: tuple[StepNodes, ...]

    def fits(self, card: Gpu) -> bool:
        """Whether a card's memory holds weights and cache."""
        return self.held_bytes <= 1e9 * card.memory_gb


def count_nodes(
    spec: str,
    rows: Sequence[int] = ROWS,
    context: int = CONTEXT,
    slots: int = 1,
    *,
    dtype: str = "bfloat16",
    revision: str | None = None,
    trust_remote_code: bool = False,
    fused: bool | None = None,
) -> NodeCount:
    """Counts the steps of a model: of each number of rows, and of the largest once more with sampling.

    Args:
        spec: see :func:`specbench.models.resolve`; no more than its configuration is looked at.
        rows: of each sequence, ascending.
        context: cached tokens of each sequence.
        slots: sequences stepped together.
        dtype: torch's name of the weights' and the cache's.
        trust_remote_code: run the Python that a folder or repository brings.
        fused: count fused layers alone, or alone those that transformers has; default is both.

    Raises:
        UsageError: no such model, no configuration of a causal LM, or one that the engine does not run.
        EnvironmentRefused: there is no triton, or the hub is out of reach.
    """
    source = resolve(spec)
    if importlib.util.find_spec("triton") is None:
        raise EnvironmentRefused(
            "nodes are launches of Triton kernels, and triton is not installed; pip install triton"
        )
    import torch

    from specbench.engine import scratch_cells
    from specbench.engine.nodes import MetaStep
    from specbench.profiling.shape import shape_of

    config = _config(source, revision, trust_remote_code)
    reach = context + rows[-1]
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if isinstance(positions, int) and reach > positions:
        raise UsageError(
            f"{source.name} takes {positions} positions: with {rows[-1]} rows, give --contexts of at most "
            f"{positions - rows[-1]}"
        )
    model = _model(source, config, getattr(torch, dtype), trust_remote_code)
    capacity = context + scratch_cells(rows[-1])
    steps: list[StepNodes] = []
    for wanted in (False, True) if fused is None else (fused,):  # first as they are, before its layers are others
        meta = MetaStep(model, slots=slots, capacity=capacity, fused=wanted, reach=reach)
        shape = shape_of(meta)
        if bool(meta.fusions) == wanted:
            steps += _steps(meta, shape, rows, context, slots, fused=wanted)
    return NodeCount(
        model=source.name,
        dtype=dtype,
        context=context,
        slots=slots,
        held_bytes=shape.parameters * shape.weight_bytes + slots * context * shape.token_bytes,
        fusions=meta.fusions,
        not_fused=meta.not_fused,
        why_not_fused=meta.why_not_fused,
        steps=tuple(sorted(steps, key=lambda step: (step.sampled, step.rows, not step.fused))),
    )


def _steps(
    meta: MetaStep, shape: ModelShape, rows: Sequence[int], context: int, slots: int, *, fused: bool
) -> list[StepNodes]:
    """The steps of a model whose layers are as they are at the moment."""
    from specbench.engine import Sampling
    from specbench.engine.step import Kind

    without_cache = shape.model_copy(update={"attention": ()})
    found: list[StepNodes] = []
    for count, sampling in [*((count, Sampling()) for count in rows), (rows[-1], Sampling(_TEMPERATURE))]:
        kind = Kind(sampling, attention="triton", tall=meta.tall(count))
        nodes = meta.nodes(count * slots, kind, again=bool(found))
        cost, weights = step_cost(shape, count, context, slots), step_cost(without_cache, count, context, slots)
        found.append(
            StepNodes(
                rows=count,
                sampled=not sampling.greedy,
                fused=fused,
                layers=tuple(map(len, nodes.of_layers())),
                outside=len(nodes.others()),
                weight_bytes=weights.bytes,
                cache_bytes=cost.bytes - weights.bytes,
                flops=cost.flops,
                sequences=slots,
            )
        )
    return found


def as_data(count: NodeCount, cards: Sequence[Gpu]) -> dict[str, Any]:
    """A count and its predictions as JSON has them."""
    return {
        "predicted": True,
        "model": count.model,
        "dtype": count.dtype,
        "context": count.context,
        "slots": count.slots,
        "assumed_node_s": NODE_S,
        "held_bytes": count.held_bytes,
        "fusions": [*count.fusions],
        "not_fused": dict(count.not_fused),
        "why_not_fused": count.why_not_fused,
        "steps": [
            {
                "rows": step.rows,
                "sampled": step.sampled,
                "fused": step.fused,
                "nodes_of_layers": [*step.layers],
                "nodes_outside": step.outside,
                "nodes": step.nodes,
                "weight_bytes": step.weight_bytes,
                "cache_bytes": step.cache_bytes,
                "flops": step.flops,
                "predicted_ms": {
                    card.name: 1e3 * step.seconds(ceilings_of(card, count.dtype)) if count.fits(card) else None
                    for card in cards
                },
                "predicted_ms_between": {
                    card.name: [1e3 * step.seconds(ceilings_of(card, count.dtype), each) for each in (LEAST, MOST)]
                    for card in cards
                    if count.fits(card)
                },
                "bound_by_flops_on": [card.name for card in cards if step.computes(ceilings_of(card, count.dtype))],
            }
            for step in count.steps
        ],
    }


def _config(source: Source, revision: str | None, trust: bool) -> Any:
    """The configuration of what a source names; an adapter's is its base's."""
    source = source.base or source
    if revision and source.kind != "hub":
        raise UsageError(f"--revision goes with a hub id, which {source.name} is not")
    known = source.kind == "gguf" and configs().get(source.name)  # an alias's comes with the package
    if source.kind == "gguf" and not known:
        raise UsageError(
            f"{source.shown} would have to be unpacked for its configuration; give the model's folder or hub id, or "
            "its config.json by config:FILE.json"
        )
    from transformers import AutoConfig
    from transformers.utils import logging

    from specbench.models.checkpoint import check, read_config

    logging.set_verbosity_error()
    try:
        if source.kind in ("config", "gguf"):
            return AutoConfig.for_model(**read_config(Path(known or source.location)))
        if source.kind == "folder":
            check(Path(source.location))
        here = source.kind == "folder" or not hub_in_reach()
        return AutoConfig.from_pretrained(
            source.location, revision=revision, local_files_only=here, trust_remote_code=trust
        )
    except (UsageError, EnvironmentRefused):
        raise
    except Exception as error:  # transformers lets through whatever a file makes of it
        raise _explained(source, error, trust) from error


def _model(source: Source, config: Any, dtype: Any, trust: bool) -> Any:
    """The model of a configuration, without memory."""
    import torch
    from transformers import AutoModelForCausalLM

    if getattr(config, "quantization_config", None):
        raise UsageError(f"{source.shown} has packed weights, whose kernels are not counted; {_TODO}")
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=trust)
    except Exception as error:  # as above
        raise _explained(source, error, trust) from error
    return model.eval().requires_grad_(False)


def _explained(source: Source, error: Exception, trust: bool) -> UsageError | EnvironmentRefused:
    """One line for what went wrong with a configuration."""
    if not trust and "trust_remote_code" in str(error):
        return UsageError(
            f"{source.shown} does not load without code of its own; --trust-remote-code runs it here, with all that "
            "you may do: read it first, or give another model"
        )
    reason = one_line(str(error), 160) or type(error).__name__
    if source.kind == "hub" and isinstance(error, OSError):
        return EnvironmentRefused(
            f"the configuration of {source.location} cannot be had from the hub ({reason}); give a local folder, or "
            "check name and network"
        )
    return UsageError(f"{source.shown} is no configuration of a causal LM: {reason}; {_TODO}")
