"""The front: pods that answer agents in the form of OpenAI's API, from the job's rollouts."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rollcall_operator.api.rules import Model, Rule
from rollcall_operator.api.scalars import LongSeconds
from rollcall_operator.api.template import PodTemplate

_SecretName = Annotated[str, Field(min_length=1, max_length=253)]


class FrontSpec(Model):
    """Pods that answer agents in the form of OpenAI's API, with the weights that rollouts serve.
    Agents reach them at http://<job>-front.<namespace>.svc:7075/v1.
    """

    # An API server checks the default {} before it fills in what is below.
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="is required: a Secret whose key api-keys has one API key a line; or set "
            "withoutApiKeys: true, so that all pods of the namespace may use the front",
            cel="has(self.apiKeysSecret) || (has(self.withoutApiKeys) && self.withoutApiKeys)",
            holds=lambda front: front.api_keys_secret is not None or front.without_api_keys,
            path=".apiKeysSecret",
        ),
        Rule(
            message="must not be true together with apiKeysSecret; remove one of them",
            cel="!has(self.apiKeysSecret) || !has(self.withoutApiKeys) || !self.withoutApiKeys",
            holds=lambda front: front.api_keys_secret is None or not front.without_api_keys,
            path=".withoutApiKeys",
        ),
    )

    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of pods. Each knows all rollouts, and goes on with any trajectory."""
    api_keys_secret: _SecretName | None = None
    """Name of a Secret whose key `api-keys` has one API key a line, of at least 16 characters.
    Agents show one of them; a change counts within about a minute."""
    without_api_keys: bool = False
    """true: no API key is asked for, and the front's NetworkPolicy lets in pods of the namespace
    alone."""
    tls_secret: _SecretName | None = None
    """Name of a Secret of type kubernetes.io/tls, whose certificate agents believe. Unset: agents
    reach the front without TLS."""
    max_running: Annotated[int, Field(ge=1, le=512)] = 256
    """Requests that a pod answers at once."""
    max_waiting: Annotated[int, Field(ge=0, le=100_000)] = 256
    """Requests that wait beyond those, for a minute at most; more are refused with 429."""
    request_seconds: LongSeconds = 600
    """Seconds after which a request ends with an error."""
    max_trajectories: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000
    """Trajectories without a reward of which a pod has a copy; all are with the coordinator."""
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000_000)] = 10_000_000
    """Tokens that all of these copies have together, each at most 100 bytes of the pod's memory."""
    trajectory_seconds: LongSeconds = 3600
    """Seconds after its last completion until a trajectory without a reward is forgotten."""
    tool_parser: Literal["auto", "hermes", "llama3_json", "qwen3_coder"] = "auto"
    """How the model writes calls of tools: `hermes` (JSON within <tool_call>, as Qwen 2.5 and 3),
    `llama3_json` (an answer that is JSON with name and parameters, as Llama 3), or `qwen3_coder`
    (<function=...> within <tool_call>, as Qwen 3.5 and Qwen3-Coder). `auto`: what the tokenizer's
    `response_template` says, or what the chat template shows."""
    template: PodTemplate
    """Template of the pods. The container named `front`, or the only one, is the worker; the
    operator adds its environment, ports, volumes, probes and security context. Its image needs the
    model's tokenizer."""
