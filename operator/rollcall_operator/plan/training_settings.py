"""Errors of the trainer's ranks, devices and settings that show before its image is started."""

from collections.abc import Iterator
from dataclasses import fields

from rollcall_operator.api import labels
from rollcall_operator.api.quantity import parse_decimal
from rollcall_operator.api.rljob import NOT_FOR_EXTERNAL, RLJobSpec
from rollcall_operator.api.roles import CriticSpec, ReferenceSpec
from rollcall_operator.api.training import TrainEngineSpec, TrainerSpec
from rollcall_operator.plan.children.trainer_ranks import accelerators, claims, processes_per_pod
from rollcall_operator.plan.children.worker_config import algorithm_settings
from rollcall_protocol.data_config import FRONT
from rollcall_protocol.pod_contract import MAX_PROCESSES
from rollcall_protocol.settings_reader import SettingError, camel_case, read_settings
from rollcall_protocol.train_settings import (
    ADAPTER,
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


def sends_adapters(trainer: TrainerSpec) -> bool:
    """Whether low-rank adapters alone leave the trainer."""
    return trainer.engine.config.get("loraExport") == ADAPTER


def _device_errors(trainer: TrainerSpec) -> Iterator[str]:
    asked = accelerators(trainer.template, labels.TRAINER)
    processes = processes_per_pod(trainer)
    number = sum(asked.values())
    names = " and ".join(f"{amount} {name}" for name, amount in asked.items())
    claimed = claims(trainer.template, labels.TRAINER)
    if asked and trainer.device == "cpu":
        yield _idle_devices(labels.TRAINER, names)
    elif trainer.external:
        return  # its program starts the processes
    elif claimed and trainer.processes_per_pod is None and trainer.device != "cpu":
        yield (
            "spec.trainer.processesPerPod: the devices of the trainer's claims "
            f"({', '.join(claimed)}) are not counted; set it to their number"
        )
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
        yield from _external_errors(spec) if spec.trainer.external else _supervised_errors(spec)
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
    yield from _front_errors(spec)
    if spec.reference != ReferenceSpec() and not settings.needs_reference:
        yield (
            "spec.reference: nothing uses a reference model; set "
            "spec.algorithm.settings.klCoefficient above 0, or remove spec.reference"
        )
    yield from _environment_errors(spec)
    if spec.reference.path and spec.reference.update_every and sends_adapters(spec.trainer):
        yield (
            "spec.reference.path: the policy's adapter fits the job's own model alone, and "
            "updateEvery has the reference take it; remove path, or set updateEvery to 0"
        )
    if spec.critic != CriticSpec() and not settings.needs_critic:
        yield (
            "spec.critic: nothing uses a critic; set spec.algorithm.settings.baseline: critic, or "
            "remove spec.critic"
        )


def _environment_errors(spec: RLJobSpec) -> Iterator[str]:
    reward = spec.reward
    if reward is None:
        return
    functions = {"spec.reward.function": reward.function}
    for index, part in enumerate(reward.parts or ()):
        functions[f"spec.reward.parts[{index}].function"] = part.function
    wanted = [field for field, function in functions.items() if function == "environment"]
    if wanted and spec.environment is None:
        yield f"{wanted[0]}: environment is the reward of spec.environment, which is not given"
    if spec.environment is not None and parse_decimal(reward.verify_share) > 0:
        yield (
            "spec.reward.verifyShare: must be 0 with spec.environment: the trainer does not play "
            "the turns of a sample again"
        )


def _front_errors(spec: RLJobSpec) -> Iterator[str]:
    """Whether agents' trajectories can be what the job trains on."""
    data = spec.data
    if data is None:
        return
    names = [source.name for source in data.sources or ()]
    if FRONT in names:
        yield f"spec.data.sources: {FRONT} must be the only source; give it as spec.data.prompts"
    if data.prompts != FRONT:
        return
    if spec.front is None:
        yield f"spec.data.prompts: {FRONT} needs the front that agents use; add spec.front"
    if spec.algorithm is not None and spec.algorithm.deterministic:
        yield (
            f"spec.algorithm.deterministic: must be false with {FRONT}: agents decide when there "
            "are trajectories"
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
        "environment": spec.environment is not None,
        "rewardModel": spec.reward_model is not None,
    }
    for field in (name for name, given in unused.items() if given):
        yield f"spec.{field}: supervised training has no use for it; remove it"


def _external_errors(spec: RLJobSpec) -> Iterator[str]:
    """What only a built-in trainer gives a meaning. The rules of the API have the other fields,
    those without defaults.
    """
    given = {
        "reference": spec.reference != ReferenceSpec(),
        "critic": spec.critic != CriticSpec(),
        "trainer.engine": spec.trainer.engine != TrainEngineSpec(config={}),
        "trainer.recoverFrom": spec.trainer.recover_from != "Checkpoint",
    }
    for field in (name for name, is_given in given.items() if is_given):
        yield f"spec.{field}: {NOT_FOR_EXTERNAL}"
