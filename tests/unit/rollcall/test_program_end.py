"""Whether the program ends with an error."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys
from rollcall.program_end import ProgramEnd
end = ProgramEnd()
atexit.register(lambda: print("failed" if end.failed else "ended well"))
"""


@pytest.mark.parametrize(
    ("last", "wanted"),
    [
        ("", "ended well"),
        ("sys.exit()", "ended well"),
        ("sys.exit(0)", "ended well"),
        ("sys.exit(3)", "failed"),
        ("sys.exit('the evaluation failed')", "failed"),
        ("raise ValueError", "failed"),
    ],
)
def test_an_error_at_the_end_of_the_program_is_known(last: str, wanted: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + last], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == wanted
