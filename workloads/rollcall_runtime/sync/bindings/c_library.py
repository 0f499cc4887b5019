"""A C library's functions, loaded with ctypes and called with their results checked."""

import ctypes
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Functions = Mapping[str, Sequence[Any]]  # names and the types of their arguments


class LibraryError(RuntimeError):
    """A function of a C library returned an error; `code` is what it returned."""

    def __init__(self, function: str, code: int, text: str) -> None:
        super().__init__(f"{function}: {text} ({code})")
        self.code = code


class CLibrary:
    """Functions that return 0 for success, by name.

    `functions` must all be there (ImportError names one that is not), of `optional` those are bound
    that the library has. `describe` names its function from a code to a text.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        *,
        functions: Functions,
        optional: Functions,
        describe: str,
    ) -> None:
        self._library = library
        self._functions: dict[str, Any] = {}
        for name, arguments in functions.items():
            if not hasattr(library, name):
                raise ImportError(f"it has no function {name}")
            self._bind(name, arguments)
        for name, arguments in optional.items():
            if hasattr(library, name):
                self._bind(name, arguments)
        self._describe: Any = None
        if describe and hasattr(library, describe):
            self._describe = getattr(library, describe)
            self._describe.argtypes, self._describe.restype = [ctypes.c_int], ctypes.c_char_p

    def has(self, *names: str) -> bool:
        """Whether the library has all these functions."""
        return all(name in self._functions for name in names)

    def call(self, name: str, *arguments: Any, accept: Sequence[int] = (0,)) -> int:
        """Call without the GIL; returns the code, raises LibraryError if it is not accepted."""
        code = int(self._functions[name](*arguments))
        if code not in accept:
            raise LibraryError(name, code, self.text(code))
        return code

    def text(self, code: int) -> str:
        """What the library says of a code."""
        if self._describe is None:
            return "error"
        return str((self._describe(code) or b"unknown").decode(errors="replace"))

    def _bind(self, name: str, arguments: Sequence[Any]) -> None:
        function = getattr(self._library, name)
        function.argtypes, function.restype = list(arguments), ctypes.c_int
        self._functions[name] = function


def address_of(memory: memoryview) -> int:
    """Where writable host memory is, for a C function."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def load(what: str, candidates: Iterator[str]) -> ctypes.CDLL:
    """The first candidate (a path, or a name for the loader) that loads.

    Raises ImportError that lists what was tried and why it failed.
    """
    tried: list[str] = []
    for candidate in candidates:
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            tried.append(f"{candidate}: {error}")
    raise ImportError(f"{what} was not found; tried {'; '.join(tried)}", name=what)


def in_wheels(pattern: str) -> Iterator[str]:
    """Paths that match below the folder that NVIDIA's wheels share."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for found in sorted(Path(folder).glob(pattern)):
            yield str(found)
