"""Training: the model's own answers, or given ones, into weights that draft better."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.training.finetuning import Teaching as Teaching
    from specbench.training.finetuning import finetune as finetune
    from specbench.training.loop.trainer import fit as fit
    from specbench.training.objectives.consistency import ConsistencyLesson as ConsistencyLesson
    from specbench.training.objectives.packing import ConsistencyCollator as ConsistencyCollator
    from specbench.training.recipe import Job as Job
    from specbench.training.recipe import WeightOptions as WeightOptions
    from specbench.training.running import train as train
else:
    __getattr__, __dir__ = door(__name__)
