"""Where checkpoints lie: one folder a step, there as a whole or not at all.

`state.json` is written last. It holds length and CRC-32 of every other file, so that a folder in
which anything is missing, cut short or changed is detected before it is loaded.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zlib_ng.zlib_ng import crc32

_PREFIX = "step-"
_STATE_FILE = "state.json"
_DIGESTS = ".digests-"
_CHUNK_BYTES = 4 << 20
_THREADS = 4  # reading and CRC-32 run outside the GIL


class TornError(ValueError):
    """A checkpoint that is not whole; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class _Seal:
    """The contents of `state.json`: the caller's values, and [bytes, CRC-32] of each file."""

    state: dict[str, Any]
    files: dict[str, tuple[int, int]]

    def text(self) -> str:
        body = json.loads(json.dumps({"files": self.files, "state": self.state}))
        return json.dumps({**body, "crc32": _crc_of(body)})

    @classmethod
    def read(cls, path: Path) -> "_Seal":
        """TornError for anything but what `text` wrote."""
        try:
            found = json.loads(_regular(path / _STATE_FILE).read_text(encoding="utf-8"))
            crc = found.pop("crc32")
            if set(found) != {"files", "state"} or crc != _crc_of(found):
                raise ValueError("its checksum does not match its contents")  # noqa: TRY301
            files = {name: (int(size), int(sum_)) for name, (size, sum_) in found["files"].items()}
            return cls(found["state"], files)
        except OSError as error:
            raise TornError(f"{_STATE_FILE} cannot be read: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TornError(f"{_STATE_FILE} is damaged: {error}") from error


def checkpoint_path(root: Path, step: int) -> Path:
    """The folder of `step` under `root`."""
    return root / f"{_PREFIX}{step:08d}"


def list_checkpoints(root: Path) -> list[Path]:
    """The folders of checkpoints under `root`, whole or not, newest first."""
    return sorted(root.glob(f"{_PREFIX}*"), reverse=True)


def check_checkpoint(path: Path, *, part: int = 0, of: int = 1) -> None:
    """Read every `of`-th file from the `part`-th on; TornError unless they are as committed."""
    files = sorted(_Seal.read(path).files.items())[part::of]
    with ThreadPoolExecutor(_THREADS) as pool:
        for (name, wanted), found in zip(
            files, pool.map(_digest_or_error, (path / name for name, _ in files)), strict=True
        ):
            if isinstance(found, OSError):
                raise TornError(f"{name} cannot be read: {found}") from found
            if found[0] != wanted[0]:
                raise TornError(f"{name} has {found[0]} of {wanted[0]} bytes")
            if found[1] != wanted[1]:
                raise TornError(f"{name} has another checksum than when it was written")


def prune_checkpoints(root: Path, *, keep: int, newest: Path) -> None:
    """Remove all but `newest`, just committed, and the `keep` - 1 best ones before it.

    Those of later steps were passed over when training resumed from an older one. Of the earlier
    ones the newest are kept that look whole (files are there in their lengths).
    """
    if keep < 1:
        raise ValueError("at least one checkpoint must be kept")
    older = [path for path in list_checkpoints(root) if path.name < newest.name]
    kept = {newest, *[path for path in older if _looks_whole(path)][: keep - 1]}
    for path in list_checkpoints(root):
        if path not in kept:
            _remove(path)


def scratch_path(path: Path) -> Path:
    """Where the ranks write what becomes `path` with the commit."""
    return path.with_name(f".{path.name}.new")


def begin_checkpoint(path: Path) -> None:
    """Make the empty scratch folder; what broken tries left beside it is removed."""
    discard_scratch(path.parent)
    scratch_path(path).mkdir(parents=True)


def discard_scratch(root: Path) -> None:
    """Remove what broken tries left under `root`."""
    for left in root.glob(f".{_PREFIX}*"):
        _remove(left)


def digest_files(path: Path, names: Iterable[str], *, rank: int) -> None:
    """Write the digests of files in the scratch folder of `path` that this rank wrote.

    Each rank reads its own ones while they are in its page cache; the commit reads the others.
    """
    scratch = scratch_path(path)
    digests = dict(_digests(scratch, names))
    (scratch / f"{_DIGESTS}{rank}").write_text(json.dumps(digests), encoding="utf-8")


def commit_checkpoint(path: Path, *, state: Mapping[str, Any]) -> None:
    """Add `state` (JSON values) to what was written and move it to `path` by renaming."""
    scratch = scratch_path(path)
    files: dict[str, tuple[int, int]] = {}
    for digests in scratch.glob(f"{_DIGESTS}*"):
        found = json.loads(digests.read_text(encoding="utf-8"))
        files |= {name: (size, crc) for name, (size, crc) in found.items()}
        digests.unlink()
    rest = (file.relative_to(scratch).as_posix() for file in scratch.rglob("*") if file.is_file())
    files |= _digests(scratch, [name for name in rest if name not in files])
    with (scratch / _STATE_FILE).open("w", encoding="utf-8") as file:
        file.write(_Seal(dict(state), files).text())
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(scratch)
    old = _old_path(path)
    if path.exists():  # the same step again, after a restart from an older one
        path.rename(old)
    scratch.rename(path)
    _sync_folder(path.parent)
    if old.exists():
        _remove(old)


def mend_checkpoints(root: Path) -> None:
    """Finish what a crash between the commit's two renames left: `path` itself is not there."""
    for old in root.glob(f".{_PREFIX}*.old"):
        path = root / old.name.removeprefix(".").removesuffix(".old")
        if not path.exists():
            new = scratch_path(path)
            (new if _looks_whole(new) else old).rename(path)


def read_state(path: Path) -> dict[str, Any]:
    """The `state` of a committed checkpoint; TornError if it is not one."""
    return _Seal.read(path).state


def _remove(path: Path) -> None:
    """A folder with all that is in it; of a link or a file in a folder's place itself alone."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)


def _old_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _looks_whole(path: Path) -> bool:
    try:
        files = _Seal.read(path).files.items()
        return all((path / name).stat().st_size == size for name, (size, _) in files)
    except (TornError, OSError):
        return False


def _digests(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    listed = list(names)
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from zip(listed, pool.map(_digest, (folder / n for n in listed)), strict=True)


def _digest_or_error(path: Path) -> tuple[int, int] | OSError:
    try:
        return _digest(path)
    except OSError as error:
        return error


def _digest(path: Path) -> tuple[int, int]:
    """Length and CRC-32."""
    size, crc = 0, 0
    with _regular(path).open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            size, crc = size + len(chunk), crc32(chunk, crc)
    return size, crc


def _regular(path: Path) -> Path:
    """`path`; OSError if it is a pipe or a device, which would be read for ever."""
    if path.exists() and not path.is_file():
        raise OSError(f"'{path}' is no file")
    return path


def _crc_of(body: Mapping[str, Any]) -> int:
    return crc32(json.dumps(body, sort_keys=True).encode())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
