"""Which parallel decoder is fastest for a model, a task and a GPU, by how much, and is its text still right.

``specbench.methods`` and ``specbench.tasks`` are symbolic links to the top-level folders of these names: so these are
importable, and the wheel has them.
"""

from typing import TYPE_CHECKING

from specbench.common import door as door

__version__ = "0.2.0"

if TYPE_CHECKING:
    from specbench.analysis import Run as Run
    from specbench.analysis import load as load
    from specbench.common import SpecbenchError as SpecbenchError
    from specbench.runner import run as run
    from specbench.sweeps import Sweep as Sweep
    from specbench.sweeps import sweep as sweep
    from specbench.training import train as train
else:
    __getattr__, __dir__ = door(__name__)
