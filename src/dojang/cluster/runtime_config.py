"""Where the parts of a run live: the `runtime` section of a configuration."""

from typing import Literal

from pydantic import Field, field_validator

from dojang.core.section import Section

__all__ = ["LocalConfig", "RayConfig", "engine_gpus"]


class LocalConfig(Section):
    """Everything in one process, or in those torchrun has begun."""

    name: Literal["local"] = "local"


class RayConfig(Section):
    """Trainers, engines and judges as processes of a Ray cluster."""

    name: Literal["ray"] = "ray"
    address: str = ""
    """Of the cluster's head, HOST:PORT. If empty, that of RAY_ADDRESS, or a cluster of this machine alone, which ends
    with the run."""
    trainers: int = Field(default=1, ge=1)
    """Processes that train together, of each model, which is spread over them; tester.trainers sets the tester's
    apart. Without it as many as train.sequence_parallel; `dojang launch sagemaker` and `dojang plan` split the GPUs
    between trainers and engines."""
    engines: int = Field(default=1, ge=1)
    """Processes that sample, of each model; tester.engines sets the tester's apart."""
    cpus: float = Field(default=1.0, gt=0)
    """Processors of each trainer and each engine. Judges get the rest, on every machine of the cluster."""
    gpus: float | None = Field(default=None, ge=0)
    """GPUs of each trainer and each engine; less than one lets several share it. Without it 1 if the cluster has any
    GPU and model.device is not cpu, or else none. An engine gets at least rollout.tensor_parallel_size of them."""
    max_failures: int = Field(default=3, ge=0)
    """How often the trainers may be lost, and begin again at the last checkpoint, before the run gives up. Engines and
    judges are replaced without counting."""
    timeout_s: float = Field(default=600.0, gt=0)
    """How long to wait for processes to get their place and begin, and for new weights to reach an engine."""

    @field_validator("address")
    @classmethod
    def _is_no_client_s(cls, address: str) -> str:
        if "://" in address:
            raise ValueError(f"{address!r} is for Ray's client, which a run is not; give the head's HOST:PORT")
        return address

    @field_validator("gpus")
    @classmethod
    def _are_whole(cls, gpus: float | None) -> float | None:
        if gpus is not None and gpus > 1 and gpus != int(gpus):
            raise ValueError(f"{gpus:g} GPUs cannot be had: Ray divides one among several, but no more than one")
        return gpus


def engine_gpus(each: float, tensor_parallel_size: int) -> float:
    """Number of GPUs of an engine, where a process has `each` of them: one for each of its tensor parallel workers."""
    return max(each, float(tensor_parallel_size)) if each and tensor_parallel_size > 1 else each
