"""What a long command prints about its steps, on a terminal and elsewhere."""

from __future__ import annotations

import io
import re
import threading
import time
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from hack.cluster import progress
from hack.cluster.errors import ClusterError
from hack.cluster.progress import Step

if TYPE_CHECKING:
    from pathlib import Path

FETCH, BUILD = Step("fetching Go", 15), Step("building kubernetes", 520)


def console(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=120), file


def test_steps_are_numbered_with_the_time_that_they_usually_take() -> None:
    where, printed = console()
    with progress.plan((FETCH, BUILD), console=where), progress.step(BUILD):
        pass
    begun, done = printed.getvalue().splitlines()
    assert begun.endswith("step 2 of 2: building kubernetes (usually 8 min 40 s)")
    assert done.endswith("step 2 of 2: building kubernetes: done in 0 s")


def test_a_plan_counts_a_step_once_though_two_parts_name_it() -> None:
    where, printed = console()
    with progress.plan((FETCH, BUILD, FETCH), console=where), progress.step(BUILD):
        pass
    assert "step 2 of 2" in printed.getvalue()


def test_a_step_is_expected_to_take_as_much_longer_as_the_steps_before_it() -> None:
    where, printed = console()
    quick = Step("fetching Go", 0.05)
    with progress.plan((quick, BUILD), console=where):
        with progress.step(quick):
            time.sleep(0.15)
        with progress.step(BUILD):
            pass
    begun = printed.getvalue().splitlines()[2]
    assert re.search(r"kubernetes \(about \d+ min on this machine, usually 8 min 40 s\)$", begun)


def test_a_step_that_failed_says_nothing_of_the_machine() -> None:
    where, printed = console()
    quick = Step("fetching Go", 1e-9)
    with progress.plan((quick, BUILD), console=where):
        with pytest.raises(ClusterError), progress.step(quick):
            raise ClusterError("no Go")
        with progress.step(BUILD):
            pass
    assert "building kubernetes (usually 8 min 40 s)" in printed.getvalue()


def test_away_from_a_terminal_a_line_says_regularly_what_runs_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.3)
    log = tmp_path / "log"
    log.write_text("go: downloading k8s.io/api\nk8s.io/kubernetes/pkg/kubelet\n\n")
    where, printed = console()
    with progress.plan((FETCH, BUILD), console=where), progress.step(BUILD, log=log):
        deadline = time.monotonic() + 10
        while "now:" not in printed.getvalue():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    line = printed.getvalue().splitlines()[1]
    assert "step 2 of 2: building kubernetes: " in line
    assert line.endswith(" of usually 8 min 40 s; now: k8s.io/kubernetes/pkg/kubelet")


def test_on_a_terminal_steps_that_run_side_by_side_are_shown_live() -> None:
    where, printed = console(terminal=True)
    shown = threading.Event()

    def fetch() -> None:
        with progress.step(FETCH):
            shown.wait(10)

    with progress.plan((FETCH, BUILD), console=where):
        thread = threading.Thread(target=fetch)
        thread.start()
        with progress.step(BUILD):
            deadline = time.monotonic() + 10
            while printed.getvalue().count("of usually") < 2:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        shown.set()
        thread.join(timeout=10)
    assert "of usually 15 s" in printed.getvalue()
    assert "of usually 8 min 40 s" in printed.getvalue()


def test_an_error_names_the_innermost_step_that_failed() -> None:
    where, _ = console()
    with (
        pytest.raises(ClusterError) as failure,
        progress.plan((FETCH, BUILD), console=where),
        progress.step(BUILD),
        progress.step(FETCH),
    ):
        raise ClusterError("no Go")
    assert failure.value.step == "fetching Go"


def test_a_step_without_a_plan_shows_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.step(FETCH):
        progress.say("a line of its own")
    printed = capsys.readouterr().err
    assert "fetching Go (usually 15 s)" in printed
    assert "a line of its own" in printed
    assert "step 1" not in printed
