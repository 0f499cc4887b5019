"""Children that the API server refused: remembered for a condition, and tried again with delays."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rollcall_operator.control.backoff import BackoffPolicy
from rollcall_operator.control.child_apply import apply_child
from rollcall_operator.kube.client import KubeClient, Object
from rollcall_operator.kube.errors import RefusedError, TerminatingError
from rollcall_operator.plan import apply_needed
from rollcall_operator.plan.model import Refusal

_BACKOFF = BackoffPolicy(first=20.0, longest=300.0)


@dataclass(slots=True)
class _RefusedChild:
    """`retry_at` is in seconds of the owner's clock. `force` as of `apply_child`."""

    body: Object
    force: bool
    refusal: Refusal
    retry_at: float
    attempts: int = 1


class RefusedChildren:
    """The refused children of one job, by their key, such as "StatefulSet/reverse-trainer"."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._children: dict[str, _RefusedChild] = {}

    @property
    def refusals(self) -> Mapping[str, Refusal]:
        """What the planner needs to know."""
        return {name: child.refusal for name, child in self._children.items()}

    def add(self, body: Object, message: str, *, force: bool) -> None:
        """The API server refused `body`, applied with or without `force`; its resourceVersion does
        not matter for a retry.
        """
        metadata = {k: v for k, v in body["metadata"].items() if k != "resourceVersion"}
        self._children[apply_needed.key(body)] = _RefusedChild(
            body={**body, "metadata": metadata},
            force=force,
            refusal=Refusal(digest=apply_needed.digest(body), message=message),
            retry_at=self._clock() + _BACKOFF.delay(1),
        )

    def discard(self, body: Object) -> None:
        """The API server accepted `body`."""
        self._children.pop(apply_needed.key(body), None)

    async def retry(self) -> None:
        """Try those that are due in a dry run, and forget those that are accepted now.

        Raises TerminatingError and the client's errors, except RefusedError.
        """
        now = self._clock()
        for name, child in list(self._children.items()):
            if child.retry_at > now:
                continue
            try:
                await apply_child(self._client, child.body, force=child.force, dry_run=True)
            except TerminatingError:
                raise
            except RefusedError as error:
                child.attempts += 1
                child.retry_at = now + _BACKOFF.delay(child.attempts)
                child.refusal = Refusal(digest=child.refusal.digest, message=error.message)
            else:
                del self._children[name]

    def next_retry(self) -> float | None:
        """Seconds until the next child is due, at least 0.1; None if there is none."""
        now = self._clock()
        waits = [max(0.1, child.retry_at - now) for child in self._children.values()]
        return min(waits, default=None)
