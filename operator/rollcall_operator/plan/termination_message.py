"""What a container died of, in one line, from the message that its kubelet kept.

A Rollcall worker begins its message with `Type: message (file.py:12 in function)`. Any other
container leaves the end of its log, which may be a Python traceback: its first line says nothing,
and the exception is at the end, below the frames.
"""

import re

_SUMMARY = re.compile(r"\S.* \(\S[^()]*:\d+ in \S+\)")
_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?')
_HEADER = "Traceback (most recent call last):"
_GROUP_MARGIN = re.compile(r"^ *[|+] ?(?:\+-[-+]*)?(?: *Exception Group )?")
_INSTALLED = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib/python3[^/]*)/|^<")
_LAST_LINES = 3


def summarize(message: str) -> str:
    """The exception with its place if `message` holds a Python traceback, else its last lines.

    The place is the innermost frame outside of installed packages and the standard library, or
    the innermost of all if there is none: `ValueError: bad reward (task.py:12 in score)`.
    """
    lines = [_GROUP_MARGIN.sub("", line) for line in message.strip().splitlines()]
    lines = [line for line in lines if line.strip()]
    if not lines:
        return ""
    if _SUMMARY.fullmatch(lines[0]):
        return lines[0]
    frames = [index for index, line in enumerate(lines) if _FRAME.match(line.strip())]
    if not frames:
        return "; ".join(line.strip() for line in lines[-_LAST_LINES:])
    start = _start_of_last_traceback(lines, frames)
    found = [_FRAME.match(lines[index].strip()) for index in frames if index >= start]
    matches = [match for match in found if match is not None]
    own = [match for match in matches if not _INSTALLED.search(match["path"])]
    place = (own or matches)[-1]
    where = f"{place['path'].rpartition('/')[2]}:{place['line']}"
    if place["function"]:
        where += f" in {place['function']}"
    return f"{_exception(lines, frames[-1])} ({where})"


def _start_of_last_traceback(lines: list[str], frames: list[int]) -> int:
    """A chain of exceptions is several tracebacks; the last one is of the exception raised."""
    headers = [i for i, line in enumerate(lines) if _HEADER in line and i < frames[-1]]
    return headers[-1] if headers else 0


def _exception(lines: list[str], last_frame: int) -> str:
    """The first line after the last frame that is not indented: what the frames end in."""
    for line in lines[last_frame + 1 :]:
        if not line.startswith(" "):
            return line.strip()
    return lines[-1].strip()
