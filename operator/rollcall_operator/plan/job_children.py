"""The children of a job: those that it should have, those to apply, and those to delete."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rollcall_operator.api import labels
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan import apply_needed
from rollcall_operator.plan.children import certificates, network_policies
from rollcall_operator.plan.children import front as front_children
from rollcall_operator.plan.children import reference as reference_children
from rollcall_operator.plan.children import rollout as rollout_children
from rollcall_operator.plan.children import trainer as trainer_children
from rollcall_operator.plan.children.pod_template import with_default_user
from rollcall_operator.plan.job_view import JobView
from rollcall_operator.plan.model import NETWORK_POLICY, Manifest, ObjectDeletion, ObservedJob
from rollcall_operator.plan.refusals import (
    explain,
    frozen_errors,
    made_by_other_job,
    pool_errors,
    refusal_errors,
    refused,
    unowned_errors,
)
from rollcall_operator.plan.trainer_restart import restart_request
from rollcall_operator.plan.validate import job_errors
from rollcall_operator.plan.worker_user import with_record, worker_user

_MAKES_PODS = frozenset({"StatefulSet", "Deployment"})


@dataclass(frozen=True, slots=True)
class ChildrenPlan:
    """What is wrong with the spec, the children that it asks for, and those of them to apply.

    `leftovers`: some wait until those of an earlier job are garbage-collected. `inputs`: for which
    there was nothing wrong and nothing to apply, None otherwise.
    """

    errors: tuple[str, ...] = ()
    wanted: tuple[Manifest, ...] = ()
    applies: tuple[Manifest, ...] = ()
    leftovers: bool = False
    inputs: tuple[object, ...] | None = None


def plan_children(view: JobView) -> ChildrenPlan:
    """Compare the children that the job should have with those that exist.

    Nothing is compared while `_inputs_of_children` are those that were settled before.
    """
    observed, inputs = view.observed, _inputs_of_children(view)
    if inputs is not None and inputs == observed.memory.settled:
        return ChildrenPlan(inputs=inputs)
    spec, rollouts, live = view.spec, view.spec.rollouts or (), observed.children
    errors = (*job_errors(spec), *pool_errors(view.job, rollouts, view.pools))
    if not view.stopped:
        errors = (*errors, *frozen_errors(view.job, spec.trainer, live))
    if observed.certificates_refused:
        errors = (*errors, observed.certificates_refused)
    children = [] if errors else list(_children(view))
    errors = (*errors, *unowned_errors(view.job, live, children))
    children = [] if errors else children
    applies, leftovers = _to_apply(view, children)
    refused_ones = refusal_errors(
        view.name, rollouts, view.pools, children=children, refusals=observed.refusals
    )
    errors = (*errors, *refused_ones)
    settled = not (errors or applies or leftovers)
    return ChildrenPlan(errors, tuple(children), applies, leftovers, inputs if settled else None)


def _inputs_of_children(view: JobView) -> tuple[object, ...] | None:
    """All that `plan_children` depends on; None where that is not known."""
    observed = view.observed
    if observed.contents is None or observed.refusals or observed.certificates_refused:
        return None
    return (
        observed.contents,
        tuple(
            (pool.name, pool.exists, pool.owned, pool.wanted, pool.errors) for pool in view.pools
        ),
        (view.no_pods_wanted, view.outcome is None, view.reference_replicas),
        (observed.trust, observed.authority, observed.policy_peers, observed.worker_user),
    )


def _children(view: JobView) -> Iterator[Manifest]:
    """All children that the job should have. A pool's Deployment needs the pool's uid first."""
    job, spec, user = view.job, view.spec, worker_user(view)
    live_pools = {raw["metadata"]["name"]: raw for raw in view.observed.pools}
    replicas = 0 if view.no_pods_wanted else spec.trainer.replicas
    # NetworkPolicies come before the pods that they protect.
    yield from network_policies.of_job(job, spec, view.observed.policy_peers)
    yield trainer_children.service(job)
    if view.observed.trust is not None:
        authorities = certificates.believed_authorities(
            job, view.observed.children, view.observed.authority
        )
        yield certificates.trust_config_map(job, view.observed.trust, authorities)
    trainer = trainer_children.stateful_set(
        job, spec, replicas=replicas, restart_request=restart_request(job)
    )
    yield with_record(with_default_user(trainer, user), user)
    if spec.reference.template is not None:
        yield reference_children.service(job)
        yield with_default_user(
            reference_children.deployment(
                job, spec, spec.reference.template, replicas=view.reference_replicas
            ),
            user,
        )
    if spec.front is not None:
        yield front_children.service(job)
        wanted = 0 if view.no_pods_wanted else spec.front.replicas
        front = front_children.stateful_set(job, spec, spec.front, replicas=wanted)
        yield with_default_user(front, user)
    for rollout in spec.rollouts or ():
        name = labels.pool_name(view.name, rollout.name)
        yield rollout_children.pool(job, rollout, live_pools.get(name))
    for pool in view.pools:
        foreign = made_by_other_job(pool.raw, view.uid)
        if pool.exists and pool.spec is not None and not pool.errors and not foreign:
            yield with_default_user(
                rollout_children.deployment(job, spec, pool.raw, pool.spec, replicas=pool.wanted),
                user,
            )


def _to_apply(view: JobView, children: Iterable[Manifest]) -> tuple[tuple[Manifest, ...], bool]:
    """The children that differ from the live ones, and whether any waits until an earlier job's
    leftovers are garbage-collected.

    A refused child waits until it changes, or the API server accepts it in a dry run. Pods of a
    finished job that are kept stay as they are: they are there for their logs.
    """
    observed, finished = view.observed, view.outcome is not None
    keeps_pods = finished and not view.no_pods_wanted
    live_objects = (*observed.children, *observed.pools)
    live = {apply_needed.key(child): child for child in live_objects}
    applies, leftovers = [], False
    for child in children:
        existing = live.get(apply_needed.key(child))
        if existing is None and finished:
            continue  # a finished job gets nothing new
        if keeps_pods and child["kind"] in _MAKES_PODS:
            continue
        if existing is not None and made_by_other_job(existing, observed.job_uid):
            leftovers = True
        elif refused(observed.refusals, child):
            continue
        elif existing is None or apply_needed.differs(child, existing):
            applies.append(child)
    return tuple(applies), leftovers


def pool_refusal(observed: ObservedJob, name: str, children: Sequence[Manifest]) -> str:
    """Why the pool's Deployment is refused, with paths in the pool."""
    for child in children:
        if apply_needed.key(child) == f"Deployment/{name}":
            message = refused(observed.refusals, child)
            return explain(child, message, "spec.template") if message else ""
    return ""


def deletes(view: JobView, *, expired: bool) -> tuple[ObjectDeletion, ...]:
    """What was removed from the job (pools, pods of the reference, NetworkPolicies), and the job
    itself after its time to live.
    """
    if expired:
        return (ObjectDeletion(kind="RLJob", name=view.name, uid=view.uid),)
    kept = {labels.pool_name(view.name, rollout.name) for rollout in view.spec.rollouts or ()}
    pools = (
        ObjectDeletion(kind="RolloutPool", name=pool.name, uid=pool.raw["metadata"]["uid"])
        for pool in view.pools
        if pool.owned and pool.exists and pool.name not in kept
    )
    return (*pools, *_child_deletes(view.job, view.spec, view.observed))


def _child_deletes(
    job: Manifest, spec: RLJobSpec, observed: ObservedJob
) -> Iterator[ObjectDeletion]:
    wanted = network_policies.of_job(job, spec, observed.policy_peers)
    policies = {policy["metadata"]["name"] for policy in wanted}
    for child in observed.children:
        metadata = child["metadata"]
        owned = rollout_children.is_owned(child, job["metadata"]["uid"])
        if not owned or "deletionTimestamp" in metadata:
            continue
        if child["kind"] == NETWORK_POLICY:
            removed = metadata["name"] not in policies
        else:
            reference = metadata["name"] == labels.reference_name(observed.name)
            removed = reference and spec.reference.template is None
        if removed:
            yield ObjectDeletion(kind=child["kind"], name=metadata["name"], uid=metadata["uid"])
