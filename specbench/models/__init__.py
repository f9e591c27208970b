"""Load a model by name: weights, tokenizer, chat template and stop ids; also exports."""

import logging
from typing import TYPE_CHECKING

from specbench.common.doors import door

# Before transformers imports torchao, where it is installed, which tells of GPU code that cannot be loaded here.
for _library in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_library).setLevel(logging.ERROR)

if TYPE_CHECKING:
    from specbench.models import names as names
    from specbench.models import weights as weights
    from specbench.models.adapters import fingerprints as fingerprints
    from specbench.models.config_shape import configured_parameters as configured_parameters
    from specbench.models.config_shape import configured_shape as configured_shape
    from specbench.models.export.copies import exported as exported
    from specbench.models.export.copies import kept as kept
    from specbench.models.export.exported import Exported as Exported
    from specbench.models.export.exported import drafted as drafted
    from specbench.models.export.gguf_file import export_gguf as export_gguf
    from specbench.models.export.hf_folder import export_hf as export_hf
    from specbench.models.loaded_model import LoadedModel as LoadedModel
    from specbench.models.loader import load as load
    from specbench.models.memory import check_memory as check_memory
    from specbench.models.memory import use_huge_pages as use_huge_pages
    from specbench.models.names import CARD as CARD
    from specbench.models.names import DEFAULT_MODEL as DEFAULT_MODEL
    from specbench.models.names import DTYPES as DTYPES
    from specbench.models.names import EXPORTED as EXPORTED
    from specbench.models.names import resolve as resolve
    from specbench.models.notes import notes_on as notes_on
    from specbench.models.packed import bytes_of as bytes_of
    from specbench.models.stored import elements as elements
    from specbench.models.stored import inside as inside
    from specbench.models.template_args import parse_template_args as parse_template_args
else:
    __getattr__, __dir__ = door(__name__)
