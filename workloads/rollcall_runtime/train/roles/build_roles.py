"""Makes the roles that a job's algorithm needs, each with an engine on the same ranks."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from rollcall_protocol.job_config import OptimizerConfig
from rollcall_runtime.models.model_source import FIELD
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.train.reference_pods.client import ReferenceClient
from rollcall_runtime.train.roles.actor import Actor
from rollcall_runtime.train.roles.critic import Critic
from rollcall_runtime.train.roles.policy_step import PolicyStep
from rollcall_runtime.train.roles.reference import Reference
from rollcall_runtime.train.roles.remote_reference import RemoteReference
from rollcall_runtime.train.roles.reward_model import RewardModel
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rollcall_protocol.job_config import JobConfig
    from rollcall_runtime.models.model_source import ModelSource
    from rollcall_runtime.train.train_engine import EngineSetup, TrainEngine
    from rollcall_runtime.worker.identity.own_tokens import TokenSource
    from rollcall_runtime.worker.identity.tls import TlsContext

REFERENCE_PATH, CRITIC_PATH = "spec.reference.path", "spec.critic.path"
REWARD_MODEL_PATH = "spec.rewardModel.path"


def check_roles(job: JobConfig) -> None:
    """SpecError for a model of a role that there is not, or settings that cannot work together."""
    if job.algorithm.settings.dynamic_sampling and job.algorithm.deterministic:
        problem = "cannot be true when deterministic is: timing decides which groups are left out"
        raise SpecError("spec.algorithm.settings.dynamicSampling", problem)
    named = {
        REFERENCE_PATH: job.reference.model,
        CRITIC_PATH: job.critic.model,
        REWARD_MODEL_PATH: job.reward_model.model if job.reward_model is not None else "",
    }
    if job.reference.host:
        del named[REFERENCE_PATH]  # it is needed in its own pods alone
    for field, model in named.items():
        if model:
            open_role_model(field, model)


def open_role_model(field: str, model: str) -> ModelSource:
    """`open_model`; a SpecError names `field`, which names the model of a role."""
    with model_named_by(field):
        return open_model(model)


@contextmanager
def model_named_by(field: str) -> Iterator[None]:
    """A SpecError about a model within the `with` names `field`, not the policy's."""
    try:
        yield
    except SpecError as error:
        if error.field != FIELD:
            raise
        raise SpecError(field, error.problem) from error


def build_policy_step(
    job: JobConfig,
    setup: EngineSetup,
    make_engine: Callable[[EngineSetup], TrainEngine],
    *,
    minibatches: int,
    reference_token: TokenSource | None = None,
    tls: TlsContext | None = None,
) -> PolicyStep:
    """The roles of a job, not initialized; `setup` is the actor's, and the others' but for model
    and head. `reference_token` is for a reference in pods of its own, `tls` too if
    these speak it.
    """
    settings, frozen = job.algorithm.settings, replace(setup, optimizer=None)
    reference: Reference | RemoteReference | None = None
    critic = reward_model = None
    if settings.needs_reference and job.reference.host:
        if reference_token is None:
            raise ValueError("a reference in pods of its own needs a token to show to them")
        pods = ReferenceClient(job.reference.host, token=reference_token, tls=tls)
        reference = RemoteReference(pods, ranks=setup.ranks)
    elif settings.needs_reference:
        reference = Reference(
            make_engine(_of_role(frozen, REFERENCE_PATH, job.reference.model)),
            update_every=job.reference.update_every,
        )
    if settings.needs_critic:
        optimizer = OptimizerConfig(job.algorithm.optimizer.name, job.critic.learning_rate)
        own = _of_role(setup, CRITIC_PATH, job.critic.model)
        critic = Critic(
            make_engine(replace(own, head="value", optimizer=optimizer)),
            value_clip=settings.value_clip,
            minibatches=minibatches,
        )
    if job.reward_model is not None:
        own = _of_role(frozen, REWARD_MODEL_PATH, job.reward_model.model)
        reward_model = RewardModel(make_engine(replace(own, head="sequence-classification")))
    return PolicyStep(
        settings,
        actor=Actor(make_engine(setup), settings, minibatches=minibatches),
        reference=reference,
        critic=critic,
        reward_model=reward_model,
        reward_weight=job.reward_model.weight if job.reward_model is not None else 0.0,
        critic_warmup=job.critic.warmup_steps,
    )


def _of_role(setup: EngineSetup, field: str, model: str) -> EngineSetup:
    """With the model that `field` names, if it names one."""
    return replace(setup, model=model, model_field=field) if model else setup
