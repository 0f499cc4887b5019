"""Checksums of a snapshot that is in device memory: they need its bytes on the host, once."""

from concurrent.futures import ThreadPoolExecutor

from zlib_ng.zlib_ng import crc32

from rollcall_runtime.sync.buffers import WholeBuffer

_PIECE = 32 << 20  # of two, in host memory


def checksums_of(
    buffer: WholeBuffer, bucket_bytes: int, *, copy: WholeBuffer | None = None
) -> tuple[int, ...]:
    """CRC-32 of each bucket; the host buffer `copy`, of the same length, gets all bytes too.

    A piece is copied while the one before is summed.
    """
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
