"""Results: what is on disk, and every figure that follows from it."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.results.comparison import compare as compare
    from specbench.results.folder import RunFolder as RunFolder
    from specbench.results.read import read_run as read_run
    from specbench.results.run import Run as Run
    from specbench.results.schema import BASELINE as BASELINE
    from specbench.results.schema import RequestRecord as RequestRecord
    from specbench.results.schema import RunConfig as RunConfig
    from specbench.results.summary import summarise as summarise
else:
    __getattr__, __dir__ = door(__name__)
