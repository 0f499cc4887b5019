"""Which user the workers have whose templates name none: a running job keeps the one it has."""

import re

from rollcall_operator.api import labels
from rollcall_operator.plan.children.rollout import is_owned
from rollcall_operator.plan.job_view import JobView
from rollcall_operator.plan.model import Manifest
from rollcall_operator.plan.trainer_restart import is_new_request, live_stateful_set

_OF_THE_IMAGE = "image"
_NUMBER = re.compile("[0-9]{1,10}")
_MOST = 2**31 - 1  # of a user id in Kubernetes


def worker_user(view: JobView) -> int | None:
    """The default user of the job's workers; None for that of their images.

    The operator's setting, when the job starts, is suspended, or its trainer's restart is asked
    for. In between it stays as `with_record` wrote it: another one would restart the rollouts.
    """
    setting, live = view.observed.worker_user, live_stateful_set(view.job, view.observed.children)
    has_no_pods = view.no_pods_wanted and not view.reference_replicas
    if (
        live is None
        or has_no_pods
        or not is_owned(live, view.uid)
        or is_new_request(view.job, live)
    ):
        return setting
    recorded = (live["metadata"].get("annotations") or {}).get(labels.WORKER_USER, "")
    if recorded == _OF_THE_IMAGE:
        return None
    user = int(recorded) if _NUMBER.fullmatch(recorded) else 0
    return user if 0 < user <= _MOST else setting


def with_record(stateful_set: Manifest, user: int | None) -> Manifest:
    """The trainer's StatefulSet, which says beside its pods' template what the default user is."""
    said = {labels.WORKER_USER: _OF_THE_IMAGE if user is None else str(user)}
    return {**stateful_set, "metadata": {**stateful_set["metadata"], "annotations": said}}
