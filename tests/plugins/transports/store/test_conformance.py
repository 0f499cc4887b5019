"""The conformance suite on a store in a directory."""

from tests.unit.rollcall_runtime.sync.conformance import *  # noqa: F403
from tests.unit.rollcall_runtime.sync.engine_cases import SHORT, Case, members_of

case, processes, trio = members_of(
    Case(
        "store",
        SHORT | {"url": "file://FOLDER/store", "keepSeconds": 0},
        selective=True,
        sender_waits=False,
    )
)
