"""Digests of no bytes, for tests that look at manifests alone."""

from rollcall_protocol.wire.weight_manifest import DIGEST_CHARACTERS


def made_up(*numbers: int) -> tuple[str, ...]:
    """A digest for each number."""
    return tuple(f"{number:0{DIGEST_CHARACTERS}x}" for number in numbers)
