"""Whether the program ends with an error: Python does not say so to functions of `atexit`."""

import sys
from typing import Any, NoReturn


class ProgramEnd:
    """Notes what `sys.exit` is given, from now on."""

    def __init__(self) -> None:
        self._exit, self._code = sys.exit, None
        sys.exit = self._note

    @property
    def failed(self) -> bool:
        """An exception was not caught, or `sys.exit` was called with a failure."""
        return hasattr(sys, "last_value") or self._code not in {None, 0}

    def _note(self, code: Any = None) -> NoReturn:
        self._code = code
        self._exit(code)
