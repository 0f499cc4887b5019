"""BLAKE3 digests by which a receiver knows the weights that the trainer made.

A checksum such as CRC-32 finds accidents only: a member that relays weights can change them so that
it stays the same. BLAKE3 (https://github.com/BLAKE3-team/BLAKE3-specs) cannot be deceived so. 128
bits of it are enough, since a forger needs another input with a given digest.
"""

from blake3 import blake3

from rollcall_protocol.wire.weight_manifest import DIGEST_CHARACTERS


class DigestBuilder:
    """The digest of bytes that come piece by piece. Uses all cores for long pieces, no GIL."""

    __slots__ = ("_hasher",)

    def __init__(self) -> None:
        self._hasher = blake3(max_threads=blake3.AUTO)

    def update(self, piece: memoryview) -> None:
        """Add the next bytes."""
        self._hasher.update(piece)

    def digest(self) -> str:
        """The digest of all bytes so far, DIGEST_CHARACTERS of hexadecimal digits."""
        return self._hasher.hexdigest(length=DIGEST_CHARACTERS // 2)


def digest_of(data: bytes | memoryview) -> str:
    """The digest of `data`, DIGEST_CHARACTERS of hexadecimal digits."""
    builder = DigestBuilder()
    builder.update(memoryview(data))
    return builder.digest()


def bucket_digests(memory: memoryview, bucket_bytes: int) -> tuple[str, ...]:
    """The digest of each bucket."""
    starts = range(0, len(memory), bucket_bytes)
    return tuple(digest_of(memory[start : start + bucket_bytes]) for start in starts)
