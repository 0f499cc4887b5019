"""Errors of the trainer's ranks, devices and settings that show before its image is started."""

from collections.abc import Iterator
from dataclasses import fields

from rollcall_operator.api import labels
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.api.roles import CriticSpec, ReferenceSpec
from rollcall_operator.api.training import TrainerSpec
from rollcall_operator.plan.children.trainer_ranks import accelerators, processes_per_pod
from rollcall_operator.plan.children.worker_config import algorithm_settings
from rollcall_protocol.pod_contract import MAX_PROCESSES
from rollcall_protocol.settings_reader import SettingError, camel_case, read_settings
from rollcall_protocol.train_settings import (
    BUILT_IN,
    EngineSettings,
    LoopSettings,
    check_known,
    check_mesh,
)

_CONFIG = "spec.trainer.engine.config"


def trainer_errors(trainer: TrainerSpec) -> Iterator[str]:
    """What is wrong with ranks, devices and the settings of a built-in engine."""
    yield from _device_errors(trainer)
    known = BUILT_IN.get(trainer.engine.name)
    if known is None:
        return  # the pods check the settings of other engines
    config = trainer.engine.config
    loop, engine = ({camel_case(f.name) for f in fields(k)} for k in (LoopSettings, EngineSettings))
    unknown = config.keys() - loop - engine
    if unknown:
        having = ", ".join(sorted({camel_case(name) for name in known} | loop))
        problem = f"unknown setting; engine {trainer.engine.name} has: {having}"
        yield f"{_CONFIG}.{min(unknown)}: {problem}"
        return
    try:
        read_settings(LoopSettings, {key: config[key] for key in config.keys() & loop})
        settings = read_settings(EngineSettings, {key: config[key] for key in config.keys() - loop})
        check_known(settings, known, engine=trainer.engine.name)
    except SettingError as error:
        yield f"{_CONFIG}{'.' * bool(error.key)}{error.key}: {error.problem}"
        return
    processes = processes_per_pod(trainer)
    try:
        check_mesh(settings, ranks=trainer.replicas * processes)
    except SettingError as error:
        yield (
            f"{_CONFIG}: {error.problem} (spec.trainer.replicas {trainer.replicas} x "
            f"processesPerPod {processes}); change the settings, or the number of ranks"
        )


def _device_errors(trainer: TrainerSpec) -> Iterator[str]:
    asked = accelerators(trainer.template, labels.TRAINER)
    processes = processes_per_pod(trainer)
    number = sum(asked.values())
    names = " and ".join(f"{amount} {name}" for name, amount in asked.items())
    if asked and trainer.device == "cpu":
        yield _idle_devices(labels.TRAINER, names)
    elif asked and processes > number:
        yield (
            f"spec.trainer.processesPerPod: {processes} processes need as many accelerators, and "
            f"the trainer's container asks for {names}; lower the one, or raise the other"
        )
    elif processes > MAX_PROCESSES:
        yield (
            f"spec.trainer.processesPerPod: the trainer's container asks for {names}, and a pod "
            f"has at most {MAX_PROCESSES} processes; set processesPerPod"
        )


def reference_errors(reference: ReferenceSpec) -> Iterator[str]:
    """What is wrong with the devices of the reference's own pods."""
    asked = accelerators(reference.template, labels.REFERENCE) if reference.template else {}
    names = " and ".join(f"{amount} {name}" for name, amount in asked.items())
    if asked and reference.device == "cpu":
        yield _idle_devices(labels.REFERENCE, names)
    elif sum(asked.values()) > 1:
        yield (
            f"spec.reference.template: its container asks for {names}, and each pod computes on "
            "one device; ask for one, and raise spec.reference.replicas"
        )


def _idle_devices(role: str, names: str) -> str:
    return (
        f"spec.{role}.device: cpu would leave idle the {names} for which the {role}'s container "
        "asks; remove one of them"
    )


def algorithm_errors(spec: RLJobSpec) -> Iterator[str]:
    """Settings of the algorithm that contradict each other, and models that it does not use."""
    algorithm = spec.algorithm
    if algorithm is None:
        yield from _supervised_errors(spec)
        return
    try:
        settings = algorithm_settings(algorithm)
    except ValueError as error:
        yield f"spec.algorithm.settings: {error} (algorithm {algorithm.name}); change one of them"
        return
    if algorithm.group_size == 1 and settings.compares_in_groups:
        yield (
            f"spec.algorithm.groupSize: must be at least 2 with baseline {settings.baseline} and "
            f"normalisation {settings.normalisation}: they compare the samples of a prompt; raise "
            "it, or change spec.algorithm.settings"
        )
    if settings.dynamic_sampling and algorithm.deterministic:
        yield (
            "spec.algorithm.settings.dynamicSampling: must be false when deterministic is true: "
            "timing decides which groups are left out"
        )
    if spec.reference != ReferenceSpec() and not settings.needs_reference:
        yield (
            "spec.reference: nothing uses a reference model; set "
            "spec.algorithm.settings.klCoefficient above 0, or remove spec.reference"
        )
    if spec.critic != CriticSpec() and not settings.needs_critic:
        yield (
            "spec.critic: nothing uses a critic; set spec.algorithm.settings.baseline: critic, or "
            "remove spec.critic"
        )


def _supervised_errors(spec: RLJobSpec) -> Iterator[str]:
    """What only rollouts and their samples give a meaning."""
    if spec.evaluation is not None:
        yield (
            "spec.evaluation: a supervised job has no rollouts that could answer; use "
            "spec.supervised.evaluation, or remove it"
        )
    unused = {
        "reference": spec.reference != ReferenceSpec(),
        "critic": spec.critic != CriticSpec(),
        "rewardModel": spec.reward_model is not None,
    }
    for field in (name for name, given in unused.items() if given):
        yield f"spec.{field}: supervised training has no use for it; remove it"
