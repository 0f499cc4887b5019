"""Makes the Secrets with the certificates of jobs' servers. It creates Secrets, and reads none."""

import logging
import time
from collections.abc import Callable

from rollcall_operator.control.certificate_authority import CertificateAuthority, tls_secret
from rollcall_operator.kube.client import KubeClient
from rollcall_operator.kube.errors import ConflictError, RefusedError, TerminatingError
from rollcall_operator.kube.resources import SECRETS
from rollcall_operator.plan.children.certificates import WantedCertificate, server_certificates
from rollcall_operator.plan.children.child_objects import owner
from rollcall_operator.plan.model import JobKey, Manifest, ObservedJob

log = logging.getLogger(__name__)

AGAIN_SECONDS = 10.0
"""Between two attempts to make the Secrets of a job whose pods do not start."""


class JobCertificates:
    """Makes what is missing before a job's pods, and again while one of them does not start.

    Pods that run have mounted theirs.

    That a Secret exists is known only from the API server's refusal to make another. It was signed
    by an authority that the job's ConfigMap has, so there is no need to read it.
    """

    def __init__(
        self,
        client: KubeClient,
        authority: CertificateAuthority,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` gives seconds that never go back."""
        self._client, self._authority, self._clock = client, authority, clock
        self._tried: dict[JobKey, tuple[str, frozenset[str], float]] = {}

    @property
    def authority(self) -> str:
        """The certificate (PEM) by which others verify those of jobs."""
        return self._authority.certificate

    async def make(self, observed: ObservedJob) -> str:
        """Make the Secrets that the job lacks. Returns why one was refused, else nothing.

        Raises the client's other errors, and TerminatingError.
        """
        job, key = observed.job, (observed.namespace, observed.name)
        if job is None or not _wants_pods(job):
            return ""
        waiting = _wait_for_volumes(observed)
        mounted = _run(observed) - waiting
        wanted = [each for each in server_certificates(job) if each.role not in mounted]
        names = frozenset(each.secret for each in wanted)
        uid, made, at = self._tried.get(key, ("", frozenset(), 0.0))
        late = waiting and self._clock() - at >= AGAIN_SECONDS
        if uid == observed.job_uid and names <= made and not late:
            return ""
        for each in wanted:
            if refusal := await self._create(job, each):
                return refusal
        self._tried[key] = observed.job_uid, names, self._clock()
        return ""

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        self._tried.pop(key, None)

    async def _create(self, job: Manifest, wanted: WantedCertificate) -> str:
        namespace = job["metadata"]["namespace"]
        body = tls_secret(
            namespace=namespace,
            name=wanted.secret,
            data=self._authority.issue(wanted.host),
            owners=owner(job),
        )
        try:
            await self._client.create(SECRETS, body)
        except ConflictError:
            log.debug("Secret %s exists", wanted.secret)
        except TerminatingError:
            raise
        except RefusedError as error:
            return f"spec.tls: the API server refuses Secret {wanted.secret}: {error.message}"
        else:
            log.info("Made Secret %s with a certificate for %s", wanted.secret, wanted.host)
        return ""


def _wants_pods(job: Manifest) -> bool:
    finished = (job.get("status") or {}).get("completionTime")
    return not (finished or job["spec"].get("suspend") or "deletionTimestamp" in job["metadata"])


def _run(observed: ObservedJob) -> set[str]:
    """Roles of the job that have a pod whose worker runs."""
    uid = observed.job_uid
    return {pod.role for pod in observed.pods if pod.running and pod.job_uid == uid}


def _wait_for_volumes(observed: ObservedJob) -> set[str]:
    """Roles that have a pod with a node that does not run yet: a Secret may have been deleted."""
    return {
        pod.role
        for pod in observed.pods
        if pod.node and pod.phase == "Pending" and pod.job_uid == observed.job_uid
    }
