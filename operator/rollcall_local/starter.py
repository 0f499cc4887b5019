"""The files of a new job of one's own: those of an example, under another name."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from rollcall_local import examples
from rollcall_local.errors import LocalError
from rollcall_local.other_names import OtherTrainer, annotated
from rollcall_operator.api.scalars import JOB_NAME_MAX

USUAL = "own-task"
MANIFEST = "rljob.yaml"
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SKIPPED = {"__pycache__"}


class StarterError(LocalError):
    """The folder cannot be written so; the message says why, and what to do."""


def starter_files(name: str, other: OtherTrainer | None) -> dict[str, str]:
    """The texts by file; `name` is the job's. StarterError."""
    if len(name) > JOB_NAME_MAX or not _NAME.fullmatch(name):
        raise StarterError(
            f"the name {name!r} is none for a job: give --name with lower-case letters, digits and "
            f"-, a letter first, at most {JOB_NAME_MAX}"
        )
    example = other.example if other is not None else USUAL
    source = examples.find(example)
    files = {
        path.name: path.read_text(encoding="utf-8")
        for path in sorted(source.iterdir())
        if path.name not in _SKIPPED
    }
    if other is not None:
        files[MANIFEST] = annotated(files[MANIFEST], other, lines_of_fields(files[MANIFEST]))
    for file in (MANIFEST, "kustomization.yaml"):
        here = files[file].replace(f"examples/{example}", ".")
        files[file] = re.sub(rf"\b{example}\b(?!\.md)", name, here)
    return files


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write all of them, none if one is there already; StarterError, OSError."""
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise StarterError(
            f"{folder} has {', '.join(there)} already, and nothing is overwritten; name another "
            "folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        with (folder / name).open("x", encoding="utf-8") as out:
            out.write(text)


def lines_of_fields(text: str) -> dict[str, int]:
    """The number of the line, from 0, of each field of a YAML text, by its path without indices.

    Of the fields of several items of a list that of the first counts.
    """
    found: dict[str, int] = {}
    for path, line in _fields(yaml.compose(text), ""):
        found.setdefault(path, line)
    return found


def _fields(node: yaml.Node | None, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = f"{path}.{key.value}" if path else str(key.value)
            yield inner, key.start_mark.line
            yield from _fields(value, inner)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _fields(item, path)
