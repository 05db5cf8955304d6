"""Machines that can be rented, and this one: what they have, and what an hour costs.

Prices are data that age. They are USD an hour, on demand, Linux, us-east-1, written down in November 2026: those of
p4d, p4de, p5, p5en and two sizes of g6 as in SkyPilot's catalogue of AWS's price list
(github.com/skypilot-org/skypilot-catalog, catalogs/v8/aws/vms.csv, commit e385a0d), the others as they are commonly
quoted, unchecked. Check them at
https://aws.amazon.com/ec2/pricing/on-demand/ before money depends on them (`--price` takes another), and note that
SageMaker asks more for the same machine. p5e has no on-demand price: it is sold in capacity blocks.

Peaks are the vendors' figures for dense bfloat16 and for memory, per GPU.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dojang.core.errors import ConfigError

__all__ = ["GPUS", "INSTANCES", "PRICES_NOTED", "Gpu", "Instance", "find_instance"]

PRICES_NOTED = "us-east-1, on demand, as known in November 2026"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU model."""

    name: str
    memory_gib: float
    tflops: float
    """Vendor's peak TFLOP/s, dense bfloat16."""
    bandwidth: float
    """Memory bandwidth, TB/s."""
    link: float
    """Bandwidth of collectives within a machine (NVLink or PCIe), GB/s; rough, not measured."""
    network: float
    """Its share of the machine's network bandwidth, GB/s."""
    fp8: bool = False
    """Whether it has the products of rollout.engine.quantization=fp8."""


GPUS: Mapping[str, Gpu] = {
    "A100-40GB": Gpu("A100-40GB", 39.4, 312, 1.555, 200, 6),
    "A100-80GB": Gpu("A100-80GB", 79.2, 312, 2.039, 200, 6),
    "H100": Gpu("H100", 79.2, 989, 3.35, 300, 50, fp8=True),
    "H200": Gpu("H200", 139.8, 989, 4.8, 300, 50, fp8=True),
    "A10G": Gpu("A10G", 22.3, 70, 0.6, 10, 1.5),
    "L4": Gpu("L4", 22.0, 121, 0.3, 10, 1.5),
    "L40S": Gpu("L40S", 44.4, 362, 0.864, 10, 1.5),
}


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine."""

    name: str
    vcpus: int
    memory_gib: float
    usd: float | None = None
    """USD per hour; None if unknown."""
    gpu: Gpu | None = None
    gpus: int = 0
    cpu_gflops: float = 0.0
    """Measured GFLOP/s of the CPU; 0 if not measured."""
    arm: bool = False
    """Whether the CPU is ARM: the engine packs float32 weights there too."""

    def part(self, cpus: float) -> "Instance":
        """A part of the machine with this many CPUs."""
        return replace(self, vcpus=max(1, round(cpus)), cpu_gflops=self.cpu_gflops * cpus / self.vcpus)

    def priced(self, usd: float | None) -> "Instance":
        """The same instance at another price, if one is given."""
        return self if usd is None else replace(self, usd=usd)


def _family(gpu: str, *rows: tuple[str, int, int, float, float | None]) -> dict[str, Instance]:
    return {name: Instance(name, vcpus, memory, usd, GPUS[gpu], count) for name, count, vcpus, memory, usd in rows}


INSTANCES: Mapping[str, Instance] = {
    **_family("A100-40GB", ("p4d.24xlarge", 8, 96, 1152, 21.957642)),
    **_family("A100-80GB", ("p4de.24xlarge", 8, 96, 1152, 27.44705)),
    **_family("H100", ("p5.4xlarge", 1, 16, 256, 6.88), ("p5.48xlarge", 8, 192, 2048, 55.04)),
    **_family("H200", ("p5e.48xlarge", 8, 192, 2048, None), ("p5en.48xlarge", 8, 192, 2048, 63.296)),
    **_family(
        "A10G",
        ("g5.xlarge", 1, 4, 16, 1.006),
        ("g5.2xlarge", 1, 8, 32, 1.212),
        ("g5.8xlarge", 1, 32, 128, 2.448),
        ("g5.12xlarge", 4, 48, 192, 5.672),
        ("g5.48xlarge", 8, 192, 768, 16.288),
    ),
    **_family(
        "L4",
        ("g6.xlarge", 1, 4, 16, 0.8048),
        ("g6.4xlarge", 1, 16, 64, 1.3232),
        ("g6.12xlarge", 4, 48, 192, 4.6016),
        ("g6.48xlarge", 8, 192, 768, 13.3504),
    ),
    **_family(
        "L40S",
        ("g6e.xlarge", 1, 4, 32, 1.861),
        ("g6e.4xlarge", 1, 16, 128, 3.00424),
        ("g6e.12xlarge", 4, 48, 384, 10.49264),
        ("g6e.48xlarge", 8, 192, 1536, 30.13118),
    ),
    "m5.2xlarge": Instance("m5.2xlarge", 8, 32, 0.384),
    "m5.12xlarge": Instance("m5.12xlarge", 48, 192, 2.304),
    "c7i.4xlarge": Instance("c7i.4xlarge", 16, 32, 0.714),
    "c7i.12xlarge": Instance("c7i.12xlarge", 48, 96, 2.142),
    "c7i.24xlarge": Instance("c7i.24xlarge", 96, 192, 4.284),
    "c7i.48xlarge": Instance("c7i.48xlarge", 192, 384, 8.568),
    "h200": Instance("h200", 16, 128, None, GPUS["H200"], 1),  # what docs/results was measured on
}


def find_instance(name: str) -> Instance:
    """Finds an instance by name, with or without SageMaker's `ml.`."""
    found = INSTANCES.get(name.removeprefix("ml."))
    if found is None:
        near = difflib.get_close_matches(name.removeprefix("ml."), INSTANCES, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"--instance {name} is unknown; {hint}known: {', '.join(INSTANCES)}")
    return found
