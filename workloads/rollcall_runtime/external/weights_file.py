"""The weights that the trainer wrote into a file in memory, as a snapshot that can be sent."""

import asyncio
import time

from rollcall_protocol.wire.weight_manifest import TensorSpec, WeightManifest
from rollcall_runtime.sync.bucket_checks import check_buckets
from rollcall_runtime.sync.errors import ExhaustedError
from rollcall_runtime.sync.memory.shared_buffers import MappedFile
from rollcall_runtime.sync.weights.snapshots import WeightSnapshot

UNUSED_SECONDS = 150.0  # to wait for readers: longer than anything may hold a buffer
_LOOK_SECONDS = 0.01


class WeightsFile:
    """One file: the trainer writes it while no engine reads it, and engines read it in between.

    So there is one copy of the weights. They have checksums if these are to be `cheap`, else
    digests. Digests are to be made of it before it is written again: what newcomers fetch from
    rollouts meanwhile is compared with them.
    """

    def __init__(self, descriptor: int, *, bucket_bytes: int, cheap: bool = False) -> None:
        self._descriptor, self._bucket_bytes, self._cheap = descriptor, bucket_bytes, cheap
        self._buffer: MappedFile | None = None

    async def unused(self) -> None:
        """Wait until nothing reads the file. ExhaustedError after UNUSED_SECONDS."""
        deadline = time.monotonic() + UNUSED_SECONDS
        while self._buffer is not None and self._buffer.in_use:
            if time.monotonic() > deadline:
                raise ExhaustedError(
                    f"the former weights were still being sent after {UNUSED_SECONDS:g} s"
                )
            await asyncio.sleep(_LOOK_SECONDS)

    def snapshot(self, tensors: tuple[TensorSpec, ...], nbytes: int) -> WeightSnapshot:
        """The weights in the file, with their digests or checksums (computed outside the GIL).

        ValueError if a tensor lies outside of the first `nbytes`, ExhaustedError if these cannot be
        mapped.
        """
        if self._buffer is None or self._buffer.nbytes != nbytes:
            self._buffer = None  # unmapped first: engines register few large buffers
            self._buffer = MappedFile(self._descriptor, nbytes)
        size = self._bucket_bytes
        check, digests = check_buckets(self._buffer, size, cheap=self._cheap)
        manifest = WeightManifest(tensors, nbytes, size, digests, check=check)
        return WeightSnapshot(manifest, self._buffer.hold())
