"""Where the user's code of a reward or environment comes from, as far as a pod template says."""

from collections.abc import Iterator

from rollcall_operator.plan.model import Manifest

_FIELDS = ("spec.reward.", "spec.environment")


def cure(problem: str, template: Manifest) -> str:
    """What to do about settings that a worker rejected: correct the spec, or the user's code.

    `problem` begins with the field of the spec; `template` is the worker's.
    """
    then = "then delete and recreate the RLJob"
    if not problem.startswith(_FIELDS):
        return f"Correct the spec, {then}"
    mounts = ", ".join(_config_maps(template))
    where = f" (its file may be in {mounts})" if mounts else ""
    return f"Correct the function{where}, or the spec, {then}"


def _config_maps(template: Manifest) -> Iterator[str]:
    """The ConfigMaps that its containers have mounted, each once."""
    volumes = {
        volume["name"]: volume["configMap"].get("name", "")
        for volume in template["spec"].get("volumes") or ()
        if volume.get("configMap")
    }
    for container in template["spec"]["containers"]:
        for mount in container.get("volumeMounts") or ():
            name = volumes.pop(mount.get("name"), "")
            if name:
                yield f"ConfigMap {name}, mounted at {mount.get('mountPath')}"
