"""Datasheet figures of GPUs, and the check that the requested GPU is present.

All figures are the vendor's peaks for one GPU, dense (not with 2:4 sparsity, which would double the tensor figures).
They are upper limits for the roofline; a device under a power limit does not reach them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from specbench.common import EnvironmentRefused, unknown_name
from specbench.hardware import environment


@dataclass(frozen=True)
class Gpu:
    """One GPU model; variants with other bandwidth, peaks or power are separate entries.

    Attributes:
        aliases: other spellings that :func:`find` accepts; case, spaces, ``-`` and ``_`` never matter.
        match: regular expression for the driver's whole device name without the vendor prefix. It must match the whole
            name, because names of slices and cut-down boards (MIG, NVL, D, Ti, Laptop) contain that of the full part.
        bandwidth_gb_s: device memory bandwidth, 10⁹ bytes per second.
        bf16, fp16, fp8: dense matrix peak in TFLOP/s with fp32 accumulation (what PyTorch uses); None if the device has
            no such unit or the vendor states no figure.
        fp32: peak of the ordinary fp32 units in TFLOP/s, not of TF32.
        power_w: default power limit of the board in watts: TDP, TGP or TBP as the vendor calls it, the upper end of a
            range; None if the vendor states none for the GPU alone.
    """

    name: str
    aliases: tuple[str, ...]
    match: str
    bandwidth_gb_s: float
    memory_gb: float
    bf16: float | None
    fp16: float | None
    fp8: float | None
    fp32: float | None
    power_w: float | None


GPUS: tuple[Gpu, ...] = (
    # NVIDIA A100 Tensor Core GPU datasheet (nvidia.com/en-us/data-center/a100). The PCIe and SXM boards with 40 GB
    # differ only in power, those with 80 GB also in bandwidth.
    Gpu("a100-40gb", ("a100-sxm4-40gb",), r"A100-SXM4-40GB", 1555, 40, 312, 312, None, 19.5, 400),
    Gpu("a100-40gb-pcie", ("a100-pcie-40gb",), r"A100-PCIE-40GB", 1555, 40, 312, 312, None, 19.5, 250),
    Gpu("a100-80gb", ("a100-sxm", "a100-sxm4-80gb"), r"A100-SXM4-80GB", 2039, 80, 312, 312, None, 19.5, 400),
    Gpu("a100-80gb-pcie", ("a100-pcie-80gb",), r"A100 80GB PCIe", 1935, 80, 312, 312, None, 19.5, 300),
    # NVIDIA A10 Tensor Core GPU datasheet (nvidia.com/en-us/data-center/products/a10-gpu): prints dense | sparse.
    Gpu("a10", (), r"A10", 600, 24, 125, 125, None, 31.2, 150),
    # NVIDIA H100 Tensor Core GPU Architecture whitepaper, table of H100 SXM5 and H100 PCIe: it prints the dense
    # figures; the datasheet (nvidia.com/en-us/data-center/h100) prints their doubles "with sparsity".
    Gpu("h100-sxm", ("h100", "h100-sxm5", "h100-80gb"), r"H100 80GB HBM3", 3350, 80, 989.4, 989.4, 1978.9, 66.9, 700),
    Gpu("h100-pcie", (), r"H100 PCIe", 2039, 80, 756, 756, 1513, 51.2, 350),
    # The same datasheet, column H100 NVL, one GPU of the pair; tensor figures halved, since they are "with sparsity".
    Gpu("h100-nvl", ("h100-94gb",), r"H100 NVL", 3900, 94, 835.5, 835.5, 1670.5, 60, 400),
    # NVIDIA H200 Tensor Core GPU datasheet (nvidia.com/en-us/data-center/h200), columns H200 SXM and H200 NVL; tensor
    # figures halved.
    Gpu("h200", ("h200-sxm",), r"H200", 4800, 141, 989.5, 989.5, 1979, 67, 700),
    Gpu("h200-nvl", (), r"H200 NVL", 4800, 141, 835.5, 835.5, 1670.5, 60, 600),
    # NVIDIA H800 GPU datasheet, column H800 SXM, tensor figures halved; NVIDIA removed it from its site, but resellers
    # have it. The FP32 peak was not looked up.
    Gpu("h800", ("h800-sxm",), r"H800", 3350, 80, 989.5, 989.5, 1979, None, 700),
    # NVIDIA GH200 Grace Hopper Superchip datasheet (nvidia.com/en-us/data-center/grace-hopper-superchip), column GH200:
    # prints sparse | dense. Drivers name the module by its CPU's memory, 120 or 480 GB; the GPU has 96 GB of HBM3 in
    # both. The stated power is that of CPU, GPU and memory together.
    Gpu("gh200", ("gh200-96gb", "gh200-480gb"), r"GH200 (120|480)GB", 4000, 96, 990, 990, 1979, 67, None),
    Gpu("gh200-144gb", ("gh200-hbm3e",), r"GH200 144G HBM3e", 4900, 144, 990, 990, 1979, 67, None),
    # NVIDIA HGX H20 datasheet, which is not on NVIDIA's site but on those of server vendors; dense figures.
    Gpu("h20", ("h20-96gb",), r"H20", 4000, 96, 148, 148, 296, 44, 400),
    # The H20 with 141 GB, as server vendors list it: same peaks as the other H20. Its power was not looked up.
    Gpu("h20-141gb", ("h20-3e",), r"H20-3e", 4800, 141, 148, 148, 296, 44, None),
    # NVIDIA DGX B200 datasheet (nvidia.com/en-us/data-center/dgx-b200) for memory and its bandwidth, NVIDIA HGX
    # platform page (nvidia.com/en-us/data-center/hgx) for the peaks; totals of 8 GPUs, sparse ones halved. Power:
    # NVIDIA Blackwell datasheet, HGX B200.
    Gpu("b200", ("b200-sxm",), r"B200", 8000, 180, 2250, 2250, 4500, 75, 1000),
    # NVIDIA HGX platform page, HGX B300 column, totals as for the B200; memory and bandwidth from the NVIDIA developer
    # blog "Inside NVIDIA Blackwell Ultra". Power: NVIDIA Blackwell Ultra datasheet, HGX B300.
    Gpu("b300", ("b300-sxm",), r"B300( SXM6( AC)?)?", 8000, 288, 2250, 2250, 4500, 75, 1100),
    # NVIDIA GB200 NVL72 and GB300 NVL72 pages (nvidia.com/en-us/data-center/gb200-nvl72 and gb300-nvl72): totals of 72
    # GPUs, sparse ones halved; GB300 memory as for the B300. Power: the Blackwell and Blackwell Ultra datasheets.
    Gpu("gb200", ("gb200-nvl72",), r"GB200", 8000, 186, 2500, 2500, 5000, 80, 1200),
    Gpu("gb300", ("gb300-nvl72",), r"GB300", 8000, 288, 2500, 2500, 5000, 80, 1400),
    # NVIDIA L4 Tensor Core GPU datasheet (nvidia.com/en-us/data-center/l4), tensor figures halved.
    Gpu("l4", (), r"L4", 300, 24, 121, 121, 242.5, 30.3, 72),
    # NVIDIA L40S datasheet (nvidia.com/en-us/data-center/l40s): prints dense | sparse.
    Gpu("l40s", (), r"L40S", 864, 48, 362.05, 362.05, 733, 91.6, 350),
    # NVIDIA Ampere GA102 GPU Architecture whitepaper, GeForce RTX 3090 table, rows "with FP32 Accumulate".
    Gpu("rtx-3090", ("3090", "geforce-rtx-3090"), r"GeForce RTX 3090", 936, 24, 71, 71, None, 35.6, 350),
    # NVIDIA Ada GPU Architecture whitepaper, GeForce RTX 4090 table, rows "with FP32 Accumulate".
    Gpu("rtx-4090", ("4090", "geforce-rtx-4090"), r"GeForce RTX 4090", 1008, 24, 165.2, 165.2, 330.3, 82.6, 450),
    # NVIDIA RTX Blackwell GPU Architecture whitepaper, GeForce RTX 5090 table, rows "with FP32 Accumulate".
    Gpu("rtx-5090", ("5090", "geforce-rtx-5090"), r"GeForce RTX 5090", 1792, 32, 209.5, 209.5, 419, 104.8, 575),
    # The same whitepaper, tables of GeForce RTX 5080, 5070 Ti and 5070, the same rows.
    Gpu("rtx-5080", ("5080", "geforce-rtx-5080"), r"GeForce RTX 5080", 960, 16, 112.6, 112.6, 225.1, 56.3, 360),
    Gpu("rtx-5070-ti", ("5070-ti",), r"GeForce RTX 5070 Ti", 896, 16, 87.9, 87.9, 175.8, 43.9, 300),
    Gpu("rtx-5070", ("5070", "geforce-rtx-5070"), r"GeForce RTX 5070", 672, 12, 61.7, 61.7, 123.5, 30.9, 250),
    # NVIDIA GeForce RTX 5060 Ti specifications; the whitepaper is older, and no other source states tensor figures with
    # FP32 accumulation. Both memory sizes have the same device name.
    Gpu("rtx-5060-ti", ("rtx-5060-ti-16gb",), r"GeForce RTX 5060 Ti", 448, 16, None, None, None, 23.7, 180),
    Gpu("rtx-5060-ti-8gb", (), r"GeForce RTX 5060 Ti", 448, 8, None, None, None, 23.7, 180),
    # NVIDIA DGX Spark hardware page (docs.nvidia.com/dgx/dgx-spark) for memory and its bandwidth, which the CPU shares;
    # NVIDIA at Hot Chips 2025 for FP32. The only stated tensor figure is FP4 with sparsity, and the stated power is
    # that of CPU and GPU together.
    Gpu("gb10", ("dgx-spark",), r"GB10", 273, 128, None, None, None, 31, None),
    # NVIDIA RTX Blackwell PRO GPU Architecture whitepaper, RTX PRO 6000 Workstation Edition, the same rows.
    Gpu(
        "rtx-pro-6000",
        ("rtx-pro-6000-blackwell", "rtx-pro-6000-workstation"),
        r"RTX PRO 6000 Blackwell Workstation Edition",
        bandwidth_gb_s=1792,
        memory_gb=96,
        bf16=503.8,
        fp16=503.8,
        fp8=1007.6,
        fp32=126,
        power_w=600,
    ),
    # NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet. Its tensor figures have only one digit and are not used.
    Gpu(
        "rtx-pro-6000-se",
        ("rtx-pro-6000-server", "rtx-pro-6000-blackwell-server"),
        r"RTX PRO 6000 Blackwell Server Edition",
        bandwidth_gb_s=1597,
        memory_gb=96,
        bf16=None,
        fp16=None,
        fp8=None,
        fp32=120,
        power_w=600,
    ),
    # AMD Instinct MI300X, MI325X and MI355X data sheets (amd.com, "AMD Instinct MI300X Accelerators" and so on).
    Gpu(
        "mi300x",
        ("instinct-mi300x",),
        r"Instinct MI300X( OAM)?",
        bandwidth_gb_s=5300,
        memory_gb=192,
        bf16=1307.4,
        fp16=1307.4,
        fp8=2614.9,
        fp32=163.4,
        power_w=750,
    ),
    Gpu(
        "mi325x",
        ("instinct-mi325x",),
        r"Instinct MI325X( OAM)?",
        bandwidth_gb_s=6000,
        memory_gb=256,
        bf16=1307.4,
        fp16=1307.4,
        fp8=2614.9,
        fp32=163.4,
        power_w=1000,
    ),
    Gpu(
        "mi355x",
        ("instinct-mi355x",),
        r"Instinct MI355X( OAM)?",
        bandwidth_gb_s=8000,
        memory_gb=288,
        bf16=2516.6,
        fp16=2516.6,
        fp8=5033.2,
        fp32=157.3,
        power_w=1400,
    ),
)

# Where NVIDIA's driver lists its devices; other signs of a driver: NVIDIA's in a container, a Windows host's, AMD's.
_NVIDIA = Path("/proc/driver/nvidia")
_DRIVERS = tuple(map(Path, ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")))

# Share of the nominal memory size below which a device is only a slice of the full part. Drivers report a few per cent
# less than the nominal size (ECC, firmware), whether the vendor means GB or GiB.
_WHOLE_DEVICE = 0.85


def find(name: str) -> Gpu:
    """Find a GPU by name or alias; case, spaces, ``-`` and ``_`` do not matter."""
    for gpu in GPUS:
        if _plain(name) in map(_plain, (gpu.name, *gpu.aliases)):
            return gpu
    raise unknown_name("GPU", name.strip().lower(), [gpu.name for gpu in GPUS], see="specbench list gpus shows all")


def identify(device_name: str, memory_bytes: int | None) -> Gpu | None:
    """Find the table's entry for a device, or None if no entry's figures apply to it.

    Args:
        device_name: name from ``torch.cuda.get_device_name``, e.g. "NVIDIA H100 80GB HBM3".
        memory_bytes: total device memory; a device with clearly less than the full part (a MIG slice) does not match.
    """
    plain = re.sub(r"^\s*(NVIDIA|AMD)\s+|\s+$", "", device_name)
    for gpu in GPUS:
        whole = memory_bytes is None or memory_bytes >= _WHOLE_DEVICE * gpu.memory_gb * 1e9
        if whole and re.fullmatch(gpu.match, plain, re.IGNORECASE):
            return gpu
    return None


def require(requested: str, present_name: str | None, memory_bytes: int | None) -> Gpu | None:
    """Check ``--gpu``, which is an assertion about this machine, not a label.

    Args:
        present_name: device name from the driver; None on a machine without a GPU.

    Returns:
        The GPU of this machine; with "auto", None for a machine without a GPU or with a GPU that is not in the table.
    """
    present = None if present_name is None else identify(present_name, memory_bytes)
    if _plain(requested) == "auto":
        return present
    asked = find(requested)
    if present == asked:
        return asked
    there = _describe(present_name, present)
    raise EnvironmentRefused(
        f"cannot use --gpu {asked.name}: this machine has {there}; use --gpu auto to run here, or --project "
        f"{asked.name} to estimate that GPU's speed"
    )


def seen() -> list[str] | None:
    """Names of this machine's GPUs from the kernel driver: immediately, while torch would take seconds.

    Returns:
        None if there is a driver that does not report names; an empty list if there is no driver.
    """
    found = []
    for file in sorted(_NVIDIA.glob("gpus/*/information")):
        try:
            name = re.search(r"^Model:[ \t]*(\S.*?)\s*$", file.read_text(), re.MULTILINE)
        except OSError:
            return None
        if name is None:
            return None
        found.append(name[1])
    return found or (None if any(path.exists() for path in (_NVIDIA, *_DRIVERS)) else [])


def _describe(present_name: str | None, present: Gpu | None) -> str:
    if present_name is None:
        return f"no CUDA device ({environment.processor()})"
    known = f"--gpu {present.name}" if present else "not a full device in the table"
    return f"'{present_name.strip()}' ({known})"


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold()
