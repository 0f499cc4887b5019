"""A rollout's side of the job: weights in, for a program that samples by itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from rollcall.child_process import job_environment
from rollcall.errors import RollcallError
from rollcall.rollout_process import RolloutProcess
from rollcall_protocol import pod_contract

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    import torch

    from rollcall.rollout_process import Apply

_PLACE = (
    "rollout of a job; run the program in a rollout pod of an RLJob, such as by `rollcall local "
    "run`, and give it the pod's environment"
)


class Rollout:
    """The rollout of the job that this process runs in; `join` makes it.

    All methods may be called in any thread. RollcallError says where, what is wrong, and what to
    do. A context manager, which leaves the job. The job's trainer gets no samples from it.
    """

    def __init__(self, environment: Mapping[str, str] | None, apply: Apply | None) -> None:
        """See `join`."""
        variables = job_environment(
            os.environ if environment is None else environment,
            pod_contract.CONFIG,
            pod_contract.POOL_CONFIG,
            who="Rollout.join",
            place=_PLACE,
        )
        self._apply = apply
        self._version: int | None = None
        self._closed = False
        self._process = RolloutProcess(variables, apply=self._applied if apply else None)
        try:
            self._process.wait_until_ready()
        except BaseException:
            self.close()
            raise

    @classmethod
    def join(
        cls, *, environment: Mapping[str, str] | None = None, apply: Apply | None = None
    ) -> Self:
        """Become a member of the job; weights come once the trainer publishes some.

        Without `apply` the program takes them by `receive`. With it, `apply(version, tensors)` is
        called with each version, in a thread of the library, one call at a time; `tensors` has them
        by name. The version is published once it has returned. If it raises, or takes longer than
        half of `weightSync.commitTimeoutSeconds`, the error is logged, the trainer leaves this
        rollout out, and `apply` is called again with a later version, or with this one.

        The variables that the operator wrote are taken from `environment`, by default the process'.
        """
        return cls(environment, apply)

    @property
    def version(self) -> int | None:
        """The version (`Outcome.version`) that was received, or applied, to its end last."""
        return self._version

    def receive(
        self, at_least: int = 0, *, timeout: float | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The newest weights: names and tensors, on the CPU, one after the other.

        Waits until there are weights, of a version of `at_least`; TimeoutError after `timeout`
        seconds. A version that comes meanwhile waits for the next call. Tensors are views of memory
        that received them: they stay as they are while the program has them, and keep the whole
        version there; writes to them stay in this process. `version` changes at the iteration's
        end, and not if it is left before.
        """
        if self._apply is not None:
            raise RollcallError(
                "receive: this rollout joined with apply, which gets the weights; join without it"
            )
        return self._received(at_least, timeout)

    def close(self) -> None:
        """Leave the job, as a rollout that drains; harmless twice."""
        if not self._closed:
            self._closed = True
            self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- inside --------------------------------------------------------------------------------

    def _received(self, at_least: int, timeout: float | None) -> Iterator[tuple[str, torch.Tensor]]:
        from rollcall_runtime.sync.errors import StagingError  # noqa: PLC0415 - beside torch

        version, weights = self._process.newest(at_least=at_least, timeout=timeout)
        try:
            yield from weights.tensors()
        except StagingError as error:
            raise RollcallError(
                f"receive: version {version}: {error}; use the trainer's version of torch"
            ) from error
        self._version = version

    def _applied(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        assert self._apply is not None  # noqa: S101 - see __init__
        self._apply(version, tensors)
        self._version = version
