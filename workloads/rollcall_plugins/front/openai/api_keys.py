"""The keys that agents show: lines of a mounted Secret, followed when it changes."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.identity.reread_files import RereadFiles

if TYPE_CHECKING:
    from pathlib import Path

SHORTEST = 16  # characters, so that a key is not guessed
LONGEST_FILE = 1 << 20


class ApiKeys:
    """One key a line; empty lines and those that begin with # are left out.

    SpecError if the file has no usable key at the start; later the former keys hold.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._files = RereadFiles((path,), self._read)
        except (OSError, ValueError) as error:
            problem = f"{error}; give the Secret a key named {path.name!r}, with one API key a line"
            raise SpecError("spec.front.apiKeysSecret", problem) from error

    @property
    def count(self) -> int:
        """How many there are."""
        return len(set(self._files.current()))

    def admits(self, key: str) -> bool:
        """Whether `key` is one of them, in a time that does not depend on which characters fit."""
        given = key.encode(errors="surrogateescape")  # as aiohttp decodes what is no text
        found = [hmac.compare_digest(given, own) for own in self._files.current()]
        return any(found)  # all are compared

    def _read(self) -> tuple[bytes, ...]:
        content = self._path.read_bytes()
        if len(content) > LONGEST_FILE:
            raise ValueError(f"it has more than {LONGEST_FILE} bytes")
        lines = (line.strip() for line in content.splitlines())
        keys = tuple(line for line in lines if line and not line.startswith(b"#"))
        if not keys:
            raise ValueError("it has no key")
        if any(len(key) < SHORTEST for key in keys):
            raise ValueError(f"a key has fewer than {SHORTEST} characters")
        return keys
