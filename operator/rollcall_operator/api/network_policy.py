"""NetworkPolicies of a job's pods."""

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from rollcall_operator.api.rules import Model

EgressRule = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""Kept whole: the API server checks it when the operator applies the NetworkPolicy."""


class NetworkPolicySpec(Model):
    """NetworkPolicies for the pods of the job, on clusters whose network enforces them."""

    enabled: bool = True
    """true: pods of the job accept connections from each other, the operator and monitoring only,
    each on the ports that it needs. Add a NetworkPolicy of your own to allow more. false: no
    NetworkPolicies are made."""
    egress: Annotated[
        list[EgressRule] | None,
        Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
    ] = None
    """Where pods of the job may connect to, beside each other and DNS (port 53): rules as in a
    NetworkPolicy, such as for an object store, a model hub or a reward service. Empty: nowhere
    else. Unset: they may connect to everything."""
