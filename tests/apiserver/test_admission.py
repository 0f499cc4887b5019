"""The chart's admission policy, in a real API server: what templates it refuses, and to whom."""

import contextlib
import copy
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import yaml

from rollcall_operator.kube.client import Object
from rollcall_operator.kube.errors import RefusedError
from rollcall_operator.kube.resources import RL_JOBS, ROLLOUT_POOLS
from rollcall_operator.plan_command import children
from tests.apiserver.admission_cases import (
    ACCOUNT,
    IDENTITY,
    NO_PODS,
    POD_SECURITY,
    REGISTRY,
    SECRET,
    SECRETS,
    TemplateCase,
)
from tests.apiserver.bad_manifests.refused_at_apply import CA_BUNDLE
from tests.apiserver.cluster import rendered
from tests.apiserver.cluster_user import ACCOUNT as OPERATOR
from tests.apiserver.cluster_user import (
    ADMISSION_BINDINGS,
    ADMISSION_POLICIES,
    ROOT,
    ClusterUser,
    all_children,
    eventually,
    example,
    extra_pool,
)
from tests.apiserver.operator_process import OperatorProcess

JOB_TEMPLATES = (
    "spec.trainer.template",
    "spec.reference.template",
    "spec.front.template",
    "spec.rollouts[cpu].template",
)


def policy_name(user: ClusterUser) -> str:
    """Each namespace has a policy of its own."""
    return f"{user.namespace}-rollcall-operator"


def policy(user: ClusterUser, *flags: str) -> list[Object]:
    """The policy and its binding, which select the user's namespace once it has a label."""
    values = {
        "enabled": "true",
        "secrets": f"{{{SECRET}}}",
        "serviceAccounts": f"{{default,{ACCOUNT}}}",
        "imagePullSecrets": f"{{{REGISTRY}}}",
        "namespaceSelector.matchLabels.guarded": user.namespace,
    }
    sets = [("--set", f"admissionPolicy.{key}={value}") for key, value in values.items()]
    sets.append(("--set", f"serviceAccount.name={OPERATOR}"))
    objects = rendered(*(part for pair in sets for part in pair), *flags, release=policy_name(user))
    return [body for body in objects if "AdmissionPolicy" in body["kind"]]


@contextlib.asynccontextmanager
async def policy_in_force(user: ClusterUser, *flags: str) -> AsyncIterator[None]:
    """The chart's policy counts in the user's namespace, as Pod Security does, for this context."""
    for body in policy(user, *flags):
        await user.apply(body)
    await guard(user)
    yield
    for resource in (ADMISSION_BINDINGS, ADMISSION_POLICIES):
        await user.client.delete(resource, namespace=None, name=policy_name(user))


@pytest.fixture
async def guarded(user: ClusterUser) -> AsyncIterator[ClusterUser]:
    """A user in whose namespace the policy counts."""
    async with policy_in_force(user):
        yield user


async def guard(user: ClusterUser) -> None:
    """Label the namespace and wait until the policy counts there."""
    labels = {"guarded": user.namespace, "pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace"}
    await user.apply(namespace | {"metadata": {"name": user.namespace, "labels": labels}})

    async def refuses() -> bool:
        bad = TemplateCase("host", pod={"hostIPC": True}, refused="spec.hostIPC")
        try:
            await user.apply(job_with(bad, name="probe"), dry_run=True)
        except RefusedError:
            return True
        return False

    await eventually(refuses, "the policy counts")


def with_additions(template: Object, case: TemplateCase) -> Object:
    changed = copy.deepcopy(template)
    changed["spec"].update(case.pod or {})
    changed["spec"]["containers"][0].update(case.container or {})
    if case.annotations:
        changed.setdefault("metadata", {})["annotations"] = case.annotations
    return changed


def job_with(case: TemplateCase, *, name: str = "reverse") -> Object:
    """The example with the case's additions in the trainer's template."""
    job = example(name)
    trainer = job["spec"]["trainer"]
    trainer["template"] = with_additions(trainer["template"], case)
    return job


async def refusal(user: ClusterUser, body: Object) -> str:
    """The message with which the API server refuses an apply; empty if it takes it."""
    try:
        await user.apply(body, dry_run=True)
    except RefusedError as error:
        return str(error)
    return ""


async def test_a_template_is_refused_by_field_or_allowed_as_by_pod_security(
    guarded: ClusterUser,
) -> None:
    for case in (*POD_SECURITY, *NO_PODS, *IDENTITY, *SECRETS):
        said = await refusal(guarded, job_with(case))
        if case.refused:
            assert f"denied request: spec.trainer.template.{case.refused}: m" in said, (case, said)
        else:
            assert not said, (case, said)
    for case in POD_SECURITY:
        said = await refusal(guarded, completed_pod(job_with(case)))
        assert ('violates PodSecurity "restricted' in said) is case.restricted, (case, said)
        assert case.restricted or not said, (case, said)


def completed_pod(job: Object) -> Object:
    """The trainer's pod as the operator completes its template."""
    documents = list(yaml.safe_load_all(children(yaml.safe_dump(job), namespace="default")))
    (template,) = (body["spec"]["template"] for body in documents if body["kind"] == "StatefulSet")
    annotations = template["metadata"]["annotations"]
    metadata = {"name": "completed", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


async def test_every_template_of_every_kind_is_held_to_it(guarded: ClusterUser) -> None:
    """Three in an RLJob, one in a RolloutPool; init containers as well."""
    bad = TemplateCase("host", pod={"hostNetwork": True})
    job = job_with(bad)
    job["spec"]["reference"] = {"template": job["spec"]["trainer"]["template"]}
    job["spec"]["front"] = {"template": job["spec"]["trainer"]["template"], "withoutApiKeys": True}
    pool = job["spec"]["rollouts"][0]
    pool["template"] = with_additions(pool["template"], bad)
    at = ", ".join(f"{place}.spec.hostNetwork" for place in JOB_TEMPLATES)
    assert f"{at}: must be false or unset" in await refusal(guarded, job)
    lent = extra_pool("reverse")
    lent["spec"]["template"] = with_additions(lent["spec"]["template"], bad)
    assert "spec.template.spec.hostNetwork: must be" in await refusal(guarded, lent)
    first = {"name": "first", "image": "i", "securityContext": {"privileged": True}}
    job = job_with(TemplateCase("init", pod={"initContainers": [first]}))
    field = "spec.trainer.template.spec.initContainers[first].securityContext.privileged"
    assert f"{field}: must be false or unset" in await refusal(guarded, job)


def test_the_definitions_have_no_template_that_the_policy_does_not_know() -> None:
    texts = {path.name: path.read_text() for path in (ROOT / "crds").iterdir()}
    counts = {
        name: len(re.findall(r"^ +containers:$", text, re.MULTILINE))
        for name, text in texts.items()
    }
    assert counts == {
        "rollcall.dev_rljobs.yaml": len(JOB_TEMPLATES),
        "rollcall.dev_rolloutpools.yaml": 1,
    }


async def test_the_examples_are_allowed_with_the_default_lists(user: ClusterUser) -> None:
    values = {"secrets": "null", "imagePullSecrets": "null", "serviceAccounts": "{default}"}
    defaults = ",".join(f"admissionPolicy.{name}={value}" for name, value in values.items())
    async with policy_in_force(user, "--set", defaults):
        for path in sorted((ROOT / "examples").rglob("*.yaml")):
            for body in yaml.safe_load_all(path.read_text()):
                if body and body["kind"] in {"RLJob", "RolloutPool"}:
                    said = await refusal(user, body)
                    assert "denied request" not in said, (path, said)


async def test_a_star_allows_any_name(user: ClusterUser) -> None:
    stars = ",".join(
        f"admissionPolicy.{name}={{*}}"
        for name in ("secrets", "imagePullSecrets", "serviceAccounts")
    )
    async with policy_in_force(user, "--set", stars):
        for case in (*IDENTITY, *SECRETS):
            said = await refusal(user, job_with(case))
            assert bool(said) is (case.name == "token for another job"), (case, said)


async def test_the_api_server_finds_no_fault_in_its_expressions(guarded: ClusterUser) -> None:
    async def checked() -> Object | None:
        found = await guarded.client.get(
            ADMISSION_POLICIES, namespace=None, name=policy_name(guarded)
        )
        status: Object = found.get("status") or {}
        return status if "observedGeneration" in status else None

    status = await eventually(checked, "the controller has checked the types")
    assert not (status.get("typeChecking") or {}).get("expressionWarnings")


# --- changes -------------------------------------------------------------------------------------


async def test_what_was_there_before_can_be_used_but_not_made_worse(user: ClusterUser) -> None:
    bad = job_with(TemplateCase("host", pod={"hostNetwork": True}))
    await user.apply(bad)
    async with policy_in_force(user):
        await user.edit(RL_JOBS, "reverse", {"metadata": {"annotations": {"a": "b"}}})
        await user.edit(RL_JOBS, "reverse", {"spec": {"suspend": True}})
        worse = copy.deepcopy(bad)
        worse["spec"]["trainer"]["template"]["spec"]["hostPID"] = True
        assert "denied request: spec.trainer.template" in await refusal(user, worse)
        assert not await refusal(user, example())
        await user.apply(example())
        assert "hostNetwork: must be false" in await refusal(user, bad)


async def test_a_certificate_of_ones_own_is_one_of_the_listed_secrets(guarded: ClusterUser) -> None:
    def with_certificate(secret: str) -> Object:
        return with_tls(example(), {"secretName": secret, "caBundle": CA_BUNDLE})

    said = await refusal(guarded, with_certificate("another"))
    field, must = "spec.tls.secretName", "may use the Secrets of admissionPolicy.secrets only"
    assert f"{field}: {must}: {SECRET}" in said
    suspended = with_certificate(SECRET)
    suspended["spec"]["suspend"] = True
    await guarded.apply(suspended)
    suspended["spec"]["tls"]["secretName"] = "another"
    assert "spec.tls.secretName" in await refusal(guarded, suspended)


async def test_a_fronts_secrets_are_of_the_listed_ones(guarded: ClusterUser) -> None:
    def with_front(**secrets: str) -> Object:
        job = example()
        own = {"template": job["spec"]["trainer"]["template"], "apiKeysSecret": SECRET}
        job["spec"]["front"] = own | secrets
        return job

    assert not await refusal(guarded, with_front(tlsSecret=SECRET))
    for field in ("apiKeysSecret", "tlsSecret"):
        said = await refusal(guarded, with_front(**{field: "another"}))
        assert f"may use the Secrets of admissionPolicy.secrets only: {SECRET}" in said


def with_tls(job: Object, tls: Object) -> Object:
    job["spec"]["tls"] = tls
    return job


@pytest.mark.usefixtures("guarded")
async def test_the_operator_serves_a_job_under_it(
    user: ClusterUser, start_operator: Callable[[], OperatorProcess]
) -> None:
    operator = start_operator()
    await user.apply(example())
    await all_children(user)
    user.kubectl("scale", "rolloutpool/reverse-cpu", "--replicas=3")
    await user.apply(example(replicas=4))

    async def scaled() -> bool:
        return bool((await user.get(ROLLOUT_POOLS, "reverse-cpu"))["spec"]["replicas"] == 4)

    await eventually(scaled, "the job's own number")
    operator.assert_healthy()


# --- pools of others -----------------------------------------------------------------------------


async def test_a_pool_joins_a_job_only_if_its_user_may(guarded: ClusterUser) -> None:
    await may(guarded, {"resources": ["rolloutpools"], "verbs": ["create"]})
    said = lend(guarded, "reverse")
    assert "spec.jobRef.name: you lack the verb join on RLJob reverse" in said
    join = {"resources": ["rljobs"], "resourceNames": ["reverse"], "verbs": ["join"]}
    await may(guarded, {"resources": ["rolloutpools"], "verbs": ["create"]}, join)

    async def allowed() -> bool:
        return not lend(guarded, "reverse")

    await eventually(allowed, "the right to join")
    assert "you lack the verb join on RLJob another" in lend(guarded, "another")


async def may(user: ClusterUser, *rules: dict[str, Any]) -> None:
    """Give a user called guest these rights in the namespace, and no others."""
    rbac = "rbac.authorization.k8s.io"
    named = {"apiVersion": f"{rbac}/v1", "metadata": {"name": "guest"}}
    role = {"apiGroup": rbac, "kind": "Role", "name": "guest"}
    ours = [{"apiGroups": ["rollcall.dev"], **rule} for rule in rules]
    await user.apply(named | {"kind": "Role", "rules": ours})
    subject = {"apiGroup": rbac, "kind": "User", "name": "guest"}
    await user.apply(named | {"kind": "RoleBinding", "roleRef": role, "subjects": [subject]})


def lend(user: ClusterUser, job: str) -> str:
    """The guest creates a pool for the job; why it was refused, empty if it was not."""
    body = extra_pool(job)
    arguments = ("create", "--as=guest", "--dry-run=server", "--validate=false", "-f", "-")
    try:
        user.kubectl(*arguments, body=body)
    except AssertionError as refused:
        return str(refused)
    return ""
