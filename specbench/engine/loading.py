"""Learn a model's layers, make its cache, and choose code whose results equal the model's."""

from __future__ import annotations

from functools import partial

from specbench.common import SpecbenchError, UsageError
from specbench.engine import memory, memory_budget
from specbench.engine.attention.choice import Attentions
from specbench.engine.attention.interface import Calls, UnsupportedAttention
from specbench.engine.buckets import scratch_cells
from specbench.engine.cache import StaticCache
from specbench.engine.checks import declared, forward, layer
from specbench.engine.layers.code import LayerBackend
from specbench.engine.layers.recurrent import RecurrentStates
from specbench.engine.ops import TorchOps
from specbench.engine.program import Program
from specbench.engine.sampler import Sampling
from specbench.engine.slots import Slots
from specbench.engine.stepper import EagerStepper


def load_stepper(
    code: LayerBackend,
    attentions: Attentions,
    sampling: Sampling,
    slots: int,
    capacity: int,
    max_rows: int,
    positions: int | None,
    *,
    padded: bool,
) -> tuple[EagerStepper, Calls, float]:
    """Make the eager stepper of the model that ``code`` is attached to.

    Returns (stepper, the attention parameters of each layer, relative error of scores to expect when sums are added up
    in another order).

    Raises:
        UnsupportedAttention: the engine's results differ from the model's.
        TreesTooLarge: no memory for steps of trees of ``max_rows`` rows.
    """
    model, device = code.model, code.model.device
    plain, reference = Program(model, TorchOps(), positions), attentions.backend("reference")
    shapes, calls, recurrent = declared.learn_layers(plain, reference, device)
    declared.check_windows(model, calls, capacity + max_rows)
    attentions.check_shapes(shapes, calls.heads, plain=all(how.plain for how in calls.layers.values()))
    widths, free = memory.widths(model, shapes), memory.free_bytes(device)

    def assert_trees_fit() -> None:
        dense = attentions.tree == "reference"
        memory_budget.assert_trees_fit(widths, max_rows, capacity, slots, free, dense=dense)

    assert_trees_fit()
    cache = StaticCache(shapes, slots, capacity + scratch_cells(max_rows), model.dtype, device)
    if recurrent and code.compiles:
        raise UsageError("cannot compile this model's layers: some are recurrent; leave --compile out")
    if recurrent:
        cache.recurrent = RecurrentStates(recurrent, cache, widths.hidden, slots, device)
        code.hold(cache.recurrent)
    places = Slots(cache, slots, capacity)
    longest = min(capacity, positions or capacity)
    if free is not None:  # after a long text, the model's own forward copies its cache again for two branches
        longest = min(longest, (free - cache.nbytes) // max(1, 8 * int(widths.token_bytes)))
    layer.check_layers(model, shapes, calls, reference, code.detached)

    def choose_code() -> tuple[EagerStepper, Calls, float]:
        program, rounding = Program(model, attentions.ops(), positions), 0.0
        stepper = EagerStepper(plain, program, places, attentions, sampling, padded=padded)

        def check() -> None:
            nonlocal rounding
            own = partial(forward.complete, model, calls, code.detached)
            rounding = forward.check_forward(model, stepper, own)
            forward.check_far(model, longest, stepper, own)

        code.choose(cache, calls, check)
        return stepper, calls, rounding

    try:
        return choose_code()
    except Exception as error:
        stated = isinstance(error, SpecbenchError) and not isinstance(error, UnsupportedAttention)
        if stated or memory.ran_out(error) or not attentions.fall_back(error):
            raise
    assert_trees_fit()
    return choose_code()
