"""verl's checkpoint engine `rollcall`: weights to rollout replicas that come, go and die.

    actor_rollout_ref.rollout.checkpoint_engine.backend=rollcall
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=rollcall.verl

Rank 0 of verl's actor publishes by `Trainer`; each rollout worker takes the weights by `Rollout`.
Both read the pod's variables, which Ray's workers inherit from the `ray start` of their pod. It
works with verl's own CheckpointEngineManager. `RollcallManager` also goes on when replicas die:

    actor_rollout_ref.rollout.checkpoint_manager_class=rollcall.verl.RollcallManager

https://github.com/volcengine/verl, verl/checkpoint_engine/base.py of 0.9.1
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, cast

import torch

from rollcall.errors import RollcallError
from rollcall.known_versions import is_known, shown
from rollcall.rollout import Rollout
from rollcall.trainer import Trainer
from rollcall_protocol import pod_contract

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping, Sequence

NAME = "rollcall"
"""The backend, as verl's configuration calls it."""

FIRST_VERSION, END_VERSION = (0, 9, 1), (0, 10)
"""The versions of verl whose interface is known: from the first, below the end."""

LOOK_SECONDS = 1.0  # between two looks whether an update that is waited for was given up

log = logging.getLogger(__name__)


def _check_version() -> None:
    try:
        found = version("verl")
    except PackageNotFoundError as error:
        raise RollcallError("rollcall.verl: verl is not installed; install verl 0.9.1") from error
    if not is_known(found, FIRST_VERSION, END_VERSION):
        raise RollcallError(
            f"rollcall.verl: verl {found} is installed, and versions from "
            f"{shown(FIRST_VERSION, END_VERSION)} are known; install one of these"
        )


# A worker that cannot load a plug-in may end, or go on without it, before anything shows why.
try:
    _check_version()
    import ray
    from verl.checkpoint_engine.base import (
        CheckpointEngine,
        CheckpointEngineManager,
        CheckpointEngineRegistry,
        CheckpointEngineWorker,
    )
    from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
    from verl.utils.ray_utils import auto_await

    from rollcall.verl_replicas import NewReplicas
except BaseException as error:
    print(f"rollcall.verl cannot be loaded: {type(error).__name__}: {error}", file=sys.stderr)
    raise

PUBLISH, GATHER, RECEIVE = "publish", "gather", "receive"
"""What a worker does in an update. GATHER: it walks the tensors, as rank 0 does, and sends none."""


@CheckpointEngineRegistry.register(NAME)
class RollcallCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """One worker's side: of the actor's rank 0, of another rank of it, or of a rollout replica.

    verl gives `bucket_size`; weights travel as the job's `weightSync` says. The variables that the
    operator wrote are taken from `environment`, by default the process'.
    """

    def __init__(
        self,
        bucket_size: int = 0,
        is_master: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        del bucket_size
        self._is_master = is_master
        self._variables = dict(os.environ if environment is None else environment)
        self._trainer: Trainer | None = None
        self._rollout: Rollout | None = None
        self._published = 0  # the version that was published last
        self._part = ""
        self._at_least = 0
        self._update = 0  # counts updates that began or ended: who waits for a former one stops

    def prepare(self) -> dict[str, Any]:
        """The worker's pod, and the version that it has. The actor's rank 0 opens the trainer."""
        self._update += 1
        pod = self._variables.get(pod_contract.POD_UID, "")
        if not pod:
            raise RollcallError(
                f"prepare: {pod_contract.POD_UID} is not set in a worker of verl, so that it runs "
                "in no pod of a job; run `ray start` as the pod's program"
            )
        if self._is_master and self._trainer is None:
            self._open_trainer()
        received = self._rollout.version if self._rollout is not None else None
        return {
            "pod": pod,
            "name": self._variables.get(pod_contract.POD_NAME, pod),
            "version": max(self._published, received or 0),
        }

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Each worker's part, and the least version that is of this update.

        RollcallError if a pod has several rollout workers, or the actor's ranks several pods.
        """
        actors, rollouts = metadata[:actor_wg_world_size], metadata[actor_wg_world_size:]
        _check_pods(actors, rollouts)
        # A trainer that was started again goes on above the versions that rollouts have.
        at_least = 1 + max(each["version"] for each in metadata)
        parts = [PUBLISH] + [GATHER] * (actor_wg_world_size - 1)
        return (
            {"part": parts, "at_least": [at_least] * actor_wg_world_size},
            {
                "part": [RECEIVE] * rollout_world_size,
                "at_least": [at_least] * rollout_world_size,
            },
        )

    def init_process_group(self, part: str, at_least: int) -> None:
        """Get ready for an update. A rollout worker becomes a member of the job, once."""
        self._part, self._at_least = part, at_least
        if part == RECEIVE and self._rollout is None:
            self._rollout = Rollout.join(environment=self._variables)

    def finalize(self) -> None:
        """The update is over. Members stay: the next one needs no new group."""
        self._update += 1
        self._part = ""

    async def send_weights(
        self, weights: Iterator[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, float]:
        """Publish, and return figures of the update; on ranks other than 0 take part in gathering.

        In this thread: verl has set its device, and walks the tensors in it on all ranks. The actor
        does nothing else meanwhile, so that `prepare` of a next update knows this one's version.
        """
        with torch.no_grad():
            try:
                return {} if self._part == GATHER else self._publish(weights, global_steps)
            finally:
                for _ in weights:
                    pass  # gathering is collective

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """The tensors of the version that the update publishes, on the CPU.

        RollcallError if the update is given up, or the member's process has ended: the next update
        joins again.
        """
        del global_steps
        rollout, update = self._rollout, self._update
        if self._part != RECEIVE or rollout is None:
            raise _takes_no_part("receive_weights")
        try:
            while True:
                tensors = rollout.receive(self._at_least, timeout=LOOK_SECONDS)
                try:
                    found = await asyncio.to_thread(next, tensors, None)
                    break
                except TimeoutError:
                    self._check_update(update)
            self._check_update(update)  # what came is for who asked last
            while found is not None:
                yield found
                found = next(tensors, None)
        except RollcallError:
            if self._update == update:
                self._leave()
            raise

    def finish(self, step: int) -> None:
        """Training is over after `step`: the job has succeeded. Nothing on ranks other than 0."""
        if self._trainer is not None:
            self._trainer.finish(step)

    def close(self) -> None:
        """End the trainer, or leave the job."""
        if self._trainer is not None:
            self._trainer.close()
            self._trainer = None
        self._leave()

    # --- inside --------------------------------------------------------------------------------

    def _open_trainer(self) -> None:
        if self._variables.get(pod_contract.POOL_CONFIG):
            raise RollcallError(
                "prepare: rank 0 of verl's actor runs in a rollout pod; place it in the trainer's "
                "pod, such as by resources of `ray start`"
            )
        self._trainer = Trainer(self._variables)

    def _publish(
        self, weights: Iterable[tuple[str, torch.Tensor]], step: int | None
    ) -> dict[str, float]:
        if self._part != PUBLISH or self._trainer is None:
            raise _takes_no_part("send_weights")
        outcome = self._trainer.publish(weights, step)
        if outcome.version < self._at_least:
            raise RollcallError(
                f"send_weights: version {outcome.version} was published before; set "
                "weightSync.enabled, without which verl's rollouts would wait for ever"
            )
        self._published = outcome.version
        return {
            "rollcall/version": float(outcome.version),
            "rollcall/members": float(len(outcome.members)),
            "rollcall/left_out": float(len(outcome.left_out)),
            "rollcall/seconds": outcome.seconds,
        }

    def _check_update(self, update: int) -> None:
        if self._update != update:
            raise RollcallError(
                "receive_weights: the update was given up before its weights came; see why the "
                "actor's rank 0 did not publish"
            )

    def _leave(self) -> None:
        if self._rollout is not None:
            self._rollout.close()
            self._rollout = None


def _takes_no_part(call: str) -> RollcallError:
    return RollcallError(
        f"{call}: the worker takes no part in an update; call prepare, "
        "build_topology and init_process_group first, as verl's manager does"
    )


def _check_pods(actors: Sequence[Mapping[str, Any]], rollouts: Sequence[Mapping[str, Any]]) -> None:
    trainers = sorted({each["name"] for each in actors})
    if len(trainers) > 1:
        raise RollcallError(
            f"build_topology: the ranks of verl's actor run in the pods {', '.join(trainers)}; "
            "one pod is supported: place them in it"
        )
    counted = Counter(each["name"] for each in rollouts)
    for name, workers in counted.items():
        if workers > 1:
            raise RollcallError(
                f"build_topology: {workers} rollout workers run in pod {name}; one worker of a pod "
                "is supported: leave tensor, data and pipeline parallel sizes at 1, and place each "
                "replica in a rollout pod of its own"
            )


class RollcallManager(CheckpointEngineManager):  # type: ignore[misc]
    """verl's manager, for replicas that come, go and die.

    A replica one of whose workers or servers has died, or whose member of the job has, is taken out
    of `replicas` and said in `left_out`, by its `replica_rank`; the others get the update. They
    generate again afterwards, also if the update fails. Where rollout pods have `ROLLOUT`, each
    that comes is made a replica, which takes part in the first update after its servers run.
    """

    def __init__(self, config: Any, actor_wg: Any, replicas: list[Any]) -> None:
        if config.backend != NAME:
            raise RollcallError(
                f"RollcallManager: checkpoint_engine.backend is {config.backend!r}; set it to "
                f"{NAME!r}, or leave checkpoint_manager_class out"
            )
        super().__init__(config, actor_wg, replicas)
        self.left_out: dict[int, str] = {}
        self._last: tuple[int, int | None] | None = None  # version and step of the last update
        self._new = NewReplicas(replicas)
        # That of verl_elastic, if it is there; it gets the servers of new replicas.
        self._balancer = getattr(replicas[0], "load_balancer", None) if replicas else None

    @auto_await  # type: ignore[untyped-decorator]
    async def update_weights(self, global_steps: int | None = None) -> dict[str, float]:
        """Weights from the actor to all replicas that live; the figures of the update.

        They generate while newcomers join and weights come; they stop while they load them.
        """
        came = self._new.take()
        super().add_replicas(came)
        groups = {replica: _group(replica) for replica in self.replicas}
        at_least = await self._begin(groups)
        figures = await self._publish(groups, global_steps)
        try:
            await self._each("abort_all_requests")
            await self._each("release_kv_cache")
            await self._answers(groups, _take_all(self._living(groups), global_steps))
        finally:
            try:
                await self._each("resume_kv_cache")
            finally:
                await self._each("resume_generation")
        await self._answers(groups, _ask_all(self._living(groups), "finalize"))
        await self._balance({replica: groups[replica] for replica in came if replica in groups})
        self._last = max(at_least, int(figures["rollcall/version"])), global_steps
        return figures

    def add_replicas(self, replicas: list[Any]) -> None:
        """Add them, with the weights of the last update; the other replicas go on meanwhile.

        One that cannot take them is left out.
        """
        super().add_replicas(replicas)
        if self._last is not None:
            self._admit({replica: _group(replica) for replica in replicas}, *self._last)

    def finish(self, step: int) -> None:
        """Training is over after `step`: the job has succeeded. Call it at the program's end."""
        ray.get(_ask(self.actor_wg, "finish", step))

    # --- inside --------------------------------------------------------------------------------

    async def _begin(self, groups: dict[Any, Any]) -> int:
        """All workers know their part; the least version that is of the update."""
        ours, theirs = await asyncio.gather(
            asyncio.gather(*_ask(self.actor_wg, "prepare")),
            self._answers(groups, _ask_all(groups, "prepare")),
        )
        if not groups:
            raise RollcallError(
                "update_weights: no rollout replica lives; add one by add_replicas, and update "
                "again"
            )
        workers = [worker for answer in theirs.values() for worker in answer]
        actor, _ = self.backend_cls.build_topology(len(ours), len(workers), [*ours, *workers])
        actor["method"] = ["init_process_group"] * len(ours)
        at_least = int(actor["at_least"][0])
        await asyncio.gather(
            *self.actor_wg.execute_checkpoint_engine(**actor), self._join(groups, at_least)
        )
        return at_least

    async def _publish(self, groups: dict[Any, Any], step: int | None) -> dict[str, float]:
        """All members have the weights when this returns; their replicas have not loaded them."""
        try:
            sent = self.actor_wg.update_weights(global_steps=step, mode=self.backend)
            return dict((await asyncio.gather(*sent))[0])
        except BaseException:
            for refs in _ask_all(self._living(groups), "finalize").values():
                await asyncio.gather(*refs, return_exceptions=True)
            raise
        finally:
            await asyncio.gather(*_ask(self.actor_wg, "finalize"), return_exceptions=True)

    def _living(self, groups: dict[Any, Any]) -> dict[Any, Any]:
        return {replica: groups[replica] for replica in self.replicas if replica in groups}

    @auto_await  # type: ignore[untyped-decorator]
    async def _admit(self, groups: dict[Any, Any], version_there: int, step: int | None) -> None:
        await self._answers(groups, _ask_all(groups, "prepare"))
        await self._join(groups, version_there)
        await self._answers(groups, _take_all(groups, step))
        await self._answers(groups, _ask_all(groups, "finalize"))

    async def _balance(self, came: Iterable[Any]) -> None:
        """Requests go to these, too, which have the weights."""
        servers = {replica.server_address: replica.server_handle for replica in came}
        if servers and self._balancer is not None:
            await self._balancer.add_servers.remote(servers)

    async def _join(self, groups: dict[Any, Any], at_least: int) -> None:
        asked = _ask_all(groups, "init_process_group", RECEIVE, at_least)
        await self._answers(groups, asked)

    async def _answers(
        self, groups: dict[Any, Any], asked: Mapping[Any, Sequence[Awaitable[Any]]]
    ) -> dict[Any, list[Any]]:
        """Each replica's answers; one that fails is out of `groups`, and of the manager."""
        found = {}
        for replica, refs in asked.items():
            try:
                found[replica] = list(await asyncio.gather(*refs))
            except Exception as error:  # noqa: BLE001 - whatever its worker raised
                groups.pop(replica, None)
                self._leave_out(replica, error)
        return found

    async def _each(self, method: str) -> None:
        """Call it of each replica; one whose server has died is left out."""

        async def call(replica: Any) -> None:
            try:
                await getattr(replica, method)()
            except ray.exceptions.RayActorError as error:
                self._leave_out(replica, error)

        await asyncio.gather(*(call(replica) for replica in self.replicas))

    def _leave_out(self, replica: Any, error: Exception) -> None:
        if replica in self.replicas:
            last = next(iter(str(error).strip().splitlines()[-1:]), "")
            why = self.left_out[replica.replica_rank] = f"{type(error).__name__}: {last}"
            log.warning("replica %d is left out: %s", replica.replica_rank, why)
            _ask(_group(replica), "close")  # what lives of it leaves the job
            if self._balancer is not None:
                self._balancer.remove_servers.remote([replica.server_address])
            self.remove_replicas([replica])
            self._new.give_back(replica)


def _group(replica: Any) -> Any:
    worker = RayClassWithInitArgs(cls=ray.remote(CheckpointEngineWorker))
    return RayWorkerGroup(worker_handles=replica.workers, ray_cls_with_init=worker)


def _ask(group: Any, method: str, *arguments: Any) -> list[Any]:
    """The answers to come of all workers of the group, whose engines are asked the same."""
    size = group.world_size
    each = ([argument] * size for argument in arguments)
    return cast("list[Any]", group.execute_checkpoint_engine([method] * size, *each))


def _ask_all(groups: Mapping[Any, Any], method: str, *arguments: Any) -> dict[Any, list[Any]]:
    return {replica: _ask(group, method, *arguments) for replica, group in groups.items()}


def _take_all(groups: Mapping[Any, Any], step: int | None) -> dict[Any, list[Any]]:
    return {replica: group.update_weights(global_steps=step) for replica, group in groups.items()}
