"""Finds engines by name: the core's, and plug-ins, which distributions add by entry points.

An engine is imported when it is first used, so that a missing dependency disables only the engine
that needs it; its import error is shown.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, metadata
from typing import Any, Generic, TypeVar

from rollcall_runtime.worker.errors import SpecError

T = TypeVar("T")
_DISTRIBUTION = "rollcall"


# What importing third-party code raises in practice: missing modules and attributes, shared
# libraries that do not load (OSError), packages that refuse a machine without their driver.
_LOAD_ERRORS = (
    ImportError,
    AttributeError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether an engine can be used here: `reason` is None, or says why it cannot.

    `origin` is "built in", or the other distribution that registered the engine; `found` is its
    class, None if that cannot be imported.
    """

    name: str
    origin: str
    reason: str | None
    found: type[Any] | None = field(default=None, compare=False, repr=False)


class Registry(Generic[T]):
    """Names to classes derived from `base`.

    `kind` names such an engine in messages, `group` is the entry point group for third parties,
    `field` the path in the RLJob that names one. `builtins` maps names to "module:Class"; a third
    party can replace neither a built-in engine nor a plug-in of this distribution. `require` raises
    ImportError if what an imported engine needs is missing. `problem` returns why an imported
    engine cannot work on this machine, else None; such an engine is listed as not available, and
    `get` still returns it.
    """

    def __init__(
        self,
        *,
        kind: str,
        group: str,
        field: str,
        base: type[T],
        builtins: Mapping[str, str],
        require: Callable[[type[T]], None] = lambda _: None,
        problem: Callable[[type[T]], str | None] = lambda _: None,
    ) -> None:
        self._kind = kind
        self._group = group
        self._field = field
        self._base = base
        self._require = require
        self._problem = problem
        self._builtins = {
            name: EntryPoint(name=name, value=value, group=group)
            for name, value in builtins.items()
        }

    def get(self, name: str) -> type[T]:
        """The class of engine `name`; SpecError lists the engines and what some of them lack."""
        entry = self._entries().get(name)
        if entry is None:
            raise SpecError(self._field, self._unknown(name))
        try:
            found = self._load(entry)
            self._require(found)
        except _LOAD_ERRORS as error:
            problem = f"{self._kind} {name!r} cannot be used here: {_describe(error)}"
            advice = f"name another one, or an image that has what it needs{_extras(name)}"
            raise SpecError(self._field, f"{problem}; {advice}; {self._listing()}") from error
        return found

    def survey(self) -> tuple[Availability, ...]:
        """Every known engine, by name. Imports each, which may take seconds."""
        return tuple(self._examine(name, entry) for name, entry in sorted(self._entries().items()))

    def _entries(self) -> dict[str, EntryPoint]:
        registered = sorted(entry_points(group=self._group), key=_is_own)
        return {entry.name: entry for entry in registered} | self._builtins

    def _load(self, entry: EntryPoint) -> type[T]:
        found = entry.load()
        if not (isinstance(found, type) and issubclass(found, self._base)):
            raise TypeError(f"{entry.value} is not a {self._base.__name__}")
        return found

    def _examine(self, name: str, entry: EntryPoint) -> Availability:
        origin = "built in" if entry.dist is None or _is_own(entry) else entry.dist.name
        try:
            found = self._load(entry)
        except _LOAD_ERRORS as error:
            return Availability(name, origin, _describe(error))
        try:
            self._require(found)
        except _LOAD_ERRORS as error:
            return Availability(name, origin, _describe(error), found)
        return Availability(name, origin, self._problem(found), found)

    def _unknown(self, name: str) -> str:
        close = difflib.get_close_matches(name, self._entries(), n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        return f"unknown {self._kind} {name!r}{hint}{_extras(name)}; {self._listing()}"

    def _listing(self) -> str:
        engines = self.survey()
        usable = [engine.name for engine in engines if engine.reason is None]
        broken = [f"{engine.name} ({engine.reason})" for engine in engines if engine.reason]
        text = f"available: {', '.join(usable) or 'none'}"
        return f"{text}; not available: {', '.join(broken)}" if broken else text


def _is_own(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == _DISTRIBUTION


def _extras(name: str) -> str:
    """The extras that install what an engine needs: named like it, some for one kind of device."""
    try:
        extras = metadata(_DISTRIBUTION).get_all("Provides-Extra") or []
    except PackageNotFoundError:  # run from the sources
        return ""
    own = [extra for extra in extras if extra == name or extra.startswith(f"{name}-")]
    return f" (extra {' or '.join(f'{_DISTRIBUTION}[{extra}]' for extra in own)})" if own else ""


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
