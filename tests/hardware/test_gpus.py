"""The table is consistent with itself, drivers' names find the right row, and ``--gpu`` never passes silently."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.asserting import refusal
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.hardware import environment, gpus
from specbench.hardware.gpus import GPUS, Gpu, find, identify, require, seen

MIB = 1 << 20

# (device name as drivers report it, MiB of memory as nvidia-smi reports it or None, entry)
REPORTED = [
    ("NVIDIA A100-SXM4-40GB", 40960, "a100-40gb"),
    ("A100-SXM4-40GB", 40536, "a100-40gb"),  # drivers before 470 had no vendor prefix
    ("NVIDIA A100-PCIE-40GB", 40960, "a100-40gb-pcie"),
    ("NVIDIA A100-SXM4-80GB", 81920, "a100-80gb"),
    ("NVIDIA A100 80GB PCIe", 81920, "a100-80gb-pcie"),
    ("NVIDIA A10", 23028, "a10"),
    ("NVIDIA H100 80GB HBM3", 81559, "h100-sxm"),
    ("NVIDIA H100 PCIe", 81559, "h100-pcie"),
    ("NVIDIA H100 NVL", 95830, "h100-nvl"),
    ("NVIDIA H200", 143771, "h200"),
    ("NVIDIA H200 NVL", 143771, "h200-nvl"),
    ("NVIDIA H20", 97871, "h20"),
    ("NVIDIA H20-3e", 143771, "h20-141gb"),
    ("NVIDIA H800", 81559, "h800"),
    ("NVIDIA GH200 120GB", 97871, "gh200"),
    ("NVIDIA GH200 480GB", 97280, "gh200"),
    ("NVIDIA GH200 144G HBM3e", 146831, "gh200-144gb"),
    ("NVIDIA GB10", 124550, "gb10"),
    ("NVIDIA B200", 183359, "b200"),
    ("NVIDIA B300 SXM6 AC", 275040, "b300"),
    ("NVIDIA GB200", 189471, "gb200"),
    ("NVIDIA GB300", 284208, "gb300"),
    ("NVIDIA L4", 23034, "l4"),
    ("NVIDIA L40S", 46068, "l40s"),
    ("NVIDIA GeForce RTX 3090", 24576, "rtx-3090"),
    ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090"),
    ("NVIDIA GeForce RTX 5090", 32607, "rtx-5090"),
    ("NVIDIA GeForce RTX 5080", 16303, "rtx-5080"),
    ("NVIDIA GeForce RTX 5070 Ti", 16303, "rtx-5070-ti"),
    ("NVIDIA GeForce RTX 5070", 12227, "rtx-5070"),
    ("NVIDIA GeForce RTX 5060 Ti", 16311, "rtx-5060-ti"),
    ("NVIDIA GeForce RTX 5060 Ti", 8151, "rtx-5060-ti-8gb"),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, "rtx-pro-6000"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "rtx-pro-6000-se"),
    ("AMD Instinct MI300X", 196592, "mi300x"),
    ("AMD Instinct MI300X OAM", None, "mi300x"),
    ("AMD Instinct MI325X", 262128, "mi325x"),
    ("AMD Instinct MI355X", 294896, "mi355x"),
]

# Entries whose vendor does not state a figure, or states it of more than the GPU.
UNSTATED = {
    "bf16": {"rtx-pro-6000-se", "rtx-5060-ti", "rtx-5060-ti-8gb", "gb10"},
    "fp32": {"h800"},
    "power_w": {"gh200", "gh200-144gb", "h20-141gb", "gb10"},
}

# Boards that carry the name of a table entry but not its figures.
LOOKALIKES = [
    "NVIDIA A100-SXM-64GB", "NVIDIA A10G", "NVIDIA H800 PCIe", "NVIDIA H800 NVL", "NVIDIA H20 NVL16",
    "NVIDIA L40", "NVIDIA H100",
    "NVIDIA GeForce RTX 5080 Laptop GPU", "NVIDIA GeForce RTX 5070 Ti Laptop GPU", "NVIDIA GeForce RTX 5060",
    "NVIDIA GeForce RTX 5090 D v2", "NVIDIA GB200 MIG 1g.23gb", "NVIDIA GH200 480GB MIG 1g.12gb",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 5090 D", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "Tesla T4", "",
]  # fmt: skip


def test_drivers_names_are_identified_and_lookalikes_are_not() -> None:
    for device_name, mib, name in REPORTED:
        gpu = identify(device_name, None if mib is None else mib * MIB)
        assert gpu is not None, device_name
        assert gpu.name == name
    assert {gpu.name for gpu in GPUS} == {name for _, _, name in REPORTED}, "every entry has a driver's name"
    assert [identify(device_name, None) for device_name in LOOKALIKES] == [None] * len(LOOKALIKES)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_figures_are_dense_and_plausible(gpu: Gpu) -> None:
    assert (gpu.fp32 is None) == (gpu.name in UNSTATED["fp32"])
    assert gpu.fp32 is None or 10 < gpu.fp32 < 200
    assert gpu.bf16 == gpu.fp16  # true of every part here; a sparse figure slipping into one would break it
    assert (gpu.bf16 is None) == (gpu.name in UNSTATED["bf16"])
    if gpu.bf16 is None:
        return
    # fp8 units of these parts run at twice the bf16 rate; 4 would mean that a sparse figure was copied.
    assert gpu.fp8 is None or gpu.fp8 / gpu.bf16 == pytest.approx(2.0, rel=0.02)
    # Ridge point in FLOP per byte: 70 (RTX 3090) to 420 (L40S); of both H20, whose peak was cut down alone, 31 and 37.
    # Swapped units or a sparse figure fall outside.
    ridge = gpu.bf16 * 1000 / gpu.bandwidth_gb_s
    assert 30 < ridge < 40 if gpu.name.startswith("h20-") or gpu.name == "h20" else 70 < ridge < 430


def test_auto_takes_what_is_there_and_a_true_assertion_passes() -> None:
    assert require("auto", "NVIDIA H200", 143771 * MIB) == find("h200")
    assert require("Auto", None, None) is None
    assert require("auto", "Tesla T4", 15360 * MIB) is None
    assert require("h100", "NVIDIA H100 80GB HBM3", 81559 * MIB) == find("h100-sxm")
    with pytest.raises(UsageError, check=wording):
        require("h2000", None, None)


@pytest.mark.parametrize(
    ("requested", "entry", "present", "has"),
    [
        ("b200", "b200", None, "no CUDA device (Own 5, 2 cores)"),
        ("B200", "b200", "NVIDIA H200", "'NVIDIA H200' (--gpu h200)"),
        ("h100", "h100-sxm", "NVIDIA H100 NVL", "'NVIDIA H100 NVL' (--gpu h100-nvl)"),
        ("h100", "h100-sxm", "NVIDIA GH200 480GB", "'NVIDIA GH200 480GB' (--gpu gh200)"),
        ("h100", "h100-sxm", "NVIDIA H100", "'NVIDIA H100' (not a whole device of the table)"),
    ],
)
def test_a_false_assertion_names_both(
    requested: str, entry: str, present: str | None, has: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "processor", lambda: "Own 5, 2 cores")
    assert wording(refusal(EnvironmentRefused, require, requested, present, None))


# ------------------------------------------------------------------ what the kernel's driver says

INFORMATION = """Model: \t\t {}
IRQ:   \t\t 103
GPU UUID: \t GPU-5a1f
Bus Type: \t PCIe
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A machine whose driver knows GPUs of these names; without a call it has no driver."""
    monkeypatch.setattr(gpus, "_NVIDIA", tmp_path / "nvidia")
    monkeypatch.setattr(gpus, "_DRIVERS", (tmp_path / "nvidiactl",))

    def install(*names: str) -> None:
        for number, name in enumerate(names):
            folder = tmp_path / "nvidia" / "gpus" / f"0000:0{number}:00.0"
            folder.mkdir(parents=True)
            (folder / "information").write_text(INFORMATION.format(name))

    return install


def test_the_driver_names_the_gpus(driver: Callable[..., None]) -> None:
    assert seen() == []
    driver("NVIDIA H200", "NVIDIA GeForce RTX 4090")
    assert seen() == ["NVIDIA H200", "NVIDIA GeForce RTX 4090"]


def test_the_users_first_sentence_is_answered_at_once_where_there_is_no_such_card() -> None:
    if seen() != []:
        pytest.skip("this machine has a driver for GPUs")
    code = (
        "import sys; from specbench.cli import main\n"
        "code = main('run --method jf --task humaneval --gpu b200'.split())\n"
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["3", "False"]
    assert done.stderr.startswith("error: cannot use --gpu b200: this machine has no CUDA device (")
    assert "--gpu auto" in done.stderr
    assert "--project b200" in done.stderr
    assert done.stderr.count("\n") == 1
