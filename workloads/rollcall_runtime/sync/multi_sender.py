"""Several senders at once: one session of the engine for each, run side by side.

Trainer ranks that hold shards send their own parts, so nothing is gathered on rank 0 and the links
of all of them are used. Engines know only one sender; every receiver takes part in each session and
fills its own range of the buffer.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.engine import SyncEngine, SyncSession
from rollcall_runtime.sync.errors import DigestMismatchError
from rollcall_runtime.sync.memory.buffers import Buffer


def open_session(
    engine: SyncEngine,
    *,
    group: str,
    session: SessionId,
    seats: Sequence[Seat],
    rank: int,
    senders: int = 1,
) -> SyncSession:
    """A session to join, in which the first `senders` seats send."""
    if senders == 1:
        return engine.open_session(group=group, session=session, seats=seats, rank=rank)
    return MultiSenderSession(
        engine, group=group, session=session, seats=seats, rank=rank, senders=senders
    )


class MultiSenderSession(SyncSession):
    """A sender takes part in its own lane; a receiver in all. What fails in one ends all."""

    def __init__(
        self,
        engine: SyncEngine,
        *,
        group: str,
        session: SessionId,
        seats: Sequence[Seat],
        rank: int,
        senders: int,
    ) -> None:
        super().__init__(session=session, seats=seats, rank=rank)
        self._senders = senders
        sends = rank < senders
        self._lanes = {
            part: engine.open_session(
                group=f"{group}/part-{part}",
                session=session,
                seats=(seats[part], *seats[senders:]),
                rank=0 if sends else rank - senders + 1,
            )
            for part in ([rank] if sends else range(senders))
        }

    @property
    def buffer_devices(self) -> frozenset[str]:
        """The lanes', which are one engine's."""
        return next(iter(self._lanes.values())).buffer_devices

    def join(self, *, timeout: float) -> None:
        """Join the session of each sender, side by side, within `timeout` seconds."""
        self._each(lambda _, lane: lane.join(timeout=timeout))

    def give_up_join(self) -> bool:
        """A sender's word on its own lane, which every receiver has to join."""
        return self.rank < self._senders and self._lanes[self.rank].give_up_join()

    def publish(self, buffer: Buffer, manifest: WeightManifest, *, timeout: float) -> None:
        """Send `buffer`, which holds this rank's part of what `manifest` describes."""
        part = self._part(manifest, self.rank)
        self._lanes[self.rank].publish(buffer, part, timeout=timeout)

    def receive(self, buffer: Buffer, manifest: WeightManifest, *, timeout: float) -> None:
        """Fill each sender's range of `buffer`."""
        bounds = manifest.bounds()

        def take(part: int, lane: SyncSession) -> None:
            lane.receive(buffer.window(*bounds[part]), self._part(manifest, part), timeout=timeout)

        self._part(manifest, 0)
        self._each(take)

    def receive_buckets(
        self, buffer: Buffer, manifest: WeightManifest, *, only: Sequence[int], timeout: float
    ) -> None:
        """Take each sender's share of these buckets."""
        bounds, numbers = manifest.only(only).bounds(), manifest.by_part(only)

        def take(part: int, lane: SyncSession) -> None:
            lane.receive_buckets(
                buffer.window(*bounds[part]),
                self._part(manifest, part),
                only=numbers[part],
                timeout=timeout,
            )

        self._part(manifest, 0)
        self._each(take)

    def abort(self) -> None:
        """Abort the session of each sender."""
        for lane in self._lanes.values():
            lane.abort()

    def _part(self, manifest: WeightManifest, index: int) -> WeightManifest:
        count = len(manifest.bounds())
        if count != self._senders:
            raise DigestMismatchError(f"a manifest of {count} parts for {self._senders} senders")
        return manifest.part(index)

    def _each(self, call: Callable[[int, SyncSession], None]) -> None:
        with ThreadPoolExecutor(len(self._lanes), thread_name_prefix="lane") as threads:
            calls = [threads.submit(call, part, lane) for part, lane in self._lanes.items()]
            failed = next(
                (
                    c
                    for c in wait(calls, return_when=FIRST_EXCEPTION).done
                    if c.exception() is not None
                ),
                None,
            )
            if failed is not None:
                self.abort()  # the others would wait for their timeouts
        if failed is not None:
            failed.result()
