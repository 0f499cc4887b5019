"""The exceptions of weight sync; each may name the peer that caused it."""

from typing import ClassVar

from rollcall_protocol.wire.ids import MemberId


class SyncError(Exception):
    """A sync call failed. After one, its session is over: abort it and open another.

    `own_fault` says that the cause lies in this process (see `Ack.own_fault`), `peer` names the
    member at the other end of what failed; None where the library does not name it.
    """

    own_fault: ClassVar[bool] = False

    def __init__(self, message: str, *, peer: MemberId | None = None) -> None:
        super().__init__(message if peer is None else f"{message} (peer {peer})")
        self.peer = peer


class JoinFailedError(SyncError):
    """The group could not be built: a seat stayed empty, or the sender could not be reached."""


class AbortedError(SyncError):
    """`abort` was called on the session, from this thread or another."""


class TimedOutError(SyncError):
    """The call did not finish in time."""


class TransferFailedError(SyncError):
    """The transport reported a failure, most often a peer that died."""


class ExhaustedError(SyncError):
    """No memory is left for staging, or too many abandoned sessions still hold theirs."""

    own_fault = True


class UnexpectedError(SyncError):
    """An engine raised an exception of another type; which member caused it is unknown."""


class DigestMismatchError(SyncError):
    """What arrived is not what the manifest describes; what is served was not touched."""

    own_fault = True


class StagingError(SyncError):
    """The version to commit is not what was staged, or its tensors cannot be used here."""

    own_fault = True


class CatchUpError(SyncError):
    """No donor could give the version whole; the message has each donor's reason.

    `wrong_donors` are those that sent other weights than the trainer made.
    """

    def __init__(self, message: str, *, wrong_donors: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.wrong_donors = wrong_donors
