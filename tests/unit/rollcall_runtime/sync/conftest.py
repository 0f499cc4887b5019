"""Processes that the tests of gloo share."""

from tests.unit.rollcall_runtime.sync.engine_cases import SHORT, Case, members_of

case, processes, trio = members_of(Case("gloo", SHORT, quick=True), scope="package")
