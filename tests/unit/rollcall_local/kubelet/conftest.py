"""Which tests run on a loop of their own.

Those with the mark `asyncio(loop_factories=["skips_waits"])` run on a `WaitSkippingLoop`.
"""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.unit.rollcall_operator.control.wait_skipping_loop import WaitSkippingLoop


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    mark = item.get_closest_marker("asyncio")
    if mark is not None and "loop_factories" in mark.kwargs:
        return {"skips_waits": WaitSkippingLoop}
    return {"real": asyncio.new_event_loop}
