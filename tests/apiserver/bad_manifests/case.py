"""Wrong manifests, and the message that a user reads about each.

`where` is "apply": a server-side apply with fieldValidation=Strict is refused; or "condition": it
is accepted, and the operator reports what is wrong in a condition. `says` are parts of the message,
the field's path first.

A case applies `before` (manifests that are fine) and then `manifest`; when there is `then`, the
manifest with these further changes is applied too, and it is this one that is wrong.
"""

from dataclasses import dataclass, field
from typing import Literal

from tests.apiserver.bad_manifests.manifests import Changes, Manifest, changed, job, pool


@dataclass(frozen=True, slots=True)
class Expected:
    """The condition that reports it, of the object of this kind that the case applies."""

    type: str
    status: Literal["True", "False"]
    reason: str


INVALID = Expected("Validated", "False", "InvalidSpec")


@dataclass(frozen=True, slots=True)
class Case:
    """One wrong manifest; see the module's docstring."""

    name: str
    where: Literal["apply", "condition"]
    kind: Literal["RLJob", "RolloutPool"]
    says: tuple[str, ...]
    changes: Changes = field(default_factory=dict)
    then: Changes | None = None
    before: tuple[Manifest, ...] = ()
    expected: Expected = INVALID

    @property
    def manifest(self) -> Manifest:
        """What is applied first."""
        return changed(job() if self.kind == "RLJob" else pool(), self.changes)

    @property
    def second(self) -> Manifest | None:
        """What is applied after that."""
        return None if self.then is None else changed(self.manifest, self.then)


TRAINER = "spec.trainer.template.spec"
ROLLOUT = "spec.rollouts[0].template.spec"
REFERENCE = "spec.reference.template.spec"
SUSPEND_FIRST = "set spec.suspend: true first"
