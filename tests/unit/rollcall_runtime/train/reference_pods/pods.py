"""Reference pods of this process, whose model is a function of the targets."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from rollcall_protocol.pod_contract import reference_audience, trainer_pod
from rollcall_runtime.train.reference_pods.client import ReferenceClient
from rollcall_runtime.train.reference_pods.exchange import RequestBounds
from rollcall_runtime.train.reference_pods.metrics import ReferenceMetrics
from rollcall_runtime.train.reference_pods.server import ReferenceServer
from rollcall_runtime.train.train_batch import TrainBatch, TrainExample, collate
from rollcall_runtime.worker.auth import Authenticator
from rollcall_runtime.worker.identity.roles import RoleBook
from tests.unit.rollcall_runtime.credentials import ISSUER, verifier
from tests.unit.rollcall_runtime.jobs import job_config

JOB = job_config()
TOKEN = ISSUER.pod_token(
    job_uid=JOB.uid,
    pod=trainer_pod(JOB.job, 0),
    pod_uid="uid-0",
    namespace=JOB.namespace,
    audience=reference_audience(JOB.uid),
)
BOUNDS = RequestBounds(rows=8, positions=64, longest_row=32, vocabulary=13)


def rows(*lengths: int) -> TrainBatch:
    """One row of each length; the first position is a prompt's."""
    rng = random.Random(len(lengths))
    return collate(
        [
            TrainExample.of_sequence(
                [rng.randrange(13) for _ in range(length + 1)], predicted_from=min(2, length)
            )
            for length in lengths
        ]
    )


def model(batch: TrainBatch) -> Tensor:
    """Log-probabilities that tell which target they belong to."""
    return torch.where(batch.mask, -(batch.targets.float() + 1) / 10, 0.0)


def authenticator(
    job_uid: str, refused: Callable[[str], None], *, replicas: int = JOB.trainer_replicas
) -> Authenticator:
    """As a pod of a job's reference has it."""
    audience = reference_audience(job_uid)
    checks = verifier(job_uid, namespace=JOB.namespace, audience=audience)
    return Authenticator(checks, RoleBook(JOB.job, replicas), refused)


class Pod:
    """A pod at an address of its own; `start` again after `stop` is another one there."""

    def __init__(
        self, address: str, compute: Callable[[TrainBatch], Tensor] = model, job_uid: str = JOB.uid
    ) -> None:
        self.address, self._compute, self._job_uid = address, compute, job_uid
        self.metrics = ReferenceMetrics(namespace="n", job="j")
        self.asked: list[TrainBatch] = []

    def _logprobs(self, batch: TrainBatch) -> Tensor:
        self.asked.append(batch)
        return self._compute(batch)

    async def start(self) -> "Pod":
        self.server = ReferenceServer(
            authenticator=authenticator(self._job_uid, self._refused),
            bounds=BOUNDS,
            logprobs=self._logprobs,
            thread=ThreadPoolExecutor(1),
            metrics=self.metrics,
        )
        await self.server.start(self.address)
        return self

    def _refused(self, what: str) -> None:
        self.metrics.refused(what=what).inc()

    async def stop(self) -> None:
        await self.server.stop()

    def counted(self, what: str) -> float:
        """How many requests it refused for this reason."""
        labels = {"namespace": "n", "job": "j", "what": what}
        return self.metrics.registry.get_sample_value("rollcall_refused_total", labels) or 0.0


def client_of(*addresses: str) -> ReferenceClient:
    """Asks at these addresses."""

    async def resolve(_: str) -> list[str]:
        return list(addresses)

    return ReferenceClient("reference", token=lambda: TOKEN, resolve=resolve)
