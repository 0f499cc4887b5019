"""Settings of job and pools in the form in which their pods read them."""

import json
from typing import get_type_hints

from rollcall_operator.api import labels
from rollcall_operator.api.algorithm import AlgorithmSpec, SamplingSpec
from rollcall_operator.api.data import DataSpec, RowsSpec
from rollcall_operator.api.environment import EnvironmentSpec
from rollcall_operator.api.front import FrontSpec
from rollcall_operator.api.monitoring import EvaluationSpec, HealthSpec
from rollcall_operator.api.quantity import parse_decimal, parse_quantity
from rollcall_operator.api.rljob import DeltaSpec, RLJobSpec
from rollcall_operator.api.roles import ReferenceSpec, RewardModelSpec
from rollcall_operator.api.rolloutpool import RolloutPoolSpec
from rollcall_operator.api.supervised import SupervisedSpec
from rollcall_operator.api.training import RewardSpec
from rollcall_operator.plan.children import trainer_ranks
from rollcall_operator.plan.model import Manifest
from rollcall_protocol import job_config as wire
from rollcall_protocol.algorithm_settings import AlgorithmSettings, preset
from rollcall_protocol.data_config import DataConfig, DataSource, TooLong
from rollcall_protocol.front_config import FrontConfig
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.supervised_config import SupervisedConfig
from rollcall_protocol.wire.json_codec import fields_of

CHECKPOINT_PATH = "/var/lib/rollcall/checkpoints"
_KINDS = get_type_hints(AlgorithmSettings)
_UNREAD = AlgorithmSpec(max_steps=1)
"""The algorithm of a supervised job, which its trainer does not read."""


def job_config(spec: RLJobSpec, *, namespace: str, name: str, uid: str) -> wire.JobConfig:
    """Settings that trainer and rollouts share; the same spec gives the same value."""
    sync, membership, checkpoint = spec.weight_sync, spec.membership, spec.trainer.checkpoint
    engine = spec.trainer.engine
    return wire.JobConfig(
        namespace=namespace,
        job=name,
        uid=uid,
        model=spec.model.path,
        data=_data(spec.data),
        reward_function=(spec.reward.function or "") if spec.reward else "",
        trainer_replicas=spec.trainer.replicas,
        trainer_engine=wire.EngineRef(name=engine.name, config=engine.config),
        checkpoint=wire.CheckpointConfig(every_steps=checkpoint.every_steps, path=CHECKPOINT_PATH)
        if checkpoint
        else None,
        algorithm=_algorithm(spec.algorithm or _UNREAD),
        supervised=_supervised(spec.supervised, spec.data) if spec.supervised else None,
        weight_sync=wire.WeightSyncConfig(
            engine=sync.engine,
            enabled=sync.enabled,
            bucket_bytes=int(parse_quantity(sync.bucket_size)),
            trigger_parameter_sync_step=sync.trigger_parameter_sync_step,
            pause_mode=sync.pause_mode,
            stage_timeout=float(sync.stage_timeout_seconds),
            commit_timeout=float(sync.commit_timeout_seconds),
            join_timeout=float(sync.join_timeout_seconds),
            every_rank_sends=sync.every_rank_sends,
            config=sync.config,
            groups=tuple(
                wire.GroupConfig(name=group.name, engine=wire.EngineRef(group.engine, group.config))
                for group in sync.groups
            ),
            blocking=sync.blocking,
            staging=sync.staging,
            delta=_delta(sync.delta) if sync.delta.enabled else None,
            profile_path=sync.profile.path if sync.profile.enabled else "",
        ),
        membership=wire.MembershipConfig(
            settle=float(membership.settle_seconds),
            ack_timeout=float(membership.ack_timeout_seconds),
            min_rollouts=membership.min_rollouts,
            heartbeat=membership.heartbeat_milliseconds / 1000,
            suspect_after=membership.suspect_after_milliseconds / 1000,
        ),
        recover_from=spec.trainer.recover_from,
        export_path=spec.trainer.export_path or "",
        reference=wire.ReferenceConfig(
            model=spec.reference.path or "",
            update_every=spec.reference.update_every,
            host=labels.reference_host(name, namespace) if spec.reference.template else "",
        ),
        critic=wire.CriticConfig(
            model=spec.critic.path or "",
            learning_rate=float(parse_decimal(spec.critic.learning_rate)),
            warmup_steps=spec.critic.warmup_steps,
        ),
        reward_scoring=_reward_scoring(spec.reward) if spec.reward else wire.RewardScoringConfig(),
        reward_errors=_reward_errors(spec.reward) if spec.reward else wire.RewardErrorConfig(),
        environment=_environment(spec.environment) if spec.environment else None,
        reward_model=_reward_model(spec.reward_model) if spec.reward_model else None,
        health=_health(spec.health),
        evaluation=_evaluation(spec.evaluation, spec.data) if spec.evaluation else None,
        tracking=wire.TrackingConfig(
            folder=spec.tracking.folder or "", wandb_project=spec.tracking.wandb_project or ""
        ),
        trainer_processes=trainer_ranks.processes_per_pod(spec.trainer),
        trainer_device=spec.trainer.device,
        trainer_accelerators=trainer_ranks.accelerators(spec.trainer.template, labels.TRAINER),
        tls=spec.tls.enabled,
        front=spec.front is not None,
    )


def _data(spec: DataSpec) -> DataConfig:
    named = [DataSource(spec.prompts)] if spec.prompts is not None else []
    return _rows(spec, (*named, *(_source(source) for source in spec.sources or ())))


def _source(spec: RowsSpec) -> DataSource:
    return DataSource(**spec.model_dump(exclude={"columns"}), columns=tuple(spec.columns))


def _rows(spec: DataSpec, sources: tuple[DataSource, ...]) -> DataConfig:
    """Order and lengths are as for the job's data, whatever the sources."""
    return DataConfig(
        sources=sources,
        seed=spec.seed,
        max_tokens=spec.max_tokens,
        too_long=TooLong(spec.too_long),
    )


def _supervised(spec: SupervisedSpec, data: DataSpec) -> SupervisedConfig:
    held_out = spec.evaluation
    return SupervisedConfig(
        optimizer=spec.optimizer,
        learning_rate=float(parse_decimal(spec.learning_rate)),
        rows_per_step=spec.rows_per_step,
        epochs=spec.epochs,
        max_steps=spec.max_steps,
        evaluation=_rows(data, (_source(held_out.source),)) if held_out else None,
        evaluate_every=held_out.every_steps if held_out else 0,
    )


def _reward_scoring(spec: RewardSpec) -> wire.RewardScoringConfig:
    return wire.RewardScoringConfig(
        config=spec.config,
        parts=tuple(
            wire.RewardPart(
                name=part.name,
                function=part.function,
                weight=float(parse_decimal(part.weight)),
                config=part.config,
            )
            for part in spec.parts or ()
        ),
        concurrency=spec.concurrency,
    )


def _reward_errors(spec: RewardSpec) -> wire.RewardErrorConfig:
    return wire.RewardErrorConfig(
        on_error=spec.on_error,
        max_share=float(parse_decimal(spec.max_error_share)),
        timeout=float(spec.timeout_seconds),
        verify_share=float(parse_decimal(spec.verify_share)),
    )


def _environment(spec: EnvironmentSpec) -> wire.EnvironmentConfig:
    return wire.EnvironmentConfig(
        function=spec.function or "",
        tools=tuple(spec.tools or ()),
        config=spec.config,
        max_turns=spec.max_turns,
        step_seconds=float(spec.step_seconds),
    )


def _reward_model(spec: RewardModelSpec) -> wire.RewardModelConfig:
    return wire.RewardModelConfig(model=spec.path, weight=float(parse_decimal(spec.weight)))


def _health(spec: HealthSpec) -> wire.HealthConfig:
    return wire.HealthConfig(
        max_skipped_steps=spec.max_skipped_steps,
        max_mismatch_kl=float(parse_decimal(spec.max_mismatch_kl)),
        max_mismatch_ratio=float(parse_decimal(spec.max_mismatch_ratio)),
    )


def _evaluation(spec: EvaluationSpec, data: DataSpec) -> wire.EvaluationConfig:
    return wire.EvaluationConfig(
        every_steps=spec.every_steps,
        data=_rows(data, (_source(spec.source),)),
        prompts=spec.prompts,
        samples=spec.samples,
        pass_at=tuple(spec.pass_at),
        pass_reward=float(parse_decimal(spec.pass_reward)),
    )


def _delta(spec: DeltaSpec) -> wire.DeltaConfig:
    return wire.DeltaConfig(
        max_share=float(parse_decimal(spec.max_share)),
        threads=spec.threads,
        block_bytes=int(parse_quantity(spec.block_size)),
    )


def algorithm_settings(spec: AlgorithmSpec) -> AlgorithmSettings:
    """The settings that the algorithm's name and the spec's changes of them make together.

    ValueError if they contradict each other.
    """
    changes = {
        name: float(parse_decimal(value)) if _KINDS[name] is float else value
        for name, value in spec.settings.model_dump(exclude_none=True).items()
    }
    return preset(spec.name, **changes)


def _algorithm(spec: AlgorithmSpec) -> wire.AlgorithmConfig:
    settings = algorithm_settings(spec)
    return wire.AlgorithmConfig(
        name=spec.name,
        group_size=spec.group_size,
        prompts_per_step=spec.prompts_per_step,
        max_steps=spec.max_steps,
        max_staleness=spec.max_staleness,
        max_concurrent_rollouts=spec.max_concurrent_rollouts,
        partial_rollout=spec.partial_rollout,
        optimizer=wire.OptimizerConfig(
            name=spec.optimizer.name,
            learning_rate=float(parse_decimal(spec.optimizer.learning_rate)),
        ),
        partial_report=float(spec.partial_report_seconds),
        lease=float(spec.lease_seconds),
        deterministic=spec.deterministic,
        settings=settings,
        sampling=_sampling(spec.sampling),
    )


def _sampling(spec: SamplingSpec) -> SamplingConfig:
    return SamplingConfig(
        max_tokens=spec.max_tokens or 0,
        temperature=float(parse_decimal(spec.temperature)),
        top_p=float(parse_decimal(spec.top_p)),
        top_k=spec.top_k,
        stop=tuple(spec.stop),
        stop_token_ids=tuple(spec.stop_token_ids),
        column=spec.column,
    )


def pool_config(spec: RolloutPoolSpec, *, name: str) -> wire.PoolConfig:
    """Settings that only the rollouts of one pool need."""
    return wire.PoolConfig(
        pool=name,
        sync_group=spec.sync_group,
        engine=wire.EngineRef(name=spec.engine.name, config=spec.engine.config),
        drain_timeout=float(spec.drain.timeout_seconds),
    )


def reference_pod_config(spec: ReferenceSpec, template: Manifest) -> wire.ReferencePodConfig:
    """Settings that only the reference's own pods need, which have this template."""
    return wire.ReferencePodConfig(
        device=spec.device,
        accelerators=trainer_ranks.accelerators(template, labels.REFERENCE),
    )


def front_config(spec: FrontSpec) -> FrontConfig:
    """Settings that only the front's pods need."""
    return FrontConfig(
        most_running=spec.max_running,
        most_waiting=spec.max_waiting,
        request_seconds=float(spec.request_seconds),
        most_trajectories=spec.max_trajectories,
        most_tokens=spec.max_tokens,
        trajectory_seconds=float(spec.trajectory_seconds),
        without_keys=spec.without_api_keys,
    )


WorkerConfig = wire.JobConfig | wire.PoolConfig | wire.ReferencePodConfig | FrontConfig


def as_json(config: WorkerConfig) -> str:
    """The value of the environment variable: the same settings always give the same text."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"), default=fields_of)
