"""A table of mutants: one file for an area, a row for each mutant.

    [older_roster_taken]
    promise = "A coordinator refuses a roster of an older epoch."
    fails = ["tests/unit/test_coordinator.py::test_a_roster_that_must_not_count_is_refused"]
    file = "workloads/rollcall_protocol/membership/member_table.py"
    before = '''
        if roster.epoch < epoch:
    '''
    after = '''
        if False:
    '''

`before` occurs once in the file. Several edits stand in `[[older_roster_taken.edits]]`, each with
`file`, `before` and `after`. `fails` names tests, single cases of tests, or files; each must fail.
With `timeout = 20`, a test that has run for 20 seconds counts as failed; without it, a test that
hangs kills no mutant. `alone` ones come last, one by one, because their tests measure times. With
`environment = "verl"` its tests run in .venv-verl, when `python -m tests.mutants` does.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    model_validator,
)

if TYPE_CHECKING:
    from pathlib import Path


class MutantError(ValueError):
    """A table is not as it must be; the message names the file, the row and the field."""


class EditError(ValueError):
    """A row's text is not in the tree once; the message names the file."""


def _sentence(promise: str) -> str:
    if not promise.endswith(".") or ". " in promise:
        raise ValueError("must be one sentence that ends with a full stop")
    return promise


def _product(file: str) -> str:
    if file.startswith("tests/"):
        raise ValueError("a mutant changes the product, not its tests")
    return file


class Edit(BaseModel):
    """In one file, the text `before` becomes `after`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Annotated[str, AfterValidator(_product)]
    before: str = Field(min_length=1)
    after: str

    @model_validator(mode="after")
    def _changes(self) -> Edit:
        if self.before == self.after:
            raise ValueError("before and after are the same text")
        return self


class Mutant(BaseModel):
    """One row. `name` is the path of its table, without the suffix, and the row's key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    promise: Annotated[str, AfterValidator(_sentence)]
    fails: tuple[str, ...] = Field(min_length=1)
    edits: tuple[Edit, ...] = Field(min_length=1)
    timeout: float | None = Field(default=None, gt=0, strict=True)
    alone: StrictBool = False
    environment: str = ""


def load(folder: Path) -> list[Mutant]:
    """The mutants of all tables below a folder, by name. MutantError when one is malformed."""
    mutants = list[Mutant]()
    for path in sorted(folder.rglob("*.toml")):
        area = path.relative_to(folder).with_suffix("")
        try:
            rows = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise MutantError(f"{path}: {error}") from error
        mutants += [_row(path, key, row, name=f"{area}/{key}") for key, row in rows.items()]
    return sorted(mutants, key=lambda mutant: mutant.name)


def edited(mutant: Mutant, tree: Path) -> dict[str, str]:
    """The text of each file that the mutant changes, as it leaves it. Raises EditError."""
    texts = dict[str, str]()
    for edit in mutant.edits:
        if edit.file not in texts:
            try:
                texts[edit.file] = (tree / edit.file).read_text(encoding="utf-8")
            except FileNotFoundError as error:
                raise EditError(f"{edit.file}: no such file") from error
        count = texts[edit.file].count(edit.before)
        if count != 1:
            found = f"{count} times" if count else "nowhere"
            raise EditError(f"{edit.file}: `before` must occur once, and occurs {found}")
        texts[edit.file] = texts[edit.file].replace(edit.before, edit.after)
    return texts


def problems(mutants: list[Mutant], tree: Path) -> list[str]:
    """What does not fit the tree, a line each: texts, tests that are named, promises made twice."""
    found, promises = list[str](), dict[str, str]()
    sources = dict[str, str]()
    for mutant in mutants:
        try:
            edited(mutant, tree)
        except EditError as error:
            found.append(f"{mutant.name}: {error}")
        found += [
            f"{mutant.name}: no such test: {test}"
            for test in mutant.fails
            if not _exists(test, tree, sources)
        ]
        if (other := promises.setdefault(mutant.promise, mutant.name)) != mutant.name:
            found.append(f"{mutant.name}: {other} has the same promise")
    return found


def file_of(test: str) -> str:
    """The file of a test id."""
    return test.partition("::")[0]


def _row(path: Path, key: str, row: Any, *, name: str) -> Mutant:
    if not isinstance(row, dict):
        raise MutantError(f"{path}: {key} is not a mutant: its key stands in no [table]")
    fields = dict(row)
    if "edits" not in fields:  # the only edit stands in the row itself
        fields["edits"] = [{x: fields.pop(x) for x in Edit.model_fields if x in fields}]
    try:
        return Mutant.model_validate({"name": name} | fields)
    except ValidationError as error:
        wrong = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg'].removeprefix('Value error, ')}"
            for each in error.errors()
        ]
        raise MutantError(f"{path}: [{key}] " + "; ".join(wrong)) from error


def _exists(test: str, tree: Path, sources: dict[str, str]) -> bool:
    file, _, name = test.partition("::")
    if file not in sources:
        path = tree / file
        sources[file] = path.read_text(encoding="utf-8") if path.is_file() else ""
    name = name.partition("[")[0].rpartition("::")[2]
    return bool(sources[file]) and (not name or f"def {name}(" in sources[file])
