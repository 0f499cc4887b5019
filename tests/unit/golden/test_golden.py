"""The golden files hold everything that users read, as the code writes it now."""

import re

import pytest

from rollcall_operator.api.conditions import EventReason, Reason
from tests.golden import messages, metrics
from tests.golden.messages import Spoken
from tests.golden.rendered_outputs import FOLDER, rendered

pytestmark = pytest.mark.xdist_group("golden")  # one process plays the scenarios for all

REWRITE = "run `.venv/bin/python -m tests.golden`, and review the difference as documentation"


@pytest.fixture(scope="module")
def spoken() -> Spoken:
    return messages.collect()


def test_the_files_are_as_rendered() -> None:
    wanted = rendered()
    for name, text in wanted.items():
        path = FOLDER / name
        assert path.exists(), f"{name} is missing; {REWRITE}"
        assert path.read_text(encoding="utf-8") == text, f"{name} is out of date; {REWRITE}"
    assert {path.name for path in FOLDER.glob("*.txt")} == set(wanted)


def test_every_reason_of_a_condition_has_an_entry(spoken: Spoken) -> None:
    assert set(Reason) <= {message.reason for message in spoken.conditions}


def test_every_reason_of_an_event_has_an_entry(spoken: Spoken) -> None:
    assert set(EventReason) <= {message.reason for message in spoken.events}


@pytest.mark.slow
@pytest.mark.timeout(400)  # it traces each line of all scenarios
def test_every_place_that_makes_a_message_is_reached_by_a_scenario() -> None:
    assert messages.unreached() == []


def test_every_message_is_a_sentence_for_people(spoken: Spoken) -> None:
    for message in (*spoken.conditions, *spoken.events):
        assert len(message.text) > 10, message
        assert "Traceback" not in message.text, message


def test_a_metric_has_one_type_wherever_it_comes_from() -> None:
    kinds: dict[str, set[str]] = {}
    for name, kind in re.findall(r"^(rollcall_\w+)\{.*<(\w+)>$", metrics.render(), re.MULTILINE):
        kinds.setdefault(name, set()).add(kind)
    assert len(kinds) > 40
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}


def test_every_metric_in_the_code_has_an_entry() -> None:
    text = metrics.render()
    missing = [
        name
        for name in metrics.names_in_code()
        if f"\n{name}{{" not in text and f"\n{name}_total{{" not in text
    ]
    assert missing == []
