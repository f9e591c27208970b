"""Runner: one plan to one finished folder; the only clock."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.runner.loop import Request as Request
    from specbench.runner.measuring import run as run
    from specbench.runner.plan import Plan as Plan
    from specbench.runner.prompts import prepare as prepare
    from specbench.runner.resolving import resolve as resolve
    from specbench.runner.session import Session as Session
    from specbench.runner.session import session_of as session_of
    from specbench.runner.stop import StopRule as StopRule
else:
    __getattr__, __dir__ = door(__name__)
