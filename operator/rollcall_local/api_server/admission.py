"""What the API server does to an object that is written: refusals, and defaults.

Those of an RLJob and a RolloutPool are those of the definitions in crds/, by the models that these
are generated from.
"""

from typing import Any

from rollcall_local.api_server import shapes
from rollcall_local.api_server.errors import InvalidError
from rollcall_operator.api.rljob import JOB_RULES, RLJobSpec
from rollcall_operator.api.rolloutpool import POOL_RULES, RolloutPoolSpec
from rollcall_operator.api.rules import Model, Rule
from rollcall_operator.kube.resources import RL_JOBS, ROLLOUT_POOLS, Resource
from rollcall_operator.plan.validate import parse

Object = dict[str, Any]

_MODELS: dict[str, tuple[type[Model], tuple[Rule, ...]]] = {
    RL_JOBS.plural: (RLJobSpec, JOB_RULES),
    ROLLOUT_POOLS.plural: (RolloutPoolSpec, POOL_RULES),
}


def admit(resource: Resource, body: Object, before: Object | None) -> Object:
    """The object with its defaults; InvalidError, which names every field that is wrong."""
    if resource.plural not in _MODELS:
        _refuse(resource, body, list(shapes.mistakes(resource, body)))
        return body
    model, rules = _MODELS[resource.plural]
    errors = [
        rule.message
        for rule in rules
        if rule.holds is not None and not rule.holds(body["metadata"]["name"])
    ]
    spec, wrong = parse(model, body.get("spec"), "spec")
    errors += wrong
    if spec is None:
        _refuse(resource, body, errors)
        return body
    if before is not None:
        errors += _changes(model, before["spec"], spec)
    _refuse(resource, body, errors)
    return {**body, "spec": spec.model_dump(by_alias=True, exclude_none=True)}


def _refuse(resource: Resource, body: Object, errors: list[str]) -> None:
    if errors:
        name = body["metadata"]["name"]
        raise InvalidError(f'{resource.kind} "{name}" is invalid: {"; ".join(errors)}')


def _changes(model: type[Model], before: Object, now: Model) -> list[str]:
    """Fields that must not become what they are now."""
    was, wrong = parse(model, before, "spec")
    if was is None:
        return [f"what is there is of another version: {error}" for error in wrong]
    return [
        f"spec{rule.path}: {rule.message}"
        for rule in model.RULES
        if rule.allows is not None and not rule.allows(was, now)
    ]
