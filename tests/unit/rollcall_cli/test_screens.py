"""What people see in a terminal."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from rollcall_cli.screens import ago, epochs_screen, pools_screen, print_wide, status_screen

NOW = 1_800_000_060.0  # 2027-01-15T08:01:00Z
POOL = {"name": "reverse-cpu", "replicas": 2, "ready": 1, "inSync": 1}
SUMMARY: dict[str, Any] = {
    "namespace": "team",
    "name": "reverse",
    "phase": "Running",
    "startTime": "2027-01-15T07:50:00Z",
    "step": 9,
    "maxSteps": 10,
    "weightVersion": 9,
    "rolloutReward": "0.9",
    "trainer": {"ready": 1, "replicas": 1, "totalRestarts": 2},
    "problems": [
        {"type": "WeightsInSync", "reason": "CatchingUp", "message": "1 of 2 rollouts [red]serve"}
    ],
    "pools": [POOL],
    "rollouts": [
        {"name": "reverse-cpu-a", "pool": "reverse-cpu", "ready": True, "inSync": True},
        {
            "name": "reverse-cpu-b",
            "pool": "reverse-cpu",
            "ready": False,
            "inSync": False,
            "reason": "CatchingUp",
            "message": "the rollout gets its first weights",
        },
    ],
    "epochs": [
        {
            "epoch": number,
            "cause": "MembersJoined",
            "members": 3,
            "message": f"joined: rollout-{number}",
            "time": "2027-01-15T08:00:35.500000Z",
        }
        for number in range(1, 9)
    ],
    "sessions": [
        {
            "group": "default",
            "session": "8.1.1",
            "cause": "NewRoster",
            "seconds": "0.21",
            "members": 3,
            "time": "2027-01-15T08:00:36Z",
        }
    ],
}


def text_of(screen: object) -> str:
    file = StringIO()
    Console(file=file, width=140, highlight=False).print(screen)
    return file.getvalue()


def test_the_status_fits_on_one_screen_and_says_who_is_behind_and_why() -> None:
    text = text_of(status_screen(SUMMARY, now=NOW))
    assert len(text.splitlines()) <= 24
    assert text.startswith("team/reverse: Running, step 9 of 10, weight version 9, reward of the")
    assert "started 11 min ago" in text
    assert "1 of 2 rollouts [red]serve" in text, "what the cluster says is no markup"
    assert "Trainer pods ready: 1 of 1, restarts: 2." in text
    assert "Rollouts that serve the current weights: 1 of 2." in text
    assert "reverse-cpu-b" in text
    assert "the rollout gets its first weights" in text
    assert "reverse-cpu-a" not in text
    assert "joined: rollout-8" in text
    assert "joined: rollout-3" not in text


def test_of_many_rollouts_that_are_behind_some_are_named_and_the_others_counted() -> None:
    behind = [SUMMARY["rollouts"][1] | {"name": f"reverse-cpu-{n}"} for n in range(20)]
    text = text_of(status_screen(SUMMARY | {"rollouts": behind}, now=NOW))
    assert len(text.splitlines()) <= 32
    assert "reverse-cpu-7" in text
    assert "reverse-cpu-8" not in text
    assert "and 12 more; rollcall pools reverse lists all" in text


def test_the_status_says_why_training_waits_and_how_old_it_is() -> None:
    summary = SUMMARY | {
        "paused": "no rollout serves",
        "warning": "the disk is full",
        "staleSince": "2027-01-15T08:00:00Z",
    }
    text = text_of(status_screen(summary, now=NOW))
    assert "Training waits: no rollout serves" in text
    assert "Warning: the disk is full" in text
    assert "The coordinator last sent something 60 s ago" in text


@pytest.mark.parametrize(
    ("reason", "words"),
    [("RewardsAlike", "stands still (RewardsAlike)"), ("Converged", "converged")],
)
def test_the_status_says_in_a_word_whether_training_gets_anywhere(reason: str, words: str) -> None:
    first = text_of(status_screen(SUMMARY | {"learning": reason}, now=NOW)).replace("\n", " ")
    assert f"newest samples 0.9, {words}, started" in first


def test_the_status_counts_steps_that_changed_nothing() -> None:
    text = text_of(status_screen(SUMMARY | {"stepsAlike": 10}, now=NOW)).replace("\n", " ")
    assert "all rewards of a prompt alike in the last 10 steps" in text


def test_a_job_without_a_status_has_a_screen() -> None:
    text = text_of(status_screen({"namespace": "team", "name": "new", "problems": []}, now=NOW))
    assert text.startswith("team/new: Pending\n")


def test_epochs_and_sessions_with_their_causes() -> None:
    text = text_of(epochs_screen(SUMMARY, now=NOW))
    assert all(f"joined: rollout-{number}" in text for number in range(1, 9))
    assert "8.1.1" in text
    assert "NewRoster" in text
    assert text_of(epochs_screen({}, now=NOW)) == "The job has had no epoch yet.\n"


def test_pools_with_each_of_their_rollouts() -> None:
    text = text_of(pools_screen(SUMMARY, now=NOW))
    assert "reverse-cpu-a" in text
    assert "reverse-cpu-b" in text
    assert text_of(pools_screen({}, now=NOW)) == "No RolloutPool serves the job.\n"


@pytest.mark.parametrize(
    ("time", "words"),
    [
        ("2027-01-15T08:01:30Z", "0 s ago"),
        ("2027-01-15T08:00:00Z", "60 s ago"),
        ("2027-01-15T07:58:00Z", "3 min ago"),
        ("2027-01-15T05:01:00Z", "3 h ago"),
        ("2027-01-12T08:01:00Z", "3 d ago"),
    ],
)
def test_times_are_ages(time: str, words: str) -> None:
    assert ago(time, NOW) == words


def test_steps_that_only_the_trainer_counts_are_shown_alone() -> None:
    text = text_of(status_screen(SUMMARY | {"maxSteps": 0}, now=NOW))
    assert text.startswith("team/reverse: Running, step 9, weight version 9")


def test_names_of_pods_are_whole_on_a_narrow_terminal() -> None:
    name = "a-job-with-a-long-name-and-a-pool-0123456789-abcde"
    rollout = SUMMARY["rollouts"][1] | {
        "name": name,
        "node": "gpu-node-17.example",
        "message": "x " * 90,
    }
    file = StringIO()
    screen = pools_screen(SUMMARY | {"rollouts": [rollout]}, now=NOW)
    print_wide(Console(file=file, width=60, highlight=False), screen)
    assert name in file.getvalue()
    assert "gpu-node-17.example" in file.getvalue()
