"""The failure policy: which exits end a job, and which are only counted."""

from dataclasses import replace

import pytest

from rollcall_operator.api.rljob import FailurePolicy
from rollcall_operator.plan import mounted_code
from rollcall_operator.plan.failure import TrainerRestarts, count_restarts
from rollcall_operator.plan.model import PodFacts
from rollcall_protocol.wire.job_snapshot import TrainingResult
from tests.unit.rollcall_operator.plan.simulator import JobSimulator


def trainer(restarts: int, exit_code: int | None = 1, name: str = "t-0") -> PodFacts:
    return PodFacts(name=name, uid=name, role="trainer", restarts=restarts, exit_code=exit_code)


def policy(**fields: object) -> FailurePolicy:
    return FailurePolicy.model_validate(fields)


IGNORE_7 = {"rules": [{"exitCodes": [7], "action": "Ignore"}]}
IGNORE_7_FIRST = {"rules": [*IGNORE_7["rules"], {"exitCodes": [7, 8], "action": "Fail"}]}


@pytest.mark.parametrize(
    ("before", "pods", "fields", "counted", "total"),
    [
        pytest.param((0, 0, 0), [trainer(0, None)], {}, 0, 0, id="nothing happened"),
        pytest.param((0, 0, 0), [trainer(1)], {}, 1, 1, id="one restart"),
        pytest.param((1, 1, 1), [trainer(1)], {}, 1, 1, id="seen already"),
        pytest.param((1, 1, 1), [trainer(4)], {}, 4, 4, id="several at once"),
        pytest.param((2, 2, 2), [trainer(0, None)], {}, 2, 2, id="the pod was made again"),
        pytest.param((2, 2, 0), [trainer(1)], {}, 3, 3, id="and restarts again"),
        pytest.param(
            (0, 0, 0),
            [trainer(1), trainer(1, name="t-1")],
            {},
            1,
            1,
            id="a gang restarts together",
        ),
        pytest.param(
            (0, 0, 0),
            [trainer(1), trainer(3, name="t-1")],
            {},
            3,
            3,
            id="the rank that restarted most",
        ),
        pytest.param((0, 0, 0), [trainer(1, 7)], IGNORE_7, 0, 1, id="a rule says Ignore"),
        pytest.param((0, 0, 0), [trainer(1, 8)], IGNORE_7, 1, 1, id="the rule is about others"),
        pytest.param((0, 0, 0), [trainer(1, 7)], IGNORE_7_FIRST, 0, 1, id="the first rule counts"),
        pytest.param((0, 0, 0), [trainer(1, 65)], {}, 0, 1, id="fenced by its successor"),
    ],
)
def test_restarts_are_counted_once(
    before: tuple[int, int, int],
    pods: list[PodFacts],
    fields: dict[str, object],
    counted: int,
    total: int,
) -> None:
    old = TrainerRestarts(counted=before[0], total=before[1], of_pod=before[2], last=90.0)
    new = count_restarts(old, pods, policy(**fields), now=100.0)
    assert (new.counted, new.total) == (counted, total)
    assert new.last == (100.0 if total > before[1] else 90.0), "also of one that is not counted"


@pytest.mark.parametrize(("quiet", "counted"), [(599, 4), (600, 1)])
def test_counting_begins_again_after_the_stability_window(quiet: float, counted: int) -> None:
    old = TrainerRestarts(counted=3, total=3, of_pod=3, last=1000.0)
    new = count_restarts(old, [trainer(4)], policy(), now=1000.0 + quiet)
    assert (new.counted, new.total) == (counted, 4)


def test_a_restart_that_the_kubelet_still_waits_for_is_counted() -> None:
    waits = replace(trainer(1), waiting_reason="CrashLoopBackOff")
    new = count_restarts(TrainerRestarts(counted=1, total=1, of_pod=1), [waits], policy(), now=9.0)
    assert (new.counted, new.total) == (2, 2)
    for pod in (waits, trainer(2), trainer(0, None)):  # again, after it, and as a new pod
        assert count_restarts(new, [pod], policy(), now=9.0).total == 2


@pytest.mark.parametrize(("step", "progressed"), [(7, False), (8, True)])
def test_progress_is_a_step_beyond_the_one_of_the_restart_before(
    step: int, progressed: bool
) -> None:
    old = TrainerRestarts(counted=1, total=1, of_pod=1, last=1.0, step=7)
    new = count_restarts(old, [trainer(2)], policy(), now=9.0, step=step)
    assert (new.step, new.progressed) == (step, progressed)


def crash(simulator: JobSimulator, ends: int, code: int = 1, words: str = "") -> None:
    """The trainer's container has ended so often; the kubelet has not counted the last time."""
    simulator.change(
        simulator.trainer,
        restarts=ends - 1,
        exit_code=code,
        exit_message=words,
        ready=False,
        running=False,
        waiting_reason="CrashLoopBackOff",
    )
    simulator.converge(5)


def test_a_trainer_that_restarts_is_restarting_and_then_running_again() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    crash(simulator, 1, words="boom")
    assert simulator.status["phase"] == "Restarting"
    assert simulator.status["trainer"]["restarts"] == 1
    message = simulator.condition("TrainerReady")["message"]
    assert message.startswith(
        "spec.trainer.template.spec.containers[0]: container trainer of pod bad-trainer-0"
    )
    assert "exit code 1: boom" in message
    simulator.run(simulator.trainer)
    simulator.report()
    simulator.converge(5)
    assert simulator.status["phase"] == "Running"


def test_a_job_whose_trainer_has_restarted_succeeds_all_the_same() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    crash(simulator, 1)
    simulator.run(simulator.trainer)
    simulator.report(finished=TrainingResult(step=200))
    simulator.converge(5)
    assert simulator.status["phase"] == "Succeeded"


def test_too_many_restarts_end_the_job() -> None:
    simulator = JobSimulator({"spec.failurePolicy.maxRestarts": 2})
    simulator.to_running()
    for count in (1, 2):
        crash(simulator, count)
        assert simulator.status["phase"] == "Restarting"
    crash(simulator, 3, words="out of memory")
    condition = simulator.condition("Failed")
    assert (condition["status"], condition["reason"]) == ("True", "BackoffLimitExceeded")
    assert "Last exit of pod bad-trainer-0: exit code 1: out of memory" in condition["message"]
    assert "spec.failurePolicy.maxRestarts (2)" in condition["message"]
    assert simulator.children["StatefulSet/bad-trainer"]["spec"]["replicas"] == 0


def test_the_rank_that_had_too_little_memory_explains_why_the_job_failed() -> None:
    simulator = JobSimulator({"spec.failurePolicy.maxRestarts": 1, "spec.trainer.replicas": 2})
    simulator.to_running()
    first, second = simulator.pods_of("bad-trainer")
    simulator.change(second, exit_code=137, oom_killed=True, exit_message="OOMKilled")
    simulator.change(first, restarts=2, exit_code=1, exit_message="rank 1 is gone", running=False)
    simulator.converge(5)
    message = simulator.condition("Failed")["message"]
    assert "Last exit of pod bad-trainer-1: exit code 137: OOMKilled; raise the limit" in message
    assert "maxTokensPerMicrobatch" in message


def test_settings_that_the_trainer_refuses_end_the_job_at_once() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    crash(simulator, 0, 64, "spec.model.path: unknown builtin 'x'")
    condition = simulator.condition("Failed")
    assert condition["reason"] == "BadConfig"
    assert condition["message"].startswith("spec.model.path: unknown builtin 'x'")


@pytest.mark.parametrize(("code", "reason"), [(64, "BadConfig"), (42, "ExitCodeRule")])
def test_the_exit_of_any_rank_counts(code: int, reason: str) -> None:
    rules = [{"exitCodes": [42], "action": "Fail"}]
    changes = {"spec.failurePolicy.rules": rules, "spec.trainer.replicas": 2}
    simulator = JobSimulator(changes)
    simulator.to_running()
    simulator.change(simulator.pods_of("bad-trainer")[1], exit_code=code, running=False)
    simulator.converge(1)
    assert simulator.condition("Failed")["reason"] == reason


def test_a_trainer_that_is_stopped_by_suspension_has_not_failed() -> None:
    simulator = JobSimulator({"spec.failurePolicy.maxRestarts": 0})
    simulator.to_running()
    simulator.edit({"spec.suspend": True})
    crash(simulator, 5, 137)
    assert simulator.status["phase"] == "Suspended"
    assert simulator.status["trainer"]["totalRestarts"] == 0


def test_a_rule_ends_the_job_at_its_exit_code() -> None:
    rules = [{"exitCodes": [42], "action": "Fail"}]
    simulator = JobSimulator({"spec.failurePolicy.rules": rules})
    simulator.to_running()
    crash(simulator, 0, 42)
    assert simulator.condition("Failed")["reason"] == "ExitCodeRule"


def test_a_rollout_that_refuses_its_settings_does_not_end_the_job() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    victim = simulator.pods_of("bad-cpu")[0]
    said = "spec.reward.function: no module named nowhere"
    simulator.change(victim, exit_code=64, exit_message=said, running=False)
    simulator.converge(2)
    condition = simulator.condition("RolloutsReady")
    assert (condition["status"], condition["reason"]) == ("False", "BadConfig")
    assert condition["message"].startswith("spec.reward.function: no module named nowhere")
    assert simulator.status["phase"] == "Running"


def test_a_failing_init_container_is_no_exit_of_the_trainer() -> None:
    simulator = JobSimulator()
    simulator.converge()
    simulator.schedule()
    simulator.change(simulator.trainer, init=True, container="fetch", exit_code=64, restarts=9)
    simulator.converge(5)
    assert simulator.status["phase"] == "Starting"
    assert "initContainers" in simulator.condition("TrainerReady")["message"]


# --- rollouts that reject their settings ---------------------------------------------------------

SYNTAX = "spec.reward.function: cannot import 'my_task': SyntaxError: invalid syntax"
ROLLOUT = "spec.rollouts[0].template.spec"


def reject(simulator: JobSimulator, ends: int, *, ran: int = 0) -> None:
    """The rollouts have rejected their settings `ends` times, but for the first `ran`."""
    for number, pod in enumerate(simulator.pods_of("bad-cpu")):
        rejects = number >= ran
        simulator.change(
            pod,
            restarts=ends - 1,
            exit_code=64 if rejects else None,
            exit_message=SYNTAX if rejects else "",
            running=not rejects,
            ready=False,
            waiting_reason="CrashLoopBackOff" if rejects else "",
        )
    simulator.converge(5)


def starting(step: int | None = None) -> JobSimulator:
    mount = [{"name": "task", "mountPath": "/task"}]
    simulator = JobSimulator(
        {
            f"{ROLLOUT}.volumes": [{"name": "task", "configMap": {"name": "my-files"}}],
            f"{ROLLOUT}.containers[0].volumeMounts": mount,
        }
    )
    simulator.to_running()
    if step is not None:
        simulator.report(step=step)
        simulator.converge(20)
    return simulator


def test_a_job_fails_whose_rollouts_all_reject_the_code_of_its_reward() -> None:
    simulator = starting()
    reject(simulator, 3)
    condition = simulator.condition("RolloutsReady")
    assert condition["reason"] == "BadConfig"
    source = "Correct the function (its file may be in ConfigMap my-files, mounted at /task)"
    assert source in condition["message"]
    reject(simulator, 4)
    failed = simulator.condition("Failed")
    assert failed["reason"] == "BadConfig"
    assert failed["message"].startswith(f"{SYNTAX}. {source}, or the spec, then delete")


def test_it_goes_on_while_one_of_them_runs_or_once_it_has_trained() -> None:
    one_runs = starting()
    reject(one_runs, 9, ran=1)
    trained = starting(step=3)
    reject(trained, 9)
    for simulator in (one_runs, trained):
        assert simulator.status["phase"] != "Failed"


def test_a_setting_that_is_no_code_has_no_file() -> None:
    text = mounted_code.cure("spec.model.path: no such folder", {"spec": {"containers": []}})
    assert text == "Correct the spec, then delete and recreate the RLJob"
