from typing import Any

import torch
from support.toy_head.head import ToyConfig, ToyHead
from torch import Tensor

from specbench.training import HeadLesson, train_head
from specbench.training import HeadTrainingOptions as Options


class Lesson(HeadLesson):
    def forward(self, ids: Tensor, starts: Tensor, ends: Tensor) -> dict[str, Tensor]:
        features, _ = self.frozen.teach(ids, ends)
        row = torch.arange(ids.shape[1] - 2)
        learns = (row >= starts[:, None] - 1) & (row < ends[:, None] - 2)
        scores = self.frozen.scorer(self.head.fc(features[:, :-2][learns]))
        return {"loss": torch.nn.functional.cross_entropy(scores, ids[:, 2:][learns])}

    def drafts(self, features: Tensor, ids: Tensor, start: int, end: int) -> Tensor:
        return self.frozen.scorer(self.head.fc(features[0, start - 1 : end - 2])).argmax(-1, keepdim=True)


def train(options: Options, job: Any) -> dict[str, Any]:
    model = job.target.model
    config = ToyConfig.for_target(model.config)
    return train_head(options, job, ToyHead, config, lambda head: Lesson(head, model, depth=1))
