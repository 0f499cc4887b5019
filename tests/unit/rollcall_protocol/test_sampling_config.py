"""Settings of sampling are within bounds, those that a row brings along too."""

import json
from typing import Any

import pytest

from rollcall_protocol.sampling_config import SamplingConfig, sampling_of
from rollcall_protocol.wire.json_codec import decode, encode

JOB = SamplingConfig(max_tokens=100, temperature=0.7, stop=("\n",), column="own")


def test_settings_travel_as_json() -> None:
    sent = SamplingConfig(8, 0.5, 0.9, 40, ("\n",), (2, 3), "own")
    assert decode(SamplingConfig, json.loads(json.dumps(encode(sent)))) == sent


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": -1}, "maxTokens must be from 1"),
        ({"max_tokens": 2**20 + 1}, "maxTokens must be from 1"),
        ({"temperature": 0.0}, "temperature must be from 0.01 to 10"),
        ({"temperature": 1e-45}, "temperature must be from 0.01 to 10"),
        ({"temperature": float("nan")}, "temperature must be from 0.01 to 10"),
        ({"temperature": 10.5}, "temperature must be from 0.01 to 10"),
        ({"top_p": 0.0}, "topP must be from 0.000001 to 1"),
        ({"top_p": 1e-46}, "topP must be from 0.000001 to 1"),
        ({"top_p": 1.1}, "topP must be from 0.000001 to 1"),
        ({"stop": ("a\ud800",)}, "half of a surrogate pair"),
        ({"top_k": -1}, "topK must be from 0"),
        ({"stop": ("a",) * 17}, "stop must have at most 16 strings"),
        ({"stop": ("",)}, "each string of stop must have 1 to 64 characters"),
        ({"stop": ("a" * 65,)}, "each string of stop must have 1 to 64 characters"),
        ({"stop_token_ids": (1,) * 65}, "stopTokenIds must have at most 64 numbers"),
        ({"stop_token_ids": (-1,)}, "each number of stopTokenIds must be from 0"),
    ],
)
def test_a_setting_out_of_its_range_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingConfig(**changes)


def test_a_row_changes_the_length_and_the_stops() -> None:
    found = sampling_of(JOB, {"own": {"maxTokens": 5, "stop": ["."]}})
    assert (found.max_tokens, found.stop, found.temperature) == (5, (".",), 0.7)
    assert sampling_of(JOB, {"own": {"maxTokens": None, "stop": []}}).stop == ()


@pytest.mark.parametrize("row", [{}, {"own": None}, {"own": {}}, {"other": {"maxTokens": 5}}])
def test_a_row_without_settings_changes_nothing(row: dict[str, Any]) -> None:
    assert sampling_of(JOB, row) == JOB


def test_a_job_that_names_no_column_reads_none() -> None:
    assert sampling_of(SamplingConfig(), {"": {"maxTokens": 5}}) == SamplingConfig()


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (5, "holds 5; wants an object"),
        ({"temperature": 2}, "'temperature' cannot be set for a row; maxTokens and stop can"),
        ({"maxTokens": 0}, "maxTokens must be from 1 to 1048576, not 0"),
        ({"maxTokens": True}, "maxTokens must be from 1 to 1048576, not True"),
        ({"maxTokens": 2**21}, "maxTokens must be from 1"),
        ({"stop": "\n"}, "stop must be a list of strings"),
        ({"stop": [1]}, "stop must be a list of strings"),
        ({"stop": [""]}, "each string of stop must have 1 to 64 characters"),
    ],
)
def test_bad_settings_of_a_row_are_refused(own: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sampling_of(JOB, {"own": own})
