"""The page about troubleshooting has every condition, reason and event, and no other."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall_operator.api.conditions import EventReason, JobCondition, PoolCondition, Reason
from rollcall_protocol.wire.job_snapshot import MemberState

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
WRITTEN = (ROOT / "tests" / "golden" / "conditions.txt").read_text(encoding="utf-8")
SECTION = re.compile(r"^(#{2,3}) (.+)\n((?:(?!^#).*\n)*)", re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)`.*?\|(.*)\|(.*)\|$", re.MULTILINE)
CONDITION = re.compile(r"^(\w+) (\w+)=(\w+) (\w+)$", re.MULTILINE)
MOMENTARY = {("Running", False): {Reason.STARTING}}  # until the next reconcile; no scenario ends so
ENTRIES = ("It says", "Look at", "Do")
PODS = {
    JobCondition.TRAINER_READY,
    JobCondition.FRONT_READY,
    JobCondition.REFERENCE_READY,
    JobCondition.ROLLOUTS_READY,
}


def sections() -> Iterator[tuple[str, str, str]]:
    """Group, reason (empty for the group itself) and text."""
    group = ""
    for marks, title, text in SECTION.findall(PAGE):
        group = title if marks == "##" else group
        yield group, title if marks == "###" else "", text


def reasons(group: str | None = None) -> list[str]:
    return [reason for of, reason, _ in sections() if reason and group in {None, of}]


def table(after: str) -> dict[tuple[str, bool], set[str]]:
    """Of each condition, and whether it is True, the reasons that the page gives."""
    text = PAGE.partition(after)[2].partition("\n\n| condition")[2].partition("\n\n")[0]
    found = {}
    for kind, *cells in ROW.findall(text):
        for is_true, cell in zip((True, False), cells, strict=True):
            named = set(re.findall(r"\[(\w+)\]\(#\w+\)", cell))
            pods = set(reasons("Pods")) - {Reason.READY} if "Pods" in named else set()
            found[kind, is_true] = named - {"Pods"} | pods
    return found


def written() -> dict[tuple[str, str, bool], set[str]]:
    """What the operator writes in the golden scenarios: resource, condition, whether True; reasons.

    A test beside them finds a place in the planner that no scenario reaches.
    """
    found: dict[tuple[str, str, bool], set[str]] = {}
    for resource, kind, status, reason in CONDITION.findall(WRITTEN):
        found.setdefault((resource, kind, status == "True"), set()).add(reason)
    return found


def test_each_reason_has_one_section_and_no_other_has() -> None:
    assert Counter(reasons()) == Counter({*map(str, Reason), *map(str, EventReason)})


def test_each_reason_says_what_it_means_where_to_look_and_what_to_do() -> None:
    for _, reason, text in sections():
        if reason:
            for entry in ENTRIES:
                assert len(re.findall(rf"^- \*\*{entry}:\*\* \S+", text, re.MULTILINE)) == 1, reason


def test_groups_are_in_alphabetical_order() -> None:
    for group in {of for of, reason, _ in sections() if reason}:
        assert reasons(group) == sorted(reasons(group)), group


@pytest.mark.parametrize(
    ("resource", "after", "kinds"),
    [("RLJob", "Of an RLJob", JobCondition), ("RolloutPool", "Of a RolloutPool", PoolCondition)],
)
def test_the_tables_have_the_reasons_of_each_condition(
    resource: str, after: str, kinds: type[JobCondition | PoolCondition]
) -> None:
    given = table(after)
    assert {kind for kind, _ in given} == set(map(str, kinds))
    for (kind, is_true), named in given.items():
        found = written().get((resource, kind, is_true), set())
        assert found <= named, (kind, is_true)
        of_pods = kind in PODS or (resource, kind) == ("RolloutPool", PoolCondition.READY)
        # Not each problem of a pod has a scenario with each kind of pod.
        without_scenario = (
            set(reasons("Pods")) if of_pods else MOMENTARY.get((kind, is_true), set())
        )
        assert named - found <= without_scenario, (kind, is_true)


def test_the_states_of_a_rollout_that_its_gate_shows_are_there() -> None:
    text = PAGE.partition("## A rollout is not ready")[2].partition("\n## ")[0]
    states = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert set(states) == {"NotAMember", *map(str, MemberState)}
