"""How trials become figures."""

import os
from pathlib import Path

import pytest
import yaml

from hack.bench.local_jobs.alternating_trainer import BLOCK, ratios, records
from hack.bench.local_jobs.local_run import manifests
from hack.bench.local_jobs.measurements import Trial, figures
from hack.docs.stored_runs import RUNS, Figure, at, read
from rollcall_local.manifests import read as read_manifests


def round_of(*, imports: float, start: float) -> dict[str, list[Trial]]:
    return {
        "imports_at_start": [{"seconds": imports, "cpu_seconds": 2.0}],
        "start_to_first_step": [{"seconds": start, "cpu_seconds": 9.0}],
        "steps": [{"a_minute": 300.0, "cpu_seconds_each": 0.1}],
        "status": [{"seconds": s, "cpu_seconds": 0.4} for s in (0.5, 0.7)],
        "imports_beside": [{"seconds": 4.0, "cpu_seconds": 3.0}],
        "scale_up": [{"seconds": 5.0, "starts_apart": 0.1, "cpu_seconds": 4.0}],
        "kill_of_a_rollout": [{"seconds": s, "cpu_seconds": 0.1} for s in (0.1, 0.3, 0.2)],
        "kill_of_the_trainer": [{"seconds": 3.0, "cpu_seconds": 2.0}],
        "check": [{"seconds": 0.4, "cpu_seconds": 0.3}],
        "recording": [{"blocks": 90.0, "ratio": 0.99}],
    }


ROUNDS = [round_of(imports=2.0, start=6.0), round_of(imports=8.0, start=8.0)]


def test_a_figure_is_the_median_of_all_rounds_with_its_extremes() -> None:
    found = figures(ROUNDS)
    assert found["start_to_first_step"]["seconds"] == {"median": 7, "min": 6, "max": 8}
    assert found["kill_of_a_rollout"]["seconds"] == {"median": 0.2, "min": 0.1, "max": 0.3}


def test_a_ratio_is_to_the_imports_of_the_same_round() -> None:
    found = figures(ROUNDS)
    assert found["start_to_first_step"]["ratio"] == {"median": 2, "min": 1, "max": 3}
    assert found["scale_up"]["ratio"]["median"] == 1.25


def test_what_recording_costs_is_against_the_blocks_of_steps_around_it() -> None:
    # A step of 2 s, and of 3 s where responses are recorded; the machine becomes slower meanwhile.
    ended, now = {}, 100.0
    for step in range(20, 20 + 10 * BLOCK):
        ended[step] = now = now + (3.0 if records(step) else 2.0) + step / 1000
    found = ratios(ended)
    assert len(found) == 3
    assert found == pytest.approx([2 / 3] * 3, rel=0.02)


@pytest.mark.parametrize("figure", read(RUNS / "local-jobs.json").figures, ids=lambda f: f.name)
def test_each_figure_of_the_page_is_measured(figure: Figure) -> None:
    assert all(at(figures(ROUNDS), path) is not None for path in figure.paths)


def test_the_measured_job_can_be_run_on_one_machine(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump_all(manifests({})))
    found = read_manifests([file], [], images={}, user=os.getuid())
    assert [job["spec"]["algorithm"]["maxSteps"] for job in found.jobs] == [1_000_000]
