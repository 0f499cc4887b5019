"""The responses of a report can be searched, and no text of a model is anything but text."""

import base64
import json
import re
from hashlib import sha256
from typing import Any

import pytest

from rollcall_cli.html_report.page import render
from rollcall_cli.html_report.samples import SCRIPT
from tests.unit.rollcall_cli.example_record import record
from tests.unit.rollcall_protocol.sample_records import sample_record

DOCUMENT = """
const element = text => ({textContent: text, hidden: false, value: "", addEventListener() {}});
const parts = {search: element(""), found: element("")};
const details = ["Reward 1: two and two", "reward 0: three"].map(element);
const document = {
  getElementById: name => parts[name],
  querySelectorAll: () => details,
};
parts.search.addEventListener = (kind, then) => { parts.search.then = then; };
"""


def page(**changes: Any) -> str:
    return render(record(samples=[sample_record(**changes)]))


def test_a_response_is_shown_with_what_is_known_of_it() -> None:
    found = page()
    for text in (
        "step 3, prompt 17, response 1 of 4: reward 0.25",
        "&lt;s&gt;What is 2 + 2?",
        '<span class="below">It is 4&lt;/s&gt;</span>',
        "reward by part: format 1",
    ):
        assert text in found


def test_tokens_have_the_class_of_their_advantage() -> None:
    found = page(advantages=((0.5, 2), (0.0, 1)))
    assert '<span class="above">It is 4</span><span class="plain">&lt;/s&gt;</span>' in found


@pytest.mark.parametrize(
    "evil",
    ["<script>alert(1)</script>", '"><img src=x onerror=y>', "\u202e"],
    ids=["script", "attribute", "turned"],
)
def test_text_of_a_model_is_text(evil: str) -> None:
    found = page(tokens=(evil, "b", "c"), prompt_text=evil, ended=evil, parts={evil: 1.0})
    assert evil not in found
    assert found.count("<script>") == 1
    assert "<img" not in found


def test_the_page_runs_its_own_script_alone() -> None:
    found = page()
    (script,) = re.findall(r"<script>(.*?)</script>", found, re.DOTALL)
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', found)
    assert "default-src 'none'" in policy.replace("&#39;", "'")
    assert f"script-src 'sha256-{digest}'" in policy.replace("&#39;", "'")
    assert "src=" not in found.replace("default-src", "")


def test_a_report_without_responses_has_no_script() -> None:
    found = render(record())
    assert "<script" not in found
    assert "Responses" not in found


@pytest.mark.parametrize(
    ("typed", "hidden", "count"),
    [
        ("", [False, False], "2 of 2"),
        ("REWARD", [False, False], "2 of 2"),
        ("two reward", [False, True], "1 of 2"),
        ("four", [True, True], "0 of 2"),
    ],
)
def test_the_search_shows_responses_that_have_all_words(
    typed: str, hidden: list[bool], count: str
) -> None:
    quickjs = pytest.importorskip("quickjs")
    context = quickjs.Context()
    context.eval(DOCUMENT + SCRIPT)
    context.eval(f"parts.search.value = {json.dumps(typed)}; parts.search.then();")
    found = json.loads(context.eval("JSON.stringify([details.map(each => each.hidden)])"))
    assert found == [hidden]
    assert context.eval("parts.found.textContent") == count
