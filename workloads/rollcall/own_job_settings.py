"""What a job without an operator is asked for, and the configuration that its processes get."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollcall_protocol.data_config import DataConfig
from rollcall_protocol.job_config import (
    AlgorithmConfig,
    EngineRef,
    JobConfig,
    MembershipConfig,
    OptimizerConfig,
    WeightSyncConfig,
)

NAMESPACE = JOB = "own"


@dataclass(frozen=True, slots=True)
class OwnJobSettings:
    """The fields of an RLJob that can be chosen; the others have its defaults.

    `address` is the trainer's, `port` the coordinator's there, 0 for a free one. `model`: a folder
    or name that all rollouts can load. `engine` and `engine_config` are those of weight sync.
    """

    address: str
    model: str
    engine: str = "auto"
    engine_config: Mapping[str, Any] = field(default_factory=dict)
    min_rollouts: int = 1
    port: int = 0

    def config(self, uid: str) -> JobConfig:
        """That of the job with this uid."""
        return JobConfig(
            namespace=NAMESPACE,
            job=JOB,
            uid=uid,
            model=self.model,
            data=DataConfig(()),
            reward_function="",
            trainer_replicas=1,
            trainer_engine=EngineRef("fsdp2"),
            checkpoint=None,
            algorithm=_ALGORITHM,
            weight_sync=WeightSyncConfig(
                engine=self.engine,
                enabled=True,
                bucket_bytes=64 * 2**20,
                trigger_parameter_sync_step=1,
                pause_mode="Keep",
                stage_timeout=30.0,
                commit_timeout=10.0,
                join_timeout=10.0,
                config=dict(self.engine_config),
            ),
            membership=MembershipConfig(
                settle=1.0, ack_timeout=10.0, min_rollouts=self.min_rollouts
            ),
            external=True,
            tls=True,
        )


# An external trainer has steps, data and bounds of its own.
_ALGORITHM = AlgorithmConfig(
    name="",
    group_size=1,
    prompts_per_step=1,
    max_steps=0,
    max_staleness=0,
    max_concurrent_rollouts=1,
    partial_rollout=True,
    optimizer=OptimizerConfig(name="adamw", learning_rate=0.0),
)
