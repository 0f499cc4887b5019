"""Configurations for tests: the job of `examples/reverse.yaml`, as its pods see it."""

from typing import Any

from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.job_config import (
    AlgorithmConfig,
    EngineRef,
    JobConfig,
    MembershipConfig,
    OptimizerConfig,
    PoolConfig,
    WeightSyncConfig,
)

ALGORITHM: dict[str, Any] = {
    "name": "grpo",
    "group_size": 16,
    "prompts_per_step": 16,
    "max_steps": 200,
    "max_staleness": 2,
    "max_concurrent_rollouts": 64,
    "partial_rollout": True,
    "optimizer": OptimizerConfig(name="adamw", learning_rate=1e-3),
}
WEIGHT_SYNC: dict[str, Any] = {
    "engine": "auto",
    "enabled": True,
    "bucket_bytes": 64 * 2**20,
    "trigger_parameter_sync_step": 1,
    "pause_mode": "Keep",
    "stage_timeout": 30.0,
    "commit_timeout": 10.0,
    "join_timeout": 10.0,
}
MEMBERSHIP: dict[str, Any] = {"settle": 1.0, "ack_timeout": 10.0, "min_rollouts": 1}


def job_config(
    *,
    algorithm: dict[str, Any] | None = None,
    weight_sync: dict[str, Any] | None = None,
    membership: dict[str, Any] | None = None,
    **changes: Any,
) -> JobConfig:
    """The reverse job with some values changed, by section."""
    values: dict[str, Any] = {
        "namespace": "default",
        "job": "reverse",
        "uid": "job-uid",
        "model": "builtin:reverse-tiny",
        "data": DataConfig(sources=(DataSource("builtin:reverse"),)),
        "reward_function": "rollcall_runtime.tasks.reverse:reward",
        "trainer_replicas": 1,
        "trainer_engine": EngineRef("fsdp2"),
        "trainer_device": "cpu",
        "checkpoint": None,
        "algorithm": AlgorithmConfig(**ALGORITHM | (algorithm or {})),
        "weight_sync": WeightSyncConfig(**WEIGHT_SYNC | (weight_sync or {})),
        "membership": MembershipConfig(**MEMBERSHIP | (membership or {})),
    }
    return JobConfig(**values | changes)


def external_job_config(**changes: Any) -> JobConfig:
    """The same rollouts, for a trainer that is a program of the user's own."""
    algorithm = {"max_steps": 0, "max_staleness": 0}
    values: dict[str, Any] = {"external": True, "data": DataConfig(()), "reward_function": ""}
    return job_config(algorithm=algorithm, **values | changes)


def pool_config(**changes: Any) -> PoolConfig:
    """The pool `reverse-cpu`."""
    values: dict[str, Any] = {
        "pool": "reverse-cpu",
        "sync_group": "default",
        "engine": EngineRef("tiny"),
        "drain_timeout": 20.0,
    }
    return PoolConfig(**values | changes)
