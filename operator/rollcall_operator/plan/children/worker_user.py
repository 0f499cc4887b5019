"""The user of workers whose template leaves it to the image.

The kubelet gives a pod's token to the pod's user alone (mode 0600) if all of its containers name
one and the same user; otherwise every user may read it (0644).
"""

from rollcall_operator.plan.model import Manifest


def with_default_user(child: Manifest, user: int | None) -> Manifest:
    """A StatefulSet or Deployment of workers, with this user id where the template names none.

    A pod of several containers is left alone, since their images may need different users, and so
    is a privileged container.
    """
    pod = child["spec"]["template"]["spec"]
    containers = pod["containers"]
    if user is None or len(containers) > 1 or pod.get("initContainers"):
        return child
    context: Manifest = containers[0].get("securityContext") or {}
    named = "runAsUser" in context or "runAsUser" in (pod.get("securityContext") or {})
    if not named and not context.get("privileged"):
        containers[0]["securityContext"] = {**context, "runAsUser": user}
    return child
