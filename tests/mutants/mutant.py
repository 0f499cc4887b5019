"""A mutant's file: a header, an empty line, a unified diff.

    Promise: A member ignores messages of an older session.
    Fails: tests/unit/rollcall_protocol/test_member.py::test_older_sessions_are_ignored
    Quick: yes

    --- a/workloads/rollcall_protocol/member_machine.py
    +++ b/workloads/rollcall_protocol/member_machine.py
    ...

`Fails` names a test, one of its cases, or a file; there may be several such lines, and each must
fail. `Quick` mutants run in `make test`. With `Timeout: 20`, a test that has run for 20 seconds
counts as failed; without it, a test that hangs kills no mutant. `Alone` ones come last, one by one,
because their tests measure times.
"""

import re
from dataclasses import dataclass
from pathlib import Path

FIELDS = frozenset({"Promise", "Fails", "Quick", "Timeout", "Alone"})
DIFF = "--- "
_FILE = re.compile(r"^(?:---|\+\+\+) (?:[ab]/)?(\S+)", re.MULTILINE)


class MutantError(ValueError):
    """A mutant's file is not as it must be; the message names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One patch. `name` is its path below the folder of mutants, without the suffix."""

    name: str
    path: Path
    promise: str
    tests: tuple[str, ...]
    patched: tuple[str, ...]
    quick: bool = False
    timeout: float | None = None
    alone: bool = False


def parse(path: Path, *, name: str) -> Mutant:
    """Read one file. MutantError when a field is missing, unknown or malformed."""
    header, _, diff = path.read_text(encoding="utf-8").partition("\n\n")
    fields = dict[str, list[str]]()
    for line in header.splitlines():
        key, colon, value = line.partition(": ")
        if not colon or key not in FIELDS or not value.strip():
            raise MutantError(f"{path}: {line!r} is none of {', '.join(sorted(FIELDS))}")
        fields.setdefault(key, []).append(value.strip())
    if twice := [key for key, values in fields.items() if len(values) > 1 and key != "Fails"]:
        raise MutantError(f"{path}: {twice[0]} is given twice")
    promise, tests = fields.get("Promise", [""])[0], tuple(fields.get("Fails", []))
    if not promise.endswith(".") or ". " in promise:
        raise MutantError(f"{path}: Promise must be one sentence that ends with a full stop")
    if not tests:
        raise MutantError(f"{path}: no Fails line names a test")
    return Mutant(
        name=name,
        path=path,
        promise=promise,
        tests=tests,
        patched=_patched(path, diff),
        quick=_yes_or_no(path, fields, "Quick"),
        alone=_yes_or_no(path, fields, "Alone"),
        timeout=_seconds(path, fields["Timeout"][0]) if "Timeout" in fields else None,
    )


def load(folder: Path) -> list[Mutant]:
    """All mutants below a folder, by name. MutantError when one is malformed."""
    paths = sorted(folder.rglob("*.patch"))
    return [parse(path, name=str(path.relative_to(folder).with_suffix(""))) for path in paths]


def file_of(test: str) -> str:
    """The file of a test id."""
    return test.partition("::")[0]


def _patched(path: Path, diff: str) -> tuple[str, ...]:
    if not re.search(r"^--- ", diff, re.MULTILINE):
        raise MutantError(f"{path}: no unified diff follows the header and an empty line")
    files = tuple(sorted({name for name in _FILE.findall(diff) if name != "/dev/null"}))
    if tests := [name for name in files if name.startswith("tests/")]:
        raise MutantError(f"{path}: a mutant changes the product, not {tests[0]}")
    return files


def _yes_or_no(path: Path, fields: dict[str, list[str]], key: str) -> bool:
    value = fields.get(key, ["no"])[0]
    if value not in {"yes", "no"}:
        raise MutantError(f"{path}: {key} must be yes or no, not {value!r}")
    return value == "yes"


def _seconds(path: Path, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise MutantError(f"{path}: Timeout must be a positive number of seconds, not {value!r}")
    return seconds
