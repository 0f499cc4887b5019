"""The recorder of SGLang's contract, on a package with the forms that SGLang's sources have."""

import textwrap
from pathlib import Path

import pytest

from hack import sglang_contract

FILES = {
    "_version.py": "__version__ = version = '1.2.3'",
    "records.py": '''
        Tokens = List[int]

        class Request(msgspec.Struct):
            """JSON object (unknown keys ignored)."""

            rid: str
            ids: Optional[Tokens] = None

            def to_json_value(self): ...

        class Entry(msgspec.Struct):
            """JSON positional array [logprob]."""

            logprob: float = 0
    ''',
    "srt/entrypoints/http_server.py": """
        @app.api_route("/generate", methods=["POST", "PUT"], response_class=R)
        async def generate(obj: Request, request: R):
            return {"error": 1}

        @app.post("/pause")
        @auth_level(AuthLevel.ADMIN_OPTIONAL)
        async def pause(obj: Annotated[Optional[PauseInput], Body()] = None):
            body = {"message": 1}
            body["status"] = 2

        @app.get("/other")
        async def other(): ...
    """,
    "srt/arg_groups/fields/model.py": """
        class Model:
            model_path: A[str, Arg(help="x", aliases=["--model"])]
            skip_all: A[bool, "x"] = False
    """,
    "srt/sampler.py": 'X = get("SOME_VARIABLE")',
    "srt/functions.py": "def pause(mode):\n    return mode",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.setattr(sglang_contract, "ROUTES", ("/generate", "/pause"))
    monkeypatch.setattr(sglang_contract, "RECORDS", {"records.py": ("Request", "Entry")})
    monkeypatch.setattr(sglang_contract, "FUNCTIONS", {"srt/functions.py": ("pause",)})
    monkeypatch.setattr(sglang_contract, "VARIABLES", {"srt/sampler.py": ("SOME_VARIABLE",)})
    return tmp_path


def test_routes_fields_arguments_and_variables_are_recorded(package: Path) -> None:
    found = sglang_contract.contract(package)
    assert found["release"] == "1.2.3"
    assert found["routes"] == {
        "/generate": {"methods": ["POST", "PUT"], "body": "Request", "answers": ["error"]},
        "/pause": {"methods": ["POST"], "body": "PauseInput", "answers": ["message", "status"]},
    }
    assert found["records"]["Request"] == {
        "fields": {
            "rid": {"type": "str", "required": True},
            "ids": {"type": "Optional[Tokens]", "required": False},
        },
        "array": False,
    }
    assert found["records"]["Entry"]["array"]
    assert found["aliases"] == {"Tokens": "List[int]"}
    flags = {"--config": True, "--model-path": True, "--model": True, "--skip-all": False}
    assert found["flags"] == flags
    assert found["variables"] == ["SOME_VARIABLE"]


def test_another_body_of_a_function_shows(package: Path) -> None:
    before = sglang_contract.contract(package)["functions"]
    (package / "srt/functions.py").write_text("def pause(mode):\n    return None")
    assert sglang_contract.contract(package)["functions"] != before


def test_a_release_without_a_route_or_a_variable_is_an_error(package: Path) -> None:
    (package / "srt/sampler.py").write_text("")
    with pytest.raises(KeyError, match="SOME_VARIABLE"):
        sglang_contract.contract(package)
