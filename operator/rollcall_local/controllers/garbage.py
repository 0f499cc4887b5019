"""Objects whose owners are gone.

https://kubernetes.io/docs/concepts/architecture/garbage-collection/
"""

from collections.abc import Iterable

from rollcall_local.controllers.changes import Object


def orphans(objects: Iterable[Object]) -> list[Object]:
    """Those that name owners of which none is there any more."""
    everything = list(objects)
    uids = {found["metadata"]["uid"] for found in everything}
    return [
        found
        for found in everything
        if (owners := found["metadata"].get("ownerReferences"))
        and not any(owner["uid"] in uids for owner in owners)
    ]
