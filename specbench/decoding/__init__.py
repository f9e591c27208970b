"""Decoding: all that the author of a method imports, from the protocol to token trees. No torch."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.common.options import Options as Options
    from specbench.common.options import option as option
    from specbench.decoding.protocol import Context as Context
    from specbench.decoding.protocol import Decoder as Decoder
    from specbench.decoding.protocol import Method as Method
    from specbench.decoding.protocol import Target as Target
    from specbench.decoding.tree import StepResult as StepResult
    from specbench.decoding.tree import TokenTree as TokenTree
else:
    __getattr__, __dir__ = door(__name__)
