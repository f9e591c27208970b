"""A draft head of one linear layer: the features of a token say what comes after the next one."""

from typing import Any

from torch import Tensor, nn

from specbench.decoding import BUILDERS, Drafting
from specbench.engine import HeadRows
from specbench.heads import Head, HeadConfig, HeadRounds


class ToyConfig(HeadConfig):
    @classmethod
    def for_target(cls, target: Any, **own: Any) -> "ToyConfig":
        return super().for_target(target, layers=0, taps=(1,), **own)


class ToyHead(Head):
    CONFIG = ToyConfig

    def __init__(self, config: ToyConfig) -> None:
        super().__init__(config)
        self.fc = nn.Linear(len(config.taps) * config.hidden_size, config.hidden_size, bias=False)
        self.finish()


class ToyRounds(HeadRounds):
    def read(self, rows: HeadRows) -> Tensor:
        return self.head.fc(rows.features)

    def draft(self, rows: HeadRows, found: Tensor) -> tuple[Tensor, Tensor]:
        return rows.best(self.lm_head(rows.last(found)), 3)[::-1]


def prepare(options: Any, target: Any) -> Drafting:
    head, weights = ToyHead.prepared("toy", options.head, target)
    rounds = ToyRounds(head, target, path=1, rows=0, weights=weights)
    return Drafting(rounds, lambda slot: BUILDERS["optimal"](rounds.marginals(slot), options.budget))
