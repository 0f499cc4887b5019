"""Applies children of jobs, and takes over nothing that somebody else made.

The operator sees objects by their label. A first apply finds what has the same name and no label:
server-side apply refuses a field with another value, and would merge with all else, such as a
container that is beside the operator's.
"""

from rollcall_operator.api import labels
from rollcall_operator.kube.client import KubeClient, Object
from rollcall_operator.kube.errors import RefusedError
from rollcall_operator.kube.resources import ROLLOUT_POOLS, resource_of
from rollcall_operator.plan.refusals import NO_CHILD


async def apply_child(
    client: KubeClient, body: Object, *, force: bool, dry_run: bool = False
) -> Object:
    """As KubeClient.apply. Without `force`, which is for what was seen before, RefusedError for an
    object that lacks the label of the job's children.
    """
    # The API server itself refuses another job in a RolloutPool.
    if not force and body["kind"] != ROLLOUT_POOLS.kind:
        await _refuse_others(client, body)
    return await client.apply(body, force=force, dry_run=dry_run)


async def _refuse_others(client: KubeClient, body: Object) -> None:
    metadata = body["metadata"]
    found = await client.list(
        resource_of(body["kind"]),
        namespace=metadata["namespace"],
        fields=f"metadata.name={metadata['name']}",
    )
    own = metadata["labels"][labels.JOB]
    if any((each["metadata"].get("labels") or {}).get(labels.JOB) != own for each in found):
        raise RefusedError(status=409, reason="AlreadyExists", message=NO_CHILD, what="apply")
