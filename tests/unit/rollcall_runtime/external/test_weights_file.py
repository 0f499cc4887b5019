"""The weights that a trainer wrote become a snapshot; there is one copy of them."""

import asyncio
import os
from collections.abc import Iterator

import pytest
import torch

from rollcall.weights import WeightsWriter
from rollcall_runtime.external import weights_file
from rollcall_runtime.external.weights_file import WeightsFile
from rollcall_runtime.sync.bucket_checks import wrong_buckets
from rollcall_runtime.sync.errors import ExhaustedError

NAMED = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(5, dtype=torch.bfloat16)}


@pytest.fixture
def writer() -> Iterator[WeightsWriter]:
    made = WeightsWriter()
    yield made
    made.close()


@pytest.mark.parametrize(("cheap", "check"), [(False, "blake3"), (True, "xxh3")])
def test_the_snapshot_has_what_was_written_with_digests_or_checksums(
    writer: WeightsWriter, cheap: bool, check: str
) -> None:
    file = WeightsFile(writer.descriptor, bucket_bytes=64, cheap=cheap)
    for scale in (1, 2):
        snapshot = file.snapshot(*writer.write({n: t * scale for n, t in NAMED.items()}))
        found = {name: tensor.clone() for name, tensor in snapshot.tensors()}
        assert all(torch.equal(found[name], NAMED[name] * scale) for name in NAMED)
        assert snapshot.manifest.check == check
        assert wrong_buckets(snapshot.buffer, snapshot.manifest) == []
        snapshot.release()


def test_there_is_one_copy(writer: WeightsWriter) -> None:
    file = WeightsFile(writer.descriptor, bucket_bytes=64)
    snapshot = file.snapshot(*writer.write(NAMED))
    writer.write({name: tensor + 1 for name, tensor in NAMED.items()})
    assert wrong_buckets(snapshot.buffer, snapshot.manifest) == [0, 1], "it reads the same memory"


def test_nothing_is_written_while_it_is_read(
    writer: WeightsWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = WeightsFile(writer.descriptor, bucket_bytes=64)

    async def run() -> None:
        await asyncio.wait_for(file.unused(), 1)
        snapshot = file.snapshot(*writer.write(NAMED))
        waiting = asyncio.create_task(file.unused())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        snapshot.release()
        await asyncio.wait_for(waiting, 1)
        held = file.snapshot(*writer.write(NAMED))
        monkeypatch.setattr(weights_file, "UNUSED_SECONDS", 0.02)
        with pytest.raises(ExhaustedError, match=r"still being sent after 0\.02 s"):
            await file.unused()
        held.release()

    asyncio.run(run())


def test_a_tensor_outside_of_the_file_is_refused(writer: WeightsWriter) -> None:
    file = WeightsFile(writer.descriptor, bucket_bytes=64)
    specs, nbytes = writer.write(NAMED)
    with pytest.raises(ValueError, match="tensor b lies outside the buffer"):
        file.snapshot(specs, nbytes - 64)
    with pytest.raises((ValueError, ExhaustedError)):
        file.snapshot(specs, os.fstat(writer.descriptor).st_size + 2**20)
