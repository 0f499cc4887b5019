"""Rules for what objects of all kinds have: metadata, and a status with conditions.

Names are parts of URLs, and of file names here.

https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
"""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from rollcall_local.api_server.errors import InvalidError
from rollcall_operator.api.rules import Model
from rollcall_operator.api.scalars import matches
from rollcall_operator.plan.validate import parse

Object = dict[str, Any]

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_WORD = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_Subdomain = Annotated[
    str,
    Field(max_length=240),  # 253 in Kubernetes; the name of its file is a little longer
    matches(
        f"^{_LABEL}(\\.{_LABEL})*$",
        "must be lower-case letters, digits, '-' and '.', and begin and end with a letter or digit",
    ),
]
_Namespace = Annotated[
    str,
    Field(max_length=63),
    matches(f"^{_LABEL}$", "must be lower-case letters, digits and '-', and begin with none"),
]
_LabelKey = Annotated[
    str,
    matches(
        f"^([a-z0-9][-a-z0-9.]{{0,252}}/)?{_WORD}$",
        "must be letters, digits, '-', '_' and '.', perhaps after a domain and a '/'",
    ),
]
_LabelValue = Annotated[
    str, matches(f"^({_WORD})?$", "must be at most 63 letters, digits, '-', '_' and '.'")
]


class OpenModel(Model):
    """A model of some fields, beside which there may be others."""

    model_config = ConfigDict(extra="allow")


class _Owner(OpenModel):
    api_version: str
    kind: str
    name: str
    uid: str


class _Metadata(OpenModel):
    name: _Subdomain
    namespace: _Namespace | None = None
    labels: dict[_LabelKey, _LabelValue] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[_Owner] | None = None


class _Condition(OpenModel):
    type: str
    status: str


class NamedModel(OpenModel):
    """What has a name among others."""

    name: str


class _Status(OpenModel):
    phase: str | None = None
    conditions: list[_Condition] | None = None
    container_statuses: list[NamedModel] | None = None
    init_container_statuses: list[NamedModel] | None = None


def check_metadata(kind: str, metadata: Object) -> None:
    """InvalidError, which names every field that is wrong."""
    _, wrong = parse(_Metadata, metadata, "metadata")
    _refuse(kind, metadata.get("name"), wrong)


def check_status(kind: str, name: str, status: Any) -> None:
    """InvalidError, which names every field that is wrong."""
    _, wrong = parse(_Status, status, "status")
    _refuse(kind, name, wrong)


def check_finalizers(kind: str, before: Object, now: Object) -> None:
    """InvalidError for a finalizer that is new on an object which is being deleted."""
    new = {*(now.get("finalizers") or ())} - {*(before.get("finalizers") or ())}
    if new and "deletionTimestamp" in before:
        problem = (
            "metadata.finalizers: no new ones can be added if the object is being deleted: "
            f"{', '.join(sorted(new))}"
        )
        _refuse(kind, before["name"], (problem,))


def _refuse(kind: str, name: Any, wrong: tuple[str, ...]) -> None:
    if wrong:
        raise InvalidError(f'{kind} "{name}" is invalid: {"; ".join(wrong)}')
