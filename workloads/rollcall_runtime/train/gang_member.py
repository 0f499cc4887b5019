"""What every trainer rank does in its gang: meets the others, and ends when they are lost."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import JobConfig
from rollcall_runtime.train.gang_liveness import Gang, GangBrokenError, watch_leader
from rollcall_runtime.train.process_group import TrainerRendezvous
from rollcall_runtime.worker.auth import Authenticator
from rollcall_runtime.worker.environment import TrainerEnvironment
from rollcall_runtime.worker.exit import end_with_failure
from rollcall_runtime.worker.identity.roles import RENDEZVOUS, RoleBook
from rollcall_runtime.worker.identity.token_verifier import TokenRefusedError
from rollcall_runtime.worker.log_rate import REPEATED

log = logging.getLogger(__name__)

# Between rank 0's farewell and this rank's own SIGTERM when both pods are deleted.
LEFT_BEHIND_SECONDS = 5.0


def trainer_rendezvous(
    environment: TrainerEnvironment, refused: Callable[[str], None]
) -> TrainerRendezvous:
    """Rank 0 binds its own address; the others find it by name, and show it their tokens.

    `refused` counts by kind, in any thread, what rank 0 refuses there.
    """
    host = environment.pod.address if environment.rank == 0 else environment.coordinator
    return TrainerRendezvous(
        host=host,
        port=pod_contract.RENDEZVOUS_PORT,
        rank=environment.rank,
        size=environment.job.trainer_ranks,
        secret=environment.token(),
        admit=admit_ranks(environment, refused) if environment.rank == 0 else None,
        refused=refused,
    )


def admit_ranks(
    environment: TrainerEnvironment, refused: Callable[[str], None]
) -> Callable[[str], bool]:
    """Whether a token is one of a pod of this trainer; for any thread."""
    job, lock = environment.job, threading.Lock()

    def count(what: str) -> None:
        refused(what)
        log.warning("refused a client of the ranks' rendezvous: %s", what, extra=REPEATED)

    book = RoleBook(job.job, job.trainer_replicas)
    authenticator = Authenticator(environment.verifier(), book, count)

    def admit(token: str) -> bool:
        with lock:
            try:
                authenticator.admit(RENDEZVOUS, token)
            except TokenRefusedError:
                return False
        return True

    return admit


def make_gang(job: JobConfig, refused: Callable[[str], None]) -> Gang:
    """Rank 0's watch over the other ranks."""
    bounds = job.membership
    return Gang(
        job.trainer_ranks,
        heartbeat=bounds.heartbeat,
        suspect_after=bounds.suspect_after,
        processes=job.trainer_processes,
        refused=refused,
    )


async def hold_to_leader(
    environment: TrainerEnvironment, *, leaving: asyncio.Event, stop: asyncio.Event
) -> None:
    """Hold a stream to rank 0 until either leaves; GangBrokenError when rank 0 is lost.

    Also if rank 0 leaves and this rank gets no signal to `stop`: it starts again with rank 0.
    """
    bounds = environment.job.membership
    await watch_leader(
        environment.coordinator_url(pod_contract.MEMBERSHIP_PORT, pod_contract.GANG_ROUTE),
        rank=environment.rank,
        token=environment.token,
        tls=environment.trust.client_context,
        heartbeat=bounds.heartbeat,
        suspect_after=bounds.suspect_after,
        leaving=leaving,
    )
    try:
        async with asyncio.timeout(LEFT_BEHIND_SECONDS):
            await stop.wait()
    except TimeoutError:
        raise GangBrokenError("rank 0 has stopped, and this rank got no SIGTERM") from None


async def end_if_broken(watch: Coroutine[Any, Any, None]) -> None:
    """A collective that waits for a lost rank cannot be interrupted, but the process can end."""
    try:
        await watch
    except GangBrokenError as error:
        end_with_failure(error)
