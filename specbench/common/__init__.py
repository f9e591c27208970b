"""Common: errors, files, typed options, prompts, and the registry of methods and tasks."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.common.errors import EnvironmentRefused as EnvironmentRefused
    from specbench.common.errors import SpecbenchError as SpecbenchError
    from specbench.common.errors import UsageError as UsageError
    from specbench.common.options import Options as Options
    from specbench.common.options import option as option
    from specbench.common.prompt import Prompt as Prompt
    from specbench.common.prompt import Turn as Turn
else:
    __getattr__, __dir__ = door(__name__)
