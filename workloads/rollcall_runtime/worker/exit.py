"""How a worker process ends: its exit code, and the termination message that Kubernetes shows."""

import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import rollcall_runtime
from rollcall_protocol import pod_contract
from rollcall_runtime.worker.errors import FencedError, SpecError

log = logging.getLogger(__name__)

MESSAGE_BYTES = 4096  # the longest termination message that a kubelet keeps
MAX_SUMMARY = 1000  # characters of the message in the first line

_THIRD_PARTY = {"site-packages", "dist-packages"}
# The core's packages and the plug-ins beside them.
_OWN_PACKAGES = tuple(
    f"{Path(path).resolve().parent}{os.sep}rollcall_" for path in rollcall_runtime.__path__
)
_STANDARD_LIBRARY = tuple(
    f"{Path(sysconfig.get_path(name)).resolve()}{os.sep}" for name in ("stdlib", "platstdlib")
)


def report_failure(error: BaseException, code: pod_contract.ExitCode) -> int:
    """Write why the worker ends to standard error and to the termination log; returns `code`."""
    sys.stderr.write(f"{summary(error)}\n")
    write_termination_log(termination_message(error))
    return code


def report_stop(message: str) -> None:
    """Log why the worker stops though its work is not done; also to the termination log."""
    log.warning("%s", message)
    write_termination_log(_utf8(message)[:MESSAGE_BYTES])


def write_termination_log(message: bytes) -> None:
    """Leave a message for the container's status, or for the process that supervises this one."""
    path = Path(os.environ.get(pod_contract.EXIT_MESSAGE, pod_contract.TERMINATION_LOG))
    if path.exists():
        try:
            path.write_bytes(message)
        except OSError as problem:
            log.warning("cannot write %s: %s", path, problem)


def summary(error: BaseException) -> str:
    """One line: `Type: message (file.py:12 in function)`.

    The place is the user's own frame: the last one outside of site-packages, the standard library
    and Rollcall, of the error or of what caused it; without one it is the last frame. SpecError and
    FencedError say what to do, so they stand without type, and without a place in Rollcall's code.
    """
    explained = isinstance(error, (SpecError, FencedError))
    message = _shorten(" ".join(str(error).split()))
    if not explained:
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frame = user_frame(error)
    if frame is None and not explained:
        frame = next(iter(reversed(_frames(error))), None)
    if frame is None:
        return message
    return f"{message} ({Path(frame.filename).name}:{frame.lineno} in {frame.name})"


def _utf8(text: str) -> bytes:
    """What is no text, such as half of a surrogate pair in a name, as its escape."""
    return text.encode(errors="backslashreplace")


def termination_message(error: BaseException) -> bytes:
    """The summary, then the end of the traceback, within MESSAGE_BYTES of UTF-8."""
    first = summary(error)
    if isinstance(error, (SpecError, FencedError)) and user_frame(error) is None:
        return _utf8(first)[:MESSAGE_BYTES]
    head = _utf8(f"{first}\n\n")
    text = _utf8("".join(traceback.format_exception(error)).rstrip("\n"))
    room = MESSAGE_BYTES - len(head)
    if len(text) > room:
        mark = b"...\n"
        # From the start of a line, so that no character is cut.
        text = mark + text[len(text) - room + len(mark) :].partition(b"\n")[2]
    return head + text


def end_with_failure(error: BaseException) -> NoReturn:
    """End the process at once although a thread is in a call that cannot be interrupted."""
    log.error("%s; this process exits, and the kubelet restarts its container", error)
    exit_process(report_failure(error, pod_contract.ExitCode.FAILED))


def exit_process(code: int) -> NoReturn:
    """End the process without finalising the interpreter.

    Until Python 3.14 finalisation unwinds every thread that waits for the GIL, which aborts the
    process if torch's own threads are among them: gloo's release tensors a moment after the last
    collective, and the exit code would be wrong. See python/cpython#87135.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def user_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The last frame of the user's code, of the outermost exception that has one."""
    for cause in _chain(error):
        for frame in reversed(_frames(cause)):
            if _is_users(frame.filename):
                return frame
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error`, and what caused it, as a traceback shows them."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        context = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or context


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(error.__traceback__))


def _is_users(filename: str) -> bool:
    if filename.startswith("<"):  # frozen modules and generated code
        return False
    path = Path(filename).resolve()
    if _THIRD_PARTY & set(path.parts):
        return False
    return not str(path).startswith(_OWN_PACKAGES + _STANDARD_LIBRARY)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SUMMARY else f"{text[: MAX_SUMMARY - 3]}..."
