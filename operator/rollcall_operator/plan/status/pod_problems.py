"""Why a pod is not ready, with the field to change and what to do."""

from dataclasses import dataclass

from rollcall_operator.api.conditions import Reason
from rollcall_operator.api.training import TrainerSpec
from rollcall_operator.plan import mounted_code
from rollcall_operator.plan.external_trainer import uncalled_at_end
from rollcall_operator.plan.failure import describe_exit, memory_advice, ran_out_of_memory
from rollcall_operator.plan.model import Manifest, PodFacts
from rollcall_operator.plan.status.failed_mounts import describe_failed_mount
from rollcall_protocol.pod_contract import ExitCode

_PULL_FAILED = {
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
}
_START_FAILED = {
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "StartError",
}
_LONGEST = 600


@dataclass(frozen=True, slots=True)
class PodProblem:
    """`message` reads `path: what is wrong; what to do`."""

    reason: Reason
    message: str


def find_problem(
    pod: PodFacts, template: Manifest, path: str, trainer: TrainerSpec | None = None
) -> PodProblem | None:
    """What keeps a pod from being ready; None while it starts normally.

    `path` is the template's in the spec; `trainer` is the spec of a trainer's pod. The message
    stays the same as long as the problem does: it holds no counts and no back-off times.
    """
    if pod.ready:
        return None
    if pod.unschedulable:
        return PodProblem(
            Reason.UNSCHEDULABLE,
            f"{path}.spec: pod {pod.name} cannot be scheduled: {_cut(pod.unschedulable)}; "
            f"{_scheduling_cure(pod.unschedulable)}",
        )
    if pod.mount_failure:
        return PodProblem(Reason.MOUNT_FAILED, describe_failed_mount(pod, template, path))
    where, image = _place(pod, template, path)
    if pod.waiting_reason in _PULL_FAILED:
        return PodProblem(
            Reason.IMAGE_PULL_FAILED,
            f"{where}.image: image {image!r} of pod {pod.name} cannot be pulled "
            f"({_waiting_cause(pod)}); correct the name, push the image, or set imagePullSecrets",
        )
    if pod.waiting_reason in _START_FAILED:
        return PodProblem(
            Reason.CANNOT_START,
            f"{where}: container {pod.container} of pod {pod.name} cannot start: "
            f"{_waiting_cause(pod)}; correct the pod template",
        )
    if pod.exit_code is None:
        return None
    if pod.exit_code == ExitCode.BAD_CONFIG and not pod.init:
        return PodProblem(Reason.BAD_CONFIG, _rejected_settings(pod, path, template))
    return _exit_problem(pod, where, trainer)


def _scheduling_cure(message: str) -> str:
    """What to do about the scheduler's message."""
    if "persistentvolumeclaim" in message and "not found" in message:
        return "create the PersistentVolumeClaim, or correct claimName"
    if "unbound immediate PersistentVolumeClaims" in message:
        return (
            "kubectl describe pvc says why the claim has no volume; correct its storage class or "
            "size, or create a volume"
        )
    return "change its resource requests, nodeSelector, tolerations or volumes, or add nodes"


def _exit_problem(pod: PodFacts, where: str, trainer: TrainerSpec | None) -> PodProblem:
    if pod.exit_code == ExitCode.FENCED and not pod.init:
        return PodProblem(
            Reason.RESTARTING,
            f"{where}: container {pod.container} of pod {pod.name} ended with "
            f"{_cut(describe_exit(pod))}; it is replaced, and nothing needs to be done",
        )
    if ran_out_of_memory(pod):
        return PodProblem(Reason.OUT_OF_MEMORY, _too_little_memory(pod, where, trainer))
    uncalled = uncalled_at_end(trainer, pod) if trainer is not None else ""
    looping = pod.restarts > 1 or pod.in_back_off
    return PodProblem(
        Reason.CRASH_LOOP if looping else Reason.RESTARTING,
        f"{where}: container {pod.container} of pod {pod.name} ended with "
        f"{_cut(describe_exit(pod))}; {uncalled or _read_log(pod)}",
    )


def _read_log(pod: PodFacts) -> str:
    return (
        f"read its log (kubectl logs {pod.name} -c {pod.container} --previous), then correct its "
        "command, image or resources"
    )


def _rejected_settings(pod: PodFacts, path: str, template: Manifest) -> str:
    """The worker's termination message names the field of the job's spec itself."""
    why = _cut(pod.exit_message)
    if why.startswith("spec."):
        return f"{why} (pod {pod.name}). {mounted_code.cure(why, template)}"
    return (
        f"{path}: pod {pod.name} rejected its settings: {why or 'no message'}; read its log "
        f"(kubectl logs {pod.name} -c {pod.container} --previous)"
    )


def _too_little_memory(pod: PodFacts, where: str, trainer: TrainerSpec | None) -> str:
    """A worker that notices names a field itself; one that the kernel killed says nothing."""
    if not pod.oom_killed and pod.exit_message.startswith("spec."):
        return f"{_cut(pod.exit_message)} (pod {pod.name})"
    return (
        f"{where}.resources.limits.memory: container {pod.container} of pod {pod.name} ended with "
        f"{_cut(describe_exit(pod))}; {memory_advice(pod, trainer)}"
    )


def _place(pod: PodFacts, template: Manifest, path: str) -> tuple[str, str]:
    """Path and image of the failing container, as the user wrote them."""
    kind = "initContainers" if pod.init else "containers"
    for index, container in enumerate(template["spec"].get(kind) or ()):
        if container.get("name") == pod.container:
            return f"{path}.spec.{kind}[{index}]", str(container.get("image", ""))
    return f"{path}.spec.{kind}", pod.container


def _waiting_cause(pod: PodFacts) -> str:
    """The kubelet's message without its back-off, which comes and goes."""
    _, _, cause = pod.waiting_message.partition("ErrImagePull: ")
    return _cut(cause or pod.waiting_message or pod.waiting_reason)


def _cut(text: str) -> str:
    text = text.strip()
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} ... {text[-half:]}"
