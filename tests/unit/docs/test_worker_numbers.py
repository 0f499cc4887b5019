"""Numbers that the pages promise about the workers are those of the code."""

from pathlib import Path

import pytest

from rollcall_plugins.environments.tools import environment as tool_environment
from rollcall_plugins.front.openai import admission, api_keys, recording, server, turn_store
from rollcall_plugins.rewards.code import reward as code
from rollcall_plugins.rewards.code import row_tests
from rollcall_plugins.rewards.http import reward as http_service
from rollcall_plugins.rewards.math_verify import reward as mathematics
from rollcall_protocol.front_config import FrontConfig
from rollcall_protocol.job_config import RewardErrorConfig
from rollcall_protocol.membership import session_losses, stretched_bounds
from rollcall_protocol.prompts import kept_turns, reward_error_share, trajectory_groups
from rollcall_protocol.wire import trajectories
from rollcall_runtime.coordinator import reward_failures, trajectory_intake
from rollcall_runtime.data import checked_column, row_mix, travelling_columns
from rollcall_runtime.generation import continued_generation, rollout_client, routing
from rollcall_runtime.membership import coordinator_connection
from rollcall_runtime.rollout import completion_sender, generation_endpoint
from rollcall_runtime.tasks.builtin_rewards import patterns
from rollcall_runtime.tasks.environments import environment_messages
from rollcall_runtime.train import health, learning_judge
from rollcall_runtime.train.reference_pods import exchange
from rollcall_runtime.train.roles import remote_reference
from rollcall_runtime.worker import bounded_listener

PAGES = Path(__file__).parents[3] / "docs"
FRONT, REWARD = FrontConfig(), RewardErrorConfig()
HTTP, CODE = http_service.HttpSettings(url="http://a"), code.CodeSettings()
MINUTE, HOUR = 60.0, 3600.0
WORDS: dict[float, str] = {3: "three", 5: "five", 6: "six", 12: "twelve"}

PROMISES = {
    "front.md": [
        f"at least {api_keys.SHORTEST} characters",
        (
            f"more than {routing.RATIO} times as many requests as the least busy one, and "
            f"{routing.SLACK} more"
        ),
        f"says nothing for {rollout_client.SILENT_SECONDS:.0f} s",
        f"503 after {continued_generation.MOST_MOVES} rollouts in a row that gave no token",
        (
            f"`maxRunning` ({FRONT.most_running}) requests at once and `maxWaiting` "
            f"({FRONT.most_waiting}) more"
        ),
        f"`requestSeconds` ({FRONT.request_seconds:.0f}) for a request",
        (
            f"{server._TOKEN_BYTES} bytes of a body for each of the model's positions, "
            f"{server._REQUEST_BYTES >> 20} MiB beside them, {server.BODY_SECONDS:.0f} s for it"
        ),
        f"{generation_endpoint.AT_ONCE} requests of fronts at one rollout",
        f"`maxTrajectories` ({FRONT.most_trajectories:,}) without a reward",
        f"`maxTokens` ({FRONT.most_tokens:,}, some 100 bytes of memory each)",
        f"`trajectorySeconds` ({FRONT.trajectory_seconds:.0f}) after its last answer",
        f"it would be more than {trajectories.MOST_PARTS} samples",
        f"in all {kept_turns.MOST_KEPT:,} of {kept_turns.MOST_BYTES >> 30} GiB in the trainer's",
        f"While the coordinator does not answer for {turn_store.REACH_SECONDS:.0f} s",
        f"does not answer for {recording.DELIVER_SECONDS:.0f} s",
        f"The names of the last {trajectory_groups.MOST_KNOWN:,} in whole groups",
        f"beyond {trajectory_groups.MOST_TOKENS // 10**6} million tokens in all",
    ],
    "algorithms.md": [
        f"requests of at most {exchange.REQUEST_POSITIONS} positions",
        {5: "five a rank at most"}[health.KEPT_BATCHES],
        f"judges the last {learning_judge.WINDOW} steps together",
        f"at least {learning_judge.CUT_OFF_SHARE * 100:.0f} % of the responses were cut off",
        f"by more than {({2.0: 'two'})[learning_judge.BEYOND_CHANCE]} standard errors",
        f"Mean rewards of {1 - learning_judge.NEAR} and more",
        f"at most {learning_judge.NEAR * 100:.0f} % below it",
        (
            f"is at least {learning_judge.MISMATCH_FLOOR} nats a token, and "
            f"{learning_judge.GROWN:.0f} times the median of the job's first"
        ),
    ],
    "environments.md": [
        f"up to {tool_environment.MAX_CALLS} times in a turn",
        f"up to {tool_environment.MAX_RESULT:,} characters of it",
        f"up to {environment_messages.AT_ONCE} at once",
    ],
    "data.md": [
        f"as JSON of at most {travelling_columns.MAX_ROW_BYTES >> 10} KiB",
        {16: "The sixteen longest rows are tokenized"}[checked_column._LONGEST],
        {1000: "More than a thousand rows left out one after the other"}[row_mix.MAX_DROPPED],
    ],
    "how-to/own-task.md": [
        f"`spec.reward.timeoutSeconds` ({REWARD.timeout:.0f})",
        (
            f"`spec.reward.maxErrorShare` ({REWARD.max_share}) of the last "
            f"{reward_error_share.WINDOW} samples"
        ),
        f"least {reward_error_share.LEAST} must have failed",
        f"`attempts` ({HTTP.attempts}) of `seconds` ({HTTP.seconds:.0f}) each",
        f"`seconds` ({CODE.seconds}) and `memoryMebibytes` ({CODE.memory_mebibytes})",
        f"a row has up to {row_tests.MOST} of one kind",
        f"backtracks for {patterns.SECONDS:.0f} s of processor time",
        f"ends after {mathematics.SECONDS:.0f} s of processor time",
    ],
    "protocol.md": [
        f"at most {WORDS[stretched_bounds.STRETCH_LIMIT]} times their settings",
        (
            f"{WORDS[stretched_bounds.HEADROOM]} times the longest of the last "
            f"{WORDS[stretched_bounds.REMEMBERED]} waits"
        ),
        f"failed after more than {stretched_bounds.AT_ONCE:.0f} s",
        f"| {stretched_bounds.DELAY_MEMORY:.0f} s |",
        f"{WORDS[bounded_listener.TURNS * stretched_bounds.DELAYS_ADDED]} times the delay",
        f"opening a stream to the coordinator ({coordinator_connection.OPEN_SECONDS:.0f} s",
        f"delivering a completion ({completion_sender.ATTEMPT_SECONDS:.0f} s)",
        f"When {WORDS[session_losses.MANY]} in a row have ended so",
        f"the last at least {session_losses.LONG:.0f} s after the first",
    ],
    "troubleshooting.md": [
        f"to at most {WORDS[stretched_bounds.STRETCH_LIMIT]} times its value",
        (
            f"True again after {reward_failures.QUIET} samples without such an error, and "
            f"{reward_failures.QUIET_SECONDS / 60:.0f} minutes"
        ),
    ],
}


@pytest.mark.parametrize(
    ("page", "said"), [(page, s) for page, all_ in PROMISES.items() for s in all_]
)
def test_a_page_says_the_number_that_counts(page: str, said: str) -> None:
    assert said in " ".join((PAGES / page).read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("page", "said", "found", "seconds"),
    [
        ("front.md", "more, for a minute | 429", admission.WAIT_SECONDS, MINUTE),
        ("front.md", "not whole after an hour", trajectory_intake.OPEN_SECONDS, HOUR),
        ("algorithms.md", "After an hour without an answer", remote_reference.WAIT_SECONDS, HOUR),
    ],
)
def test_a_page_says_the_time_that_counts(
    page: str, said: str, found: float, seconds: float
) -> None:
    assert said in " ".join((PAGES / page).read_text(encoding="utf-8").split())
    assert found == seconds


def test_a_rollout_says_something_well_before_it_counts_as_silent() -> None:
    assert 3 * generation_endpoint.HEARTBEAT_SECONDS <= rollout_client.SILENT_SECONDS
