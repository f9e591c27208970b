"""Models: a name to weights, tokenizer, chat template and stop ids."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.models.adapters import CARD as CARD
    from specbench.models.adapters import fingerprints as fingerprints
    from specbench.models.config_shape import configured_shape as configured_shape
    from specbench.models.eight_bits import bytes_of as bytes_of
    from specbench.models.loaded_model import LoadedModel as LoadedModel
    from specbench.models.loader import load as load
    from specbench.models.names import resolve as resolve
    from specbench.models.notes import notes_on as notes_on
else:
    __getattr__, __dir__ = door(__name__)
