"""Medusa's decoder: several heads read the target's last hidden state and draft one position each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from specbench.decoding import Drafting, HeadDecoder, HeadOptions, Target, TypicalAcceptance, option
from specbench.methods.medusa.trees import CANDIDATES, TREE


class Options(HeadOptions):
    """Options of Medusa."""

    tree: Annotated[str, AfterValidator(TREE.named)] = option(
        "optimal",
        help="which paths become rows: optimal, accum-logp, chain or auto choose by the heads' scores, in each round; "
        "or a static tree: mc_sim_7b_63 and others of the released code, or a file of paths, as [[0], [1], [0, 0]]",
    )
    width: int = option(CANDIDATES, "K", "k", help="most candidates per position", ge=1, le=512)
    depth: int | None = option(None, "D", help="heads that draft, from the first on; default is all", ge=1)
    accept: Literal["exact", "typical"] = option(
        "exact",
        help="typical: above temperature 0, accept drafts that are probable enough; faster, but the texts are others "
        "than AR's and deterministic",
    )
    epsilon: float = option(0.09, help="accept=typical: probability that is always enough", gt=0, le=1)
    delta: float = option(
        0.3, help="accept=typical: probability that is enough is also delta * exp(-entropy)", gt=0, lt=1
    )


class Decoder(HeadDecoder):
    """Build a tree from the heads' scores."""

    METHOD = "medusa"

    @staticmethod
    def max_rows(options: Options) -> int:
        if options.tree == "chain" and options.depth is not None:
            return min(options.budget, 1 + options.depth)
        return options.budget

    @staticmethod
    def acceptance(options: Options) -> TypicalAcceptance | None:
        return TypicalAcceptance(options.epsilon, options.delta) if options.accept == "typical" else None

    @staticmethod
    def prepare(options: Options, target: Target) -> Drafting:
        from specbench.methods.medusa.drafting import prepare  # imports torch, which plans and lists do not need

        return prepare(options, target)
