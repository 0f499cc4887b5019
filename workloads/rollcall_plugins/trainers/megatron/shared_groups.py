"""megatron-core's process groups, of which a process has one set: all engines in it share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from rollcall_runtime.train.process_group import TrainerProcessGroup

FIELD = "spec.trainer.engine.config"


@dataclass(frozen=True, slots=True)
class ParallelGroups:
    """Where this rank is: `mesh` has the dimensions pipeline, data and tensor, the last varying
    fastest, which is Megatron's order of ranks.
    """

    mesh: DeviceMesh

    @property
    def stage_mesh(self) -> DeviceMesh:
        """The ranks of this pipeline stage: data and tensor."""
        return self.mesh["data", "tensor"]

    @property
    def data_rank(self) -> int:
        """Which rows this rank computes."""
        return self.mesh.get_local_rank("data")

    @property
    def data_size(self) -> int:
        """How many ranks hold the same part of the model."""
        return self.mesh.size(1)

    @property
    def data_group(self) -> ProcessGroup:
        """The ranks that hold the same part of the model."""
        group: ProcessGroup = parallel_state.get_data_parallel_group()
        return group

    @property
    def tensor_rank(self) -> int:
        """Which part of each tensor this rank holds."""
        return self.mesh.get_local_rank("tensor")

    @property
    def tensor_size(self) -> int:
        """Into how many parts each tensor is divided."""
        return self.mesh.size(2)

    @property
    def tensor_group(self) -> ProcessGroup:
        """The ranks that hold the parts of the same layers."""
        group: ProcessGroup = parallel_state.get_tensor_model_parallel_group()
        return group

    @property
    def stage(self) -> int:
        """Which layers this rank holds."""
        return self.mesh.get_local_rank("pipeline")

    @property
    def stages(self) -> int:
        """Into how many parts the layers are divided."""
        return self.mesh.size(0)

    @property
    def pipeline_group(self) -> ProcessGroup:
        """The ranks, one of each stage, that compute the same rows."""
        group: ProcessGroup = parallel_state.get_pipeline_model_parallel_group()
        return group

    def broadcast_from(self, stage: int, tensor: Tensor) -> Tensor:
        """Collective among the stages. `tensor` of the rank of `stage` on all, in place."""
        if self.stages > 1:
            source = dist.get_global_rank(self.pipeline_group, stage)
            dist.broadcast(tensor, src=source, group=self.pipeline_group)
        return tensor


class _SharedGroups:
    """The groups of this process, and how many engines use them."""

    def __init__(self) -> None:
        self.users = 0
        self.groups: ParallelGroups | None = None

    def acquire(self, ranks: TrainerProcessGroup, *, tensor: int, pipeline: int) -> ParallelGroups:
        """Collective. The groups for `tensor` and `pipeline` parallel ranks.

        SpecError if they do not fit the number of ranks, or what other engines use.
        """
        if ranks.size % (tensor * pipeline):
            raise SpecError(
                f"{FIELD}.tensorParallel",
                f"the trainer's {ranks.size} ranks are no multiple of {tensor * pipeline}: of "
                f"tensorParallel {tensor} times pipelineParallel {pipeline}",
            )
        if self.groups is None:
            self.groups = _initialize(ranks, tensor, pipeline)
        elif (self.groups.tensor_size, self.groups.stages) != (tensor, pipeline):
            raise SpecError(
                f"{FIELD}.tensorParallel",
                f"another engine `megatron` of this trainer has tensorParallel "
                f"{self.groups.tensor_size} and pipelineParallel {self.groups.stages}, and "
                f"this one {tensor} and {pipeline}: megatron-core has one layout in a process",
            )
        self.users += 1
        return self.groups

    def release(self) -> None:
        """Give back what `acquire` gave; the last user's release ends the groups."""
        self.users -= 1
        if not self.users:
            _destroy()
            self.groups = None


def _initialize(ranks: TrainerProcessGroup, tensor: int, pipeline: int) -> ParallelGroups:
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        create_gloo_process_groups=False,
    )
    # Its random states are for dropout, which no model of this engine has; the layers ask for them.
    model_parallel_cuda_manual_seed(0)
    data = ranks.size // (tensor * pipeline)
    return ParallelGroups(ranks.mesh(pipeline=pipeline, data=data, tensor=tensor))


def _destroy() -> None:
    """End Megatron's groups and their threads; it forgets them, and no more."""
    made = parallel_state._global_process_group_list or []  # noqa: SLF001 - the only list of them
    parallel_state.destroy_model_parallel()
    for group in made:
        if group is not None:  # None means the default group, which is the caller's
            dist.destroy_process_group(group)


shared_groups = _SharedGroups()
