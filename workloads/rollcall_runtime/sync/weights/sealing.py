"""Checksums of a snapshot: on the host, which a device's bytes are copied to once for that."""

from concurrent.futures import ThreadPoolExecutor

from zlib_ng.zlib_ng import crc32

from rollcall_runtime.sync.memory.buffers import WholeBuffer

_PIECE = 32 << 20  # of two, in host memory


def checksums(memory: memoryview, bucket_bytes: int) -> tuple[int, ...]:
    """CRC-32 of each bucket."""
    starts = range(0, len(memory), bucket_bytes)
    return tuple(crc32(memory[start : start + bucket_bytes]) for start in starts)


def checksums_of(
    buffer: WholeBuffer, bucket_bytes: int, *, copy: WholeBuffer | None = None
) -> tuple[int, ...]:
    """CRC-32 of each bucket; the host buffer `copy`, of the same length, gets a device's too.

    A piece is copied while the one before is summed.
    """
    if buffer.device == "cpu":
        return checksums(buffer.memory, bucket_bytes)
    pieces = [
        (bucket, start, min(start + _PIECE, end))
        for bucket, first in enumerate(range(0, buffer.nbytes, bucket_bytes))
        for end in [min(first + bucket_bytes, buffer.nbytes)]
        for start in range(first, end, _PIECE)
    ]
    sums = [0] * -(-buffer.nbytes // bucket_bytes)
    longest = max((end - start for _, start, end in pieces), default=0)
    halves = [buffer.scratch(longest) for _ in range(2 if copy is None else 0)]

    def load(number: int) -> memoryview:
        _, start, end = pieces[number]
        target = halves[number % 2] if copy is None else copy.memory[start:end]
        return buffer.read(start, end, target)

    with ThreadPoolExecutor(1, thread_name_prefix="seal") as copying:
        loading = [copying.submit(load, 0)] if pieces else []
        for number, (bucket, _, _) in enumerate(pieces):
            data = loading.pop().result()
            if number + 1 < len(pieces):
                loading.append(copying.submit(load, number + 1))
            sums[bucket] = crc32(data, sums[bucket])
    return tuple(sums)
