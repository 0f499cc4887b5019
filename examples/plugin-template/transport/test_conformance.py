"""The suite that every weight-sync engine passes, on this one."""

from tests.unit.rollcall_runtime.sync.conformance import *  # noqa: F403
from tests.unit.rollcall_runtime.sync.engine_cases import SHORT, Case, members_of

case, processes, trio = members_of(Case("example.my-transport", SHORT))
