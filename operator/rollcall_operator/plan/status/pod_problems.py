"""Why a pod is not ready, with the field to change and what to do."""

from dataclasses import dataclass

from rollcall_operator.api.conditions import Reason
from rollcall_operator.plan.failure import describe_exit
from rollcall_operator.plan.model import Manifest, PodFacts
from rollcall_protocol.env import ExitCode

_PULL = {
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
}
_START = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}
_LONGEST = 600


@dataclass(frozen=True, slots=True)
class Problem:
    """`message` reads `path: what is wrong; what to do`."""

    reason: Reason
    message: str


def problem(pod: PodFacts, template: Manifest, path: str) -> Problem | None:
    """What keeps a pod from being ready, None if it is just not there yet.

    The message stays the same while the trouble does: no counts and no back-off times in it.
    """
    if pod.ready:
        return None
    if pod.unschedulable:
        return Problem(
            Reason.UNSCHEDULABLE,
            f"{path}.spec: pod {pod.name} cannot be scheduled: {_short(pod.unschedulable)}; change "
            "its requests, nodeSelector, tolerations or volumes, or add nodes",
        )
    where, image = _place(pod, template, path)
    if pod.waiting_reason in _PULL:
        return Problem(
            Reason.IMAGE_PULL_FAILED,
            f"{where}.image: {image!r} cannot be pulled ({_cause(pod)}); correct the name, push "
            "the image, or set imagePullSecrets",
        )
    if pod.waiting_reason in _START:
        return Problem(
            Reason.CANNOT_START,
            f"{where}: pod {pod.name} cannot start its container: {_cause(pod)}; correct the "
            "template",
        )
    if pod.exit_code is None:
        return None
    if pod.exit_code == ExitCode.BAD_CONFIG and not pod.init:
        return Problem(Reason.BAD_CONFIG, _refused_settings(pod, path))
    looping = pod.restarts > 1 or pod.waiting_reason == "CrashLoopBackOff"
    return Problem(
        Reason.CRASH_LOOP if looping else Reason.RESTARTING,
        f"{where}: pod {pod.name} ended with {_short(describe_exit(pod))}; see its log, correct "
        "its command, image or resources",
    )


def _refused_settings(pod: PodFacts, path: str) -> str:
    """A worker names the field of the job itself, as its last words."""
    last_words = _short(pod.exit_message)
    if last_words.startswith("spec."):
        return f"{last_words} (pod {pod.name}); correct the spec and make the job again"
    return f"{path}: pod {pod.name}: {last_words or 'the worker refuses its settings'}; see its log"


def _place(pod: PodFacts, template: Manifest, path: str) -> tuple[str, str]:
    """Path and image of the container in trouble, as the user wrote them."""
    kind = "initContainers" if pod.init else "containers"
    for index, container in enumerate(template["spec"].get(kind) or ()):
        if container.get("name") == pod.container:
            return f"{path}.spec.{kind}[{index}]", str(container.get("image", ""))
    return f"{path}.spec.{kind}", pod.container


def _cause(pod: PodFacts) -> str:
    """The kubelet's words without its back-off, which comes and goes."""
    _, _, cause = pod.waiting_message.partition("ErrImagePull: ")
    return _short(cause or pod.waiting_message or pod.waiting_reason)


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST else f"...{text[-_LONGEST:]}"
