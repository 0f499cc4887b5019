"""The conformance suite for the tests of a plug-in, which imports all of this.

Its module defines the fixtures `case`, `processes` and `trio` (`engine_cases.members_of`). Nothing
here knows an engine: its `Case` says what may be expected of it. docs/plugins.md shows one.
"""

from tests.unit.rollcall_runtime.sync.test_conformance import *  # noqa: F403
from tests.unit.rollcall_runtime.sync.test_conformance_faults import *  # noqa: F403
from tests.unit.rollcall_runtime.sync.test_conformance_shards import *  # noqa: F403
