"""Which responses were cut off at a limit of tokens."""

from dataclasses import replace
from typing import Any

import pytest

from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.job_config import EnvironmentConfig, JobConfig
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.messages import Sample
from rollcall_runtime.train.response_ends import ResponseEnds
from tests.unit.rollcall_runtime.jobs import job_config

EOS = 2


def sample(*tokens: int) -> Sample:
    return Sample(tokens, (-1.0,) * len(tokens), (0,) * len(tokens), 0.0)


def ends(context: int | None = None, **sampling: Any) -> ResponseEnds | None:
    job = job_config(algorithm={"sampling": SamplingConfig(**sampling)})
    return ResponseEnds.of(job, eos=frozenset({EOS}), context=context)


def cut_off(*tokens: int, context: int | None = None, **sampling: Any) -> bool:
    found = ends(context, **sampling)
    assert found is not None
    return found.share_cut_off([(4, sample(*tokens))]) == 1


def test_a_response_that_fills_the_limit_is_cut_off_unless_it_ends_by_itself() -> None:
    assert cut_off(5, 6, 7, max_tokens=3)
    assert not cut_off(5, 6, EOS, max_tokens=3)
    assert not cut_off(5, 6, 9, max_tokens=3, stop_token_ids=(9,))


def test_one_that_ends_before_the_limit_was_stopped_by_a_string() -> None:
    assert not cut_off(5, 6, max_tokens=3, stop=("\n",))


def test_one_that_fills_the_context_behind_its_prompt_is_cut_off() -> None:
    stop: dict[str, Any] = {"max_tokens": 3, "stop": ("\n",)}
    assert cut_off(5, 6, context=6, **stop)
    assert not cut_off(5, EOS, context=6, **stop)
    assert not cut_off(5, 6, context=7, **stop)


def test_without_a_limit_in_the_spec_whatever_does_not_end_by_itself_is_cut_off() -> None:
    assert cut_off(5, 6, 7)
    assert not cut_off(5, EOS)


def test_a_string_to_stop_at_without_a_known_limit_shows_nothing() -> None:
    assert ends(stop=("\n",)) is None


def test_limits_of_rows_are_not_known() -> None:
    assert ends(max_tokens=3, column="sampling") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": EnvironmentConfig(function="games:Chess")},
        {"data": DataConfig((DataSource("builtin:front"),))},
    ],
    ids=["environment", "agents"],
)
def test_environments_and_agents_end_responses_in_their_own_way(changes: dict[str, Any]) -> None:
    job: JobConfig = replace(job_config(), **changes)
    assert ResponseEnds.of(job, eos=frozenset({EOS}), context=None) is None


def test_the_share_is_of_samples() -> None:
    found = ends(max_tokens=2)
    assert found is not None
    samples = [sample(5, 6), sample(EOS), sample(5, EOS), sample(7, 7)]
    assert found.share_cut_off([(1, each) for each in samples]) == 0.5
