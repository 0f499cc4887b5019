"""No code that a model or a data set brings is run: who opens one says so, and is not asked."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("workloads", "operator", "hack")


def calls_that_may_run_code(source: str) -> Iterator[int]:
    """Lines of calls that open a model by the name of a class in it, and do not refuse its code."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr not in {"from_pretrained", "from_config", "pipeline", "get_tokenizer"}:
            continue
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if given.get("trust_remote_code") != "False":
            yield node.lineno


def test_every_call_that_opens_a_model_refuses_its_code() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in calls_that_may_run_code(path.read_text())
    ]
    assert found == []


def test_such_calls_are_found() -> None:
    source = """
AutoTokenizer.from_pretrained(folder)
AutoModel.from_config(config, trust_remote_code=trusted)
AutoProcessor.from_pretrained(folder, trust_remote_code=False)
"""
    assert list(calls_that_may_run_code(source)) == [2, 3]
