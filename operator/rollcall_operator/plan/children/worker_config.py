"""Settings of job and pools in the form in which their pods read them."""

import json
from dataclasses import replace
from typing import Any, get_type_hints

from rollcall_operator.api import labels
from rollcall_operator.api.algorithm import AlgorithmSpec
from rollcall_operator.api.data import DataSpec, RowsSpec
from rollcall_operator.api.front import FrontSpec
from rollcall_operator.api.monitoring import EvaluationSpec
from rollcall_operator.api.rljob import RLJobSpec, WeightSyncSpec
from rollcall_operator.api.roles import CriticSpec, ReferenceSpec, RewardModelSpec
from rollcall_operator.api.rolloutpool import RolloutPoolSpec
from rollcall_operator.api.supervised import SupervisedSpec
from rollcall_operator.api.training import CheckpointSpec, ModelSpec, RewardSpec
from rollcall_operator.plan.children import trainer_ranks
from rollcall_operator.plan.children.from_spec import converted, from_spec
from rollcall_operator.plan.model import Manifest
from rollcall_protocol import job_config as wire
from rollcall_protocol.algorithm_settings import AlgorithmSettings, preset
from rollcall_protocol.data_config import DataConfig, DataSource, TooLong
from rollcall_protocol.front_config import FrontConfig
from rollcall_protocol.supervised_config import SupervisedConfig
from rollcall_protocol.wire.json_codec import fields_of

CHECKPOINT_PATH = "/var/lib/rollcall/checkpoints"
_KINDS = get_type_hints(AlgorithmSettings)
_OF_POLICIES, _OF_CRITICS = 1e-6, 1e-5  # learning rates; those that verl has for language models
_OF_BUILTINS = 1e-3  # of some 100,000 parameters
_UNREAD = AlgorithmSpec(max_steps=1)
"""The algorithm of a job without one: no trainer reads it, and rollouts are free by it to sample as
a request says.
"""
_NO_DATA = DataConfig(())


def job_config(spec: RLJobSpec, *, namespace: str, name: str, uid: str) -> wire.JobConfig:
    """Settings that trainer and rollouts share; the same spec gives the same value."""
    trainer = spec.trainer
    return from_spec(
        wire.JobConfig,
        spec,
        namespace=namespace,
        job=name,
        uid=uid,
        model=spec.model.path,
        data=_data(spec.data) if spec.data else _NO_DATA,
        reward_function=(spec.reward.function or "") if spec.reward else "",
        trainer_replicas=trainer.replicas,
        trainer_engine=from_spec(wire.EngineRef, trainer.engine),
        checkpoint=_checkpoint(trainer.checkpoint) if trainer.checkpoint else None,
        algorithm=_external_algorithm(spec.model)
        if trainer.external
        else _algorithm(spec.algorithm or _UNREAD, spec.model),
        supervised=_supervised(spec.supervised, spec.data)
        if spec.supervised and spec.data
        else None,
        weight_sync=_weight_sync(spec.weight_sync),
        recover_from=trainer.recover_from,
        export_path=trainer.export_path or "",
        reference=_reference(
            spec.reference,
            host=labels.reference_host(name, namespace) if spec.reference.template else "",
        ),
        critic=_critic(spec.critic, spec.model),
        reward_scoring=from_spec(wire.RewardScoringConfig, spec.reward)
        if spec.reward
        else wire.RewardScoringConfig(),
        reward_errors=_reward_errors(spec.reward) if spec.reward else wire.RewardErrorConfig(),
        reward_model=_reward_model(spec.reward_model) if spec.reward_model else None,
        evaluation=_evaluation(spec.evaluation, spec.data)
        if spec.evaluation and spec.data
        else None,
        samples=from_spec(wire.SampleRecordingConfig, spec.observe.samples),
        trainer_processes=trainer_ranks.processes_per_pod(trainer),
        trainer_device=trainer.device,
        trainer_accelerators=trainer_ranks.accelerators(trainer.template, labels.TRAINER),
        tls=spec.tls.enabled,
        front=spec.front is not None,
        external=trainer.external,
        rollout_context=_rollout_context(spec),
    )


def _rollout_context(spec: RLJobSpec) -> int:
    """The smallest maxModelLen of the job's own pools; 0 if none has one."""
    named = (rollout.engine.config.get("maxModelLen") for rollout in spec.rollouts or ())
    return min((length for length in named if type(length) is int and length > 0), default=0)


def _checkpoint(spec: CheckpointSpec) -> wire.CheckpointConfig:
    return from_spec(wire.CheckpointConfig, spec, path=CHECKPOINT_PATH)


def _weight_sync(spec: WeightSyncSpec) -> wire.WeightSyncConfig:
    groups = (
        wire.GroupConfig(group.name, wire.EngineRef(group.engine, group.config))
        for group in spec.groups
    )
    return from_spec(
        wire.WeightSyncConfig,
        spec,
        groups=tuple(groups),
        delta=from_spec(wire.DeltaConfig, spec.delta) if spec.delta.enabled else None,
        profile_path=spec.profile.path if spec.profile.enabled else "",
    )


def _reference(spec: ReferenceSpec, *, host: str) -> wire.ReferenceConfig:
    return from_spec(wire.ReferenceConfig, spec, model=spec.path or "", host=host)


def _critic(spec: CriticSpec, model: ModelSpec) -> wire.CriticConfig:
    rate = _learning_rate(spec.learning_rate, model, usual=_OF_CRITICS)
    return from_spec(wire.CriticConfig, spec, model=spec.path or "", learning_rate=rate)


def _learning_rate(given: str | None, model: ModelSpec, *, usual: float) -> float:
    """What the spec says; else what is usual, or suits the small built-in models."""
    if given is not None:
        return float(given)
    return _OF_BUILTINS if model.path.startswith("builtin:") else usual


def _data(spec: DataSpec) -> DataConfig:
    named = [DataSource(spec.prompts)] if spec.prompts is not None else []
    return _rows(spec, (*named, *(_source(source) for source in spec.sources or ())))


def _source(spec: RowsSpec) -> DataSource:
    return DataSource(**spec.model_dump(exclude={"columns"}), columns=tuple(spec.columns))


def _rows(spec: DataSpec, sources: tuple[DataSource, ...]) -> DataConfig:
    """Order and lengths are as for the job's data, whatever the sources."""
    return from_spec(DataConfig, spec, sources=sources, too_long=TooLong(spec.too_long))


def _supervised(spec: SupervisedSpec, data: DataSpec) -> SupervisedConfig:
    held_out = spec.evaluation
    return from_spec(
        SupervisedConfig,
        spec,
        evaluation=_rows(data, (_source(held_out.source),)) if held_out else None,
        evaluate_every=held_out.every_steps if held_out else 0,
    )


def _reward_errors(spec: RewardSpec) -> wire.RewardErrorConfig:
    share = converted(spec.max_error_share, float)
    return from_spec(wire.RewardErrorConfig, spec, max_share=share)


def _reward_model(spec: RewardModelSpec) -> wire.RewardModelConfig:
    return from_spec(wire.RewardModelConfig, spec, model=spec.path)


def _evaluation(spec: EvaluationSpec, data: DataSpec) -> wire.EvaluationConfig:
    return from_spec(wire.EvaluationConfig, spec, data=_rows(data, (_source(spec.source),)))


def algorithm_settings(spec: AlgorithmSpec) -> AlgorithmSettings:
    """The settings that the algorithm's name and the spec's changes of them make together.

    ValueError if they contradict each other.
    """
    changes = spec.settings.model_dump(exclude_none=True)
    read = {name: converted(value, _KINDS[name]) for name, value in changes.items()}
    return preset(spec.name, **read)


def _algorithm(spec: AlgorithmSpec, model: ModelSpec) -> wire.AlgorithmConfig:
    rate = _learning_rate(spec.optimizer.learning_rate, model, usual=_OF_POLICIES)
    optimizer = wire.OptimizerConfig(spec.optimizer.name, rate)
    settings = algorithm_settings(spec)
    return from_spec(wire.AlgorithmConfig, spec, settings=settings, optimizer=optimizer)


def _external_algorithm(model: ModelSpec) -> wire.AlgorithmConfig:
    """How many steps there are, its program alone knows.

    What it samples after a publication must be of that version: older ones are not served.
    """
    return replace(_algorithm(_UNREAD, model), max_steps=0, max_staleness=0)


def pool_config(spec: RolloutPoolSpec, *, name: str) -> wire.PoolConfig:
    """Settings that only the rollouts of one pool need."""
    return from_spec(
        wire.PoolConfig,
        spec,
        pool=name,
        drain_timeout=float(spec.drain.timeout_seconds),
        accelerators=trainer_ranks.accelerators(spec.template, labels.ROLLOUT),
    )


def reference_pod_config(spec: ReferenceSpec, template: Manifest) -> wire.ReferencePodConfig:
    """Settings that only the reference's own pods need, which have this template."""
    accelerators = trainer_ranks.accelerators(template, labels.REFERENCE)
    return from_spec(wire.ReferencePodConfig, spec, accelerators=accelerators)


def front_config(spec: FrontSpec) -> FrontConfig:
    """Settings that only the front's pods need."""
    return from_spec(
        FrontConfig,
        spec,
        most_running=spec.max_running,
        most_waiting=spec.max_waiting,
        most_trajectories=spec.max_trajectories,
        most_tokens=spec.max_tokens,
        without_keys=spec.without_api_keys,
    )


_LATER_FIELDS = frozenset({"external", "rollout_context", "keep_special_tokens"})

WorkerConfig = wire.JobConfig | wire.PoolConfig | wire.ReferencePodConfig | FrontConfig


def as_json(config: WorkerConfig) -> str:
    """The value of the environment variable: the same settings always give the same text."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"), default=_fields)


def _fields(value: Any) -> dict[str, Any]:
    """Some stand in it where they are set alone: pods of other jobs stay as they were."""
    found = fields_of(value)
    return {name: each for name, each in found.items() if each or name not in _LATER_FIELDS}
