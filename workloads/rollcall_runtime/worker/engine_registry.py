"""Finds engines by name: the core's, and plug-ins, which distributions add by entry points.

An engine is imported when it is first used, so that a missing dependency disables only the engine
that needs it; its import error is shown.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from rollcall_runtime.worker.errors import SpecError

T = TypeVar("T")

_OWN = "rollcall"  # the distribution that has the core's engines, and the plug-ins of this tree

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

    `kind` names such an engine in messages, `group` is the entry point group of plug-ins, `field`
    the path in the RLJob that names one. `builtins` maps the core's names to "module:Class"; a
    third party replaces neither these nor this project's plug-ins. `problem` returns why an
    imported engine cannot work on this machine, else None; such an engine is listed as not
    available, and `get` still returns it.
    """

    def __init__(
        self,
        *,
        kind: str,
        group: str,
        field: str,
        base: type[T],
        builtins: Mapping[str, str],
        problem: Callable[[type[T]], str | None] = lambda _: None,
    ) -> None:
        self._kind = kind
        self._group = group
        self._field = field
        self._base = base
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
            return self._load(entry)
        except _LOAD_ERRORS as error:
            problem = f"{self._kind} {name!r} cannot be used here: {_describe(error)}"
            advice = "name another one, or an image that has what it needs"
            raise SpecError(self._field, f"{problem}; {advice}; {self._listing()}") from error

    def survey(self) -> tuple[Availability, ...]:
        """Every known engine, by name. Imports each, which may take seconds."""
        return tuple(self._examine(name, entry) for name, entry in sorted(self._entries().items()))

    def _entries(self) -> dict[str, EntryPoint]:
        registered = sorted(entry_points(group=self._group), key=_is_own)  # of a name the last
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
        return Availability(name, origin, self._problem(found), found)

    def _unknown(self, name: str) -> str:
        close = difflib.get_close_matches(name, self._entries(), n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        return f"unknown {self._kind} {name!r}{hint}; {self._listing()}"

    def _listing(self) -> str:
        engines = self.survey()
        usable = [engine.name for engine in engines if engine.reason is None]
        broken = [f"{engine.name} ({engine.reason})" for engine in engines if engine.reason]
        text = f"available: {', '.join(usable) or 'none'}"
        return f"{text}; not available: {', '.join(broken)}" if broken else text


def _is_own(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == _OWN


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
