"""Does what the trainer asks of its coordinator over the library: publish, generate, report."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from rollcall_protocol.wire.external_trainer import (
    CoordinatorReady,
    FinishTraining,
    Generated,
    GenerateResponses,
    LibraryMessage,
    MemberChange,
    MetricValues,
    Published,
    PublishPart,
    PublishWeights,
    ReadMetrics,
    ReportProgress,
    TakeMembers,
    TrainingIsOver,
    WeightsWithdrawn,
    WithdrawWeights,
)
from rollcall_protocol.wire.generation import GenerationRequest
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.library_link import CancelRequest, Done, Failed
from rollcall_protocol.wire.partial_responses import Response
from rollcall_protocol.wire.roster import DEFAULT_GROUP, Roster
from rollcall_protocol.wire.weight_manifest import BucketCheck, WeightManifest
from rollcall_runtime.coordinator.coordinator import Coordinator
from rollcall_runtime.external.connection import LibraryConnection
from rollcall_runtime.external.finished_step import FinishedStep
from rollcall_runtime.external.member_changes import LEFT_OUT, Members, member_changes
from rollcall_runtime.external.weights_file import WeightsFile
from rollcall_runtime.generation.continued_generation import Generation
from rollcall_runtime.membership.published_versions import TrainerIncarnation
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.worker.asyncio_helpers import cancel_all, first_of

log = logging.getLogger(__name__)

SAY_SECONDS = 30.0  # between two log lines about what is waited for
CHANGE_SECONDS = 0.02  # changes of members are gathered for so long
MOST_RUNNING = 512  # responses that are sampled at once
FIRST_VERSION = 1  # there may have been others: all members are waited for a while
DELIVERY_SECONDS = 300.0  # for the operator to learn that training is over


class NotPublishedError(RuntimeError):
    """Responses were asked for, and no rollout has weights to sample from."""


class NotGeneratingError(RuntimeError):
    """Responses were asked for, and the job's rollouts sample none."""


class TrainerService:
    """Answers each request by a task of its own. Belongs to one event loop.

    `ready` is the first message to the trainer. `open_generation` opens what samples, when that is
    needed first; `read_metrics` gives figures, and `record` takes those of a step. `result`
    outlives the process.
    """

    def __init__(
        self,
        *,
        coordinator: Coordinator,
        connection: LibraryConnection[LibraryMessage],
        file: WeightsFile,
        ready: CoordinatorReady,
        open_generation: Callable[[], Awaitable[Generation]],
        read_metrics: Callable[[], dict[str, float]],
        record: Callable[[int, Mapping[str, float]], None],
        result: FinishedStep,
    ) -> None:
        self._coordinator, self._connection, self._file = coordinator, connection, file
        self._ready, self._read_metrics = ready, read_metrics
        self._open_generation, self._record, self._result = open_generation, record, result
        self._generation: Generation | None = None
        self._opening = asyncio.Lock()
        self._running = asyncio.Semaphore(MOST_RUNNING)
        self._members: Members = {}
        self._left_out: dict[str, str] = {}  # pods and reasons, since a publication began
        self._seated_before: frozenset[str] = frozenset()  # uids, when it began
        self._changing: asyncio.TimerHandle | None = None
        self._seated = asyncio.Event()
        self._publishing: asyncio.Task[Published] | None = None
        self._version: Version | None = None  # the newest that was published
        self._manifest: WeightManifest | None = None  # of that version, if it lacks digests
        self._digesting: asyncio.TimerHandle | None = None
        self._step = 0
        self._reward: float | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._broken: asyncio.Future[None] | None = None  # gets what is no answer to a request

    async def run(self) -> None:
        """Answer until the trainer's process ends or closes the library."""
        self._coordinator.restore()
        step = self._result.read()
        if step is not None:
            log.info("training is over since step %d: the pod stays until it is deleted", step)
            self._coordinator.finish(step=step)
            self._connection.send(TrainingIsOver(step))
        else:
            self._connection.send(self._ready)
        broken = self._broken = asyncio.get_running_loop().create_future()
        try:
            await first_of(self._read(), broken)
        finally:
            self._stop_timer()
            await cancel_all([*self._tasks.values(), *filter(None, [self._publishing])])

    def members_changed(self) -> None:
        """The coordinator's members, sessions or versions have changed."""
        if self._changing is None:
            loop = asyncio.get_running_loop()
            self._changing = loop.call_later(CHANGE_SECONDS, self._look)

    # --- inside --------------------------------------------------------------------------------

    async def _read(self) -> None:
        async for message in self._connection.messages():
            if isinstance(message, CancelRequest):
                if (cancelled := self._tasks.get(message.cancelled)) is not None:
                    cancelled.cancel()
            else:
                task = asyncio.create_task(self._answer(message))
                self._tasks[message.request] = task
                task.add_done_callback(partial(self._ended, message.request))

    def _ended(self, request: int, task: "asyncio.Task[None]") -> None:
        del self._tasks[request]
        error = None if task.cancelled() else task.exception()
        if error is not None and self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def _answer(self, message: LibraryMessage) -> None:
        try:
            await self._do(message)
        except (SyncError, OSError, RuntimeError, ValueError) as error:
            log.warning("%s failed: %s", type(message).__name__, error)
            assert not isinstance(message, CancelRequest)  # noqa: S101 - it is no task
            self._connection.send(Failed(message.request, str(error) or type(error).__name__))

    async def _do(self, message: LibraryMessage) -> None:
        send = self._connection.send
        match message:
            case WithdrawWeights():
                send(WeightsWithdrawn(message.request, await self._withdraw()))
            case PublishPart():
                raise RuntimeError("PublishPart: rank 0 has no part alone")
            case PublishWeights():
                self._publishing = asyncio.create_task(self._publish(message))
                send(await asyncio.shield(self._publishing))
            case GenerateResponses():
                await self._generate(message)
                send(Done(message.request))
            case ReportProgress():
                self._report(message.step, message.reward)
                reward = {} if message.reward is None else {"reward/mean": message.reward}
                self._record(message.step, {**message.figures, **reward})
                send(Done(message.request))
            case FinishTraining():
                await self._finish(message.step, has_operator=message.operator)
                send(Done(message.request))
            case TakeMembers():
                self._take_members(message)
                send(Done(message.request))
            case ReadMetrics():
                send(MetricValues(message.request, self._read_metrics()))

    async def _withdraw(self) -> int:
        if self._publishing is not None:  # its caller waits no more; it ends first
            await asyncio.wait({self._publishing})
        if self._version is not None:  # else the session may wait for these weights
            await self._wait_for_rollouts()
            await self._make_digests(self._version)
        self._coordinator.withdraw()
        await self._file.unused()
        return self._coordinator.parts.skip()

    async def _make_digests(self, version: Version) -> None:
        """Newcomers may fetch `version` from rollouts while the trainer writes the next one."""
        if self._manifest is None:
            return
        self._stop_timer()
        try:
            await self._coordinator.digests.of(version, self._manifest)
        except SyncError as error:
            log.warning("rollouts that come fetch the next version, not %s: %s", version, error)

    def _stop_timer(self) -> None:
        if self._digesting is not None:
            self._digesting.cancel()
            self._digesting = None

    async def _publish(self, asked: PublishWeights) -> Published:
        began = time.monotonic()
        version = self._version
        if version is None or self._coordinator.config.weight_sync.enabled:
            version = await self._next_version(asked.step)
            await self._send(version, asked)
        self._report(asked.step, None)
        self._look()
        now = self._members.values()
        members = tuple(member.pod for member in now if member.version == version.number)
        # One that fails to apply fetches the version at once, before it was seen to be left out.
        again = {member.pod: member.why for member in now if member.pod_uid in self._seated_before}
        left_out = {
            pod: why or "it does not serve this version"
            for pod, why in (again | self._left_out).items()
            if pod not in members
        }
        seconds = time.monotonic() - began
        return Published(asked.request, version.number, members, left_out, seconds)

    async def _send(self, version: Version, asked: PublishWeights) -> None:
        make = self._file.snapshot
        snapshot = await asyncio.to_thread(make, asked.tensors, asked.total_bytes)
        self._look()
        self._left_out = {}
        self._seated_before = self._coordinator.rollouts_in_session
        manifest, loop = snapshot.manifest, asyncio.get_running_loop()
        began = loop.time()
        await self._coordinator.publish(version, snapshot)
        self._version, self._manifest = version, None
        if manifest.check is not BucketCheck.BLAKE3:
            self._manifest, digests = manifest, self._coordinator.digests
            # Rollouts load now what came, which has the processor first.
            later = loop.time() - began
            self._digesting = loop.call_later(later, digests.begin, version, manifest)

    async def _next_version(self, step: int | None) -> Version:
        if self._version is not None:
            return Version(self._version.lineage, self._version.number + 1)
        await self._wait_for_rollouts()
        version = await self._coordinator.ready(at_least=FIRST_VERSION)
        first = TrainerIncarnation(version.lineage, version.number, step or 0)
        self._coordinator.begin(first)
        return version

    async def _wait_for_rollouts(self) -> None:
        """Until there are `minRollouts`, without bound: pods may have to be scheduled, and their
        images to be pulled. Those that come fetch the newest weights, while these are there.
        """
        least = self._coordinator.config.membership.min_rollouts
        while (there := len(self._coordinator.rollouts_in_session)) < least:
            self._seated.clear()
            try:
                async with asyncio.timeout(SAY_SECONDS):
                    await self._seated.wait()
            except TimeoutError:
                log.info(
                    "publish waits for rollouts: %d of minRollouts %d have registered", there, least
                )

    async def _generate(self, asked: GenerateResponses) -> None:
        if self._version is None:
            raise NotPublishedError(
                "generate: no weights were published yet; call publish before it"
            )
        if not self._coordinator.may_generate:
            raise NotGeneratingError(
                "generate: all rollouts of the job are programs that take weights by "
                "rollcall.Rollout; sample in them, or add a pool whose engine samples"
            )
        generation = await self._opened_generation()
        generation.replace(self._coordinator.serving_rollouts())
        tasks = []
        for i, prompt in enumerate(asked.prompts):
            for j in range(asked.samples):
                request = GenerationRequest(prompt, asked.sampling, _seed(asked.seed, i, j))
                sampling = self._sample(generation, request, asked.request, i, j)
                tasks.append(asyncio.create_task(sampling))
        all_of_them = asyncio.gather(*tasks)
        try:
            while not (await asyncio.wait({all_of_them}, timeout=SAY_SECONDS))[0]:
                self._say_if_none_serves()
            await all_of_them
        finally:
            await cancel_all(tasks)

    def _say_if_none_serves(self) -> None:
        """Responses wait for a rollout without bound: one may come."""
        if self._coordinator.serving_rollouts().rollouts:
            return
        self._look()
        known = [f"{member.pod}: {member.why or member.state}" for member in self._members.values()]
        why = "; ".join(known) or "none has registered"
        log.info("generate waits: no rollout serves the weights: %s", why)

    async def _opened_generation(self) -> Generation:
        async with self._opening:
            if self._generation is None:
                self._generation = await self._open_generation()
            return self._generation

    async def _sample(
        self, generation: Generation, asked: GenerationRequest, request: int, i: int, j: int
    ) -> None:
        response = Response()
        async with self._running:
            async for so_far in generation.generate(asked):
                response = so_far.response
        self._connection.send(Generated(request, i, j, response))

    def _report(self, step: int | None, reward: float | None) -> None:
        self._step = self._step if step is None else step
        self._reward = self._reward if reward is None else reward
        number = 0 if self._version is None else self._version.number
        self._coordinator.progress(step=self._step, number=number, reward=self._reward)

    def _take_members(self, asked: TakeMembers) -> None:
        coordinator = self._coordinator
        roster = Roster(
            job_uid=coordinator.config.uid,
            group=DEFAULT_GROUP,
            epoch=coordinator.report().roster_epoch + 1,
            coordinator_uid=coordinator.member.pod_uid,
            cause=asked.cause,
            members=asked.members,
        )
        coordinator.push_roster(roster)

    async def _finish(self, step: int, *, has_operator: bool) -> None:
        self._coordinator.finish(step=step)
        await asyncio.to_thread(self._result.write, step)
        if has_operator and not await self._coordinator.stream.delivered(DELIVERY_SECONDS):
            raise RuntimeError(
                f"finish: the operator has not asked for the result in {DELIVERY_SECONDS:g} s; "
                "see that it runs, and call finish again"
            )

    def _look(self) -> None:
        if self._changing is not None:
            self._changing.cancel()
            self._changing = None
        now = {member.pod_uid: member for member in self._coordinator.report().members}
        for change in member_changes(self._members, now, at=time.time()):
            self._note(change)
        self._members = now
        self._seated.set()
        if self._generation is not None:
            self._generation.replace(self._coordinator.serving_rollouts())

    def _note(self, change: MemberChange) -> None:
        if change.kind == LEFT_OUT:
            self._left_out[change.pod] = change.cause
        self._connection.send(change)


def _seed(seed: int, prompt: int, sample: int) -> int:
    """A number below 2**63 for each sample, whatever numbers the caller counts his seeds by."""
    made = hashlib.blake2b(f"{seed}/{prompt}/{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(made) >> 1
