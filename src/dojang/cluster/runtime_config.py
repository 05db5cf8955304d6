"""The `runtime` section of a configuration: run in one process or on a Ray cluster."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, field_validator

from dojang.core.section import Requirement, Section

__all__ = ["LocalConfig", "RayConfig", "engine_gpus"]


class LocalConfig(Section):
    """Run everything in this process, or in the processes that torchrun started."""

    name: Literal["local"] = "local"


class RayConfig(Section):
    """Run trainers, engines and judges as actors on a Ray cluster."""

    name: Literal["ray"] = "ray"
    address: str = ""
    """HOST:PORT of the cluster's head. If empty: RAY_ADDRESS; without that, a local cluster that ends with the run."""
    trainers: int = Field(default=1, ge=1)
    """Number of trainer processes for each model, which is sharded over them; tester.trainers sets the tester's.
    Default: train.sequence_parallel; `dojang launch sagemaker` and `dojang plan` split the GPUs between trainers and
    engines."""
    engines: int = Field(default=1, ge=1)
    """Number of inference engines for each model; tester.engines sets the tester's."""
    cpus: float = Field(default=1.0, gt=0)
    """CPUs of each trainer and each engine. Judges use the rest, on every node of the cluster."""
    gpus: float | None = Field(default=None, ge=0)
    """GPUs of each trainer and each engine; a fraction lets several processes share one. Default: 1 if the cluster has
    any GPU and model.device is not cpu, else 0. An engine gets at least rollout.engine.tensor_parallel_size GPUs."""
    max_failures: int = Field(default=3, ge=0)
    """Number of times that lost trainers restart from the last checkpoint before the run fails. Replaced engines and
    judges do not count."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Seconds to wait for a process to be placed and to start, and for new weights to reach an engine."""

    def required_packages(self) -> Iterator[Requirement]:
        yield Requirement("runtime.name=ray", ("ray",), "ray")

    @field_validator("address")
    @classmethod
    def _is_host_and_port(cls, address: str) -> str:
        if "://" in address:
            raise ValueError(f"{address!r} is an address of Ray Client, which is not used; give the head's HOST:PORT")
        return address

    @field_validator("gpus")
    @classmethod
    def _are_whole_or_a_fraction_of_one(cls, gpus: float | None) -> float | None:
        if gpus is not None and gpus > 1 and gpus != int(gpus):
            raise ValueError(f"{gpus:g} GPUs are not possible: give a whole number, or a fraction of one GPU")
        return gpus


def engine_gpus(each: float, tensor_parallel_size: int) -> float:
    """Number of GPUs of an engine: one for each tensor parallel worker, and at least `each`."""
    return max(each, float(tensor_parallel_size)) if each and tensor_parallel_size > 1 else each
