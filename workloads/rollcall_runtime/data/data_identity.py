"""What the numbers of prompts and steps count, so that no checkpoint goes on with other data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_protocol.data_config import DataConfig
    from rollcall_runtime.data.rows import Rows

_READ = 32  # rows whose content is compared, from the first to the last


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """A source; `rows` is 0 and `content` empty if its rows are made up from its name."""

    name: str
    weight: int
    rows: int = 0
    content: str = ""


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """All that says which rows the first N are. `rows_per_step` is 0 if prompts are counted."""

    seed: int
    sources: tuple[SourceIdentity, ...]
    rows_per_step: int = 0

    def changes_since(self, before: DataIdentity) -> str:
        """What makes row N another one than it was; "" if nothing does.

        A file that has another name or another container and the same rows is no change.
        """
        found = [
            f"{what} is {now}, and was {then}"
            for what, now, then in (
                ("seed", self.seed, before.seed),
                ("rowsPerStep", self.rows_per_step, before.rows_per_step),
                ("the number of sources", len(self.sources), len(before.sources)),
            )
            if now != then
        ]
        alone = len(self.sources) == 1
        for now, then in zip(self.sources, before.sources, strict=False):
            found += filter(None, [_change(now, then)])
            if now.weight != then.weight and not alone:
                found.append(f"{now.name!r} has weight {now.weight}, and had {then.weight}")
        return "; ".join(found)


def _change(now: SourceIdentity, then: SourceIdentity) -> str:
    if now.name != then.name and (not now.content or not then.content):
        return f"{now.name!r} takes the place of {then.name!r}"
    if (now.rows, now.content) == (then.rows, then.content):
        return ""
    if now.name != then.name:
        return f"{now.name!r}, of {now.rows} rows, takes the place of {then.name!r}, of {then.rows}"
    if now.rows != then.rows:
        return f"{now.name!r} has {now.rows} rows, and had {then.rows}"
    return f"{now.name!r} has other rows than it had"


class Counted(Protocol):
    """A source whose rows were checked."""

    def __len__(self) -> int: ...

    def content(self) -> str:
        """See `content_of`."""


def identity_of(
    data: DataConfig, readers: Sequence[Counted] = (), *, rows_per_step: int = 0
) -> DataIdentity:
    """Of `data`; `readers` are its sources, or none if rows are made up from a name."""
    if readers:
        sources = [
            SourceIdentity(source.name, source.weight, len(reader), reader.content())
            for source, reader in zip(data.sources, readers, strict=True)
        ]
    else:
        sources = [SourceIdentity(source.name, source.weight) for source in data.sources]
    return DataIdentity(data.seed, tuple(sources), rows_per_step)


def content_of(rows: Rows, column: str) -> str:
    """A digest of `column` in some rows: cheap for any number of them, and alike for a container
    that orders the keys of objects in another way.
    """
    digest = blake2b(digest_size=16)
    last = len(rows) - 1
    for number in sorted({last * part // (_READ - 1) for part in range(_READ)}):
        value = rows.row(number).get(column)
        digest.update(json.dumps(value, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()
