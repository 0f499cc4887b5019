"""The pages for users of other trainers are as the names in the code say, and their code runs."""

import re
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hack.docs import coming_from
from rollcall_local.other_names import OTHER_TRAINERS


def run(monkeypatch: pytest.MonkeyPatch, how: str) -> int:
    monkeypatch.setattr(sys, "argv", ["coming_from", how])
    return coming_from.main()


def test_each_trainer_has_its_table_on_a_page() -> None:
    assert {name for names in coming_from._TABLES.values() for name in names} == set(OTHER_TRAINERS)
    for page, names in coming_from._TABLES.items():
        text = (coming_from.PAGES / f"{page}.md").read_text()
        for name in names:
            assert coming_from.table(OTHER_TRAINERS[name]) in text


def test_a_page_that_was_forgotten_is_found_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--check") == 0
    for page in coming_from.PAGES.glob("*.md"):
        (tmp_path / page.name).write_text(page.read_text().replace("data.train_batch_size", "x"))
    monkeypatch.setattr(coming_from, "PAGES", tmp_path)
    assert run(monkeypatch, "--check") == 1
    assert capsys.readouterr().err.startswith("verl.md is out of date")
    assert run(monkeypatch, "--write") == 0
    assert run(monkeypatch, "--check") == 0


def test_a_page_without_the_marks_is_named() -> None:
    with pytest.raises(ValueError, match=r"trl\.md: has no line"):
        coming_from.page("trl", "# Coming from TRL\n")


class Pages:
    """The functions of the pages' blocks of Python, which import a module with the names given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch, self._file = monkeypatch, folder / "reward.py"

    def score(self, page: str, module: str, **names: Any) -> Any:
        """Of one page."""
        for part in filter(None, (module.rpartition(".")[0], module)):
            self._monkeypatch.setitem(sys.modules, part, ModuleType(part))
        vars(sys.modules[module]).update(names)
        text = (coming_from.PAGES / f"{page}.md").read_text()
        (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        self._file.write_text(block)
        return runpy.run_path(str(self._file))["score"]


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pages:
    return Pages(monkeypatch, tmp_path)


def test_a_reward_of_openrlhf_is_called_as_openrlhf_does(pages: Pages) -> None:
    def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
        answers = (q.removeprefix(p) for q, p in zip(queries, prompts, strict=True))
        return {"rewards": [float(a == n) for a, n in zip(answers, labels, strict=True)]}

    score = pages.score("openrlhf", "reward_func", reward_func=reward_func)
    row = {"label": "5"}
    assert score((), (), row=row, prompt_text="2 + 3?", response_text="5") == 1
    assert score((), (), row=row, prompt_text="2 + 3?", response_text="6") == 0
