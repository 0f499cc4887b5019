"""The conformance suite on Ray's collectives."""

from tests.unit.rollcall_runtime.sync.conformance import *  # noqa: F403
from tests.unit.rollcall_runtime.sync.engine_cases import SHORT, Case, members_of

case, processes, trio = members_of(Case("ray", SHORT))
