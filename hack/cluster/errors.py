"""Errors of the local cluster, and the paragraph that a person reads in place of a traceback."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LAST_LINES = 8
_LINE_LENGTH = 300
_ADVICE = (
    (
        r"The connection to the server .* was refused",
        "see that the cluster which your kubeconfig names runs, then run it again",
    ),
    (r"(?i)no space left on device", "free some disk (38 GB are needed), then run it again"),
    (
        (
            r"(?i)could not resolve|temporary failure (in name|resolving)|no such host"
            r"|network is unreachable|connection (refused|reset|timed out)|i/o timeout"
            r"|tls handshake|certificate (verify failed|signed by unknown)|unable to fetch"
        ),
        (
            "see that this machine reaches its package registries (Debian, PyPI, the Go module "
            "proxy), then run it again"
        ),
    ),
    (
        r"(?i)operation not permitted|permission denied",
        "run it as root, or start Docker and let this user use it",
    ),
    (r"(?i)out of memory|signal: killed|cannot allocate", "free some memory, then run it again"),
)
_AGAIN = (
    "run it again: steps that are done are not repeated. If it fails in the same way, "
    "`make cluster-down`, then once more"
)


class ClusterError(RuntimeError):
    """Something about the cluster went wrong; the message says what, and may say what to do.

    Attributes:
        step: the title of the step that failed, if one did.
    """

    step: str = ""


class CommandError(ClusterError):
    """A program failed or ran past its deadline.

    Attributes:
        failure: which program, and how it ended.
        output: what it wrote to standard error, and to standard output if captured; of a log, its
            end.
        log: the file with all of that, if there is one.
    """

    def __init__(self, failure: str, *, output: str, log: Path | None = None) -> None:
        tail = "\n".join(output.strip().splitlines()[-LAST_LINES:])
        super().__init__(f"{failure}\n{tail}" if tail else failure)
        self.failure, self.output, self.log = failure, output, log


class KubectlError(ClusterError):
    """kubectl, or a reading in its place, failed; the message has what was said."""


def explain(error: Exception, *, log: Path | None = None) -> str:
    """One paragraph: what failed, what it said last, where the whole log is, what to do.

    Args:
        error: what a command of the cluster raised.
        log: a file with more about it, if the error itself names none.
    """
    step = error.step if isinstance(error, ClusterError) else ""
    failed = error.failure if isinstance(error, CommandError) else str(error)
    output = error.output if isinstance(error, CommandError) else ""
    lines = [f"error: {step}: {failed}" if step else f"error: {failed}"]
    said = [line.rstrip()[:_LINE_LENGTH] for line in output.splitlines() if line.strip()]
    if said:
        lines.append("its last lines:")
        lines += textwrap.indent("\n".join(said[-LAST_LINES:]), "  | ").splitlines()
    if isinstance(error, CommandError) and error.log:
        log = error.log
    if log:
        lines.append(f"whole log: {log}")
    if isinstance(error, CommandError) or log:
        lines.append(f"what to do: {_advice(failed, output)}")
    return "\n".join(lines)


def _advice(*texts: str) -> str:
    text = "\n".join(texts)
    return next((advice for pattern, advice in _ADVICE if re.search(pattern, text)), _AGAIN)
