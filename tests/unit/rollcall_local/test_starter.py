"""`rollcall init` writes a folder that can be run, and overwrites nothing."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollcall_local.init_command import main
from rollcall_local.manifests import read
from rollcall_local.other_names import OTHER_TRAINERS
from rollcall_local.starter import StarterError, lines_of_fields, starter_files, write_files

VARIANTS = [None, *OTHER_TRAINERS]


def made(folder: Path, variant: str | None) -> Path:
    words = ["--from", variant] if variant else []
    assert main([str(folder), *words]) == 0
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_written_is_a_right_manifest_of_that_name(
    tmp_path: Path, variant: str | None
) -> None:
    folder = made(tmp_path / "my-words", variant)
    config, job = read([], [folder], images={}, user=1000).objects
    assert config["metadata"]["name"] == job["metadata"]["name"] == "my-words"
    volumes = job["spec"]["trainer"]["template"]["spec"]["volumes"]
    assert volumes[0]["configMap"]["name"] == "my-words"
    assert ("supervised" in job["spec"]) == (variant == "sft")


@pytest.mark.parametrize(("variant", "module"), [(None, "test_sorting"), ("sft", "test_answers")])
def test_the_tests_that_are_written_pass(tmp_path: Path, variant: str | None, module: str) -> None:
    folder = made(tmp_path / "my-words", variant)
    program = f"""
import {module}
tests = [value for name, value in vars({module}).items() if name.startswith("test_")]
for test in tests:
    test()
print(len(tests))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) >= 2


@pytest.mark.parametrize("variant", OTHER_TRAINERS)
def test_comments_alone_name_the_settings_of_another_trainer(variant: str) -> None:
    other = OTHER_TRAINERS[variant]
    text = starter_files("here", other)["rljob.yaml"]
    plain = starter_files("here", None)["rljob.yaml"]
    if variant != "sft":
        assert yaml.safe_load(text) == yaml.safe_load(plain)
    lines = text.split("\n")
    for path, number in lines_of_fields(text).items():
        if path in other.names:
            assert lines[number - 1].strip() == f"# {other.title}: {other.names[path]}"
    there = other.names.keys() & lines_of_fields(text).keys()
    assert text.count(f"# {other.title}: ") == len(there) >= 6
    assert max(map(len, lines)) <= 120


def test_fields_are_found_by_their_lines() -> None:
    text = "a:\n  b: 1\nc:\n- d: 2\n  e: {f: 3}\n- d: 4\n"
    expected: dict[str, Any] = {"a": 0, "a.b": 1, "c": 2, "c.d": 3, "c.e": 4, "c.e.f": 4}
    assert lines_of_fields(text) == expected


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sorting.py").write_text("mine")
    assert main([str(tmp_path), "--name", "words"]) == 1
    assert f"{tmp_path} has sorting.py already" in capsys.readouterr().err
    assert (tmp_path / "sorting.py").read_text() == "mine"
    assert not (tmp_path / "rljob.yaml").exists()


def test_a_link_that_leads_nowhere_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "rljob.yaml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        write_files(tmp_path, {"rljob.yaml": "x"})
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["My Job", "1st", "a" * 80, "a_b", ""])
def test_a_name_that_no_job_can_have_is_refused(name: str) -> None:
    with pytest.raises(StarterError, match="give --name"):
        starter_files(name, None)


def test_what_comes_next_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path / "words", None)
    assert f"`rollcall check -k {tmp_path}/words`" in capsys.readouterr().out
