"""Trainer and rollouts read the same of the adapter that is sent."""

import pytest

from rollcall_protocol.adapter_config import AdapterConfig, sent_adapter
from rollcall_protocol.settings_reader import SettingError


def test_an_adapter_is_sent_where_the_job_says_so() -> None:
    config = {"loraRank": 8, "loraAlpha": "12.5", "loraTargets": "q_proj, v_proj"}
    assert sent_adapter(config) is None, "it is merged"
    sent = sent_adapter({**config, "loraExport": "adapter", "of_another_engine": 1})
    assert sent == AdapterConfig(rank=8, alpha=12.5, targets=("q_proj", "v_proj"))


def test_settings_that_cannot_be_are_an_error() -> None:
    with pytest.raises(SettingError, match="loraRank must be at least 1"):
        sent_adapter({"loraExport": "adapter"})
