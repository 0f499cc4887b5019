"""The conformance suite on Mooncake over TCP."""

from tests.unit.rollcall_runtime.sync.conformance import *  # noqa: F403
from tests.unit.rollcall_runtime.sync.engine_cases import SHORT, Case, members_of

case, processes, trio = members_of(Case("mooncake", SHORT, selective=True, names_dead_sources=True))
