"""Token-tree engine: one forward, one mask, one acceptance rule and one KV commit for every decoder."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.engine.buckets import scratch_cells as scratch_cells
    from specbench.engine.engine import Engine as Engine
    from specbench.engine.graphs import settle as settle
    from specbench.engine.heads.head_rounds import HeadRounds as HeadRounds
    from specbench.engine.heads.head_rows import HeadRows as HeadRows
    from specbench.engine.memory import ran_out as ran_out
    from specbench.engine.phases import Phases as Phases
    from specbench.engine.sampler import Sampling as Sampling
else:
    __getattr__, __dir__ = door(__name__)
