"""Wrong manifests and what a user is told about each.

`where` is "apply": a server-side apply with fieldValidation=Strict is refused; or "condition": it
is taken, and the operator says what is wrong in a condition. `says` are parts of the message, the
field's path first. Cases with `needs_pods` need a kubelet.

A case applies `before` (manifests that are fine) and then `manifest`; when there is `then`, the
manifest with these further changes is applied too, and it is this one that is wrong.
"""

from dataclasses import dataclass, field
from typing import Literal

from tests.integration.bad_manifests.manifests import (
    DELETE,
    Changes,
    Manifest,
    changed,
    job,
    pool,
)


@dataclass(frozen=True, slots=True)
class Expected:
    """The condition that tells: of the object of this kind that the case applies."""

    type: str
    status: Literal["True", "False"]
    reason: str


INVALID = Expected("Validated", "False", "InvalidSpec")


@dataclass(frozen=True, slots=True)
class Case:
    """One wrong manifest; see the module's docstring."""

    name: str
    where: Literal["apply", "condition"]
    kind: Literal["RLJob", "RolloutPool"]
    says: tuple[str, ...]
    changes: Changes = field(default_factory=dict)
    then: Changes | None = None
    before: tuple[Manifest, ...] = ()
    expected: Expected = INVALID
    needs_pods: bool = False

    @property
    def manifest(self) -> Manifest:
        """What is applied first."""
        return changed(job() if self.kind == "RLJob" else pool(), self.changes)

    @property
    def second(self) -> Manifest | None:
        """What is applied after that."""
        return None if self.then is None else changed(self.manifest, self.then)


_TRAINER = "spec.trainer.template.spec"
_ROLLOUT = "spec.rollouts[0].template.spec"
_SUSPEND_FIRST = "set spec.suspend: true first"


def _apply(name: str, says: tuple[str, ...], changes: Changes, **more: object) -> Case:
    return Case(name, "apply", "RLJob", says, changes, **more)  # type: ignore[arg-type]


def _pool(name: str, says: tuple[str, ...], changes: Changes, **more: object) -> Case:
    return Case(name, "apply", "RolloutPool", says, changes, **more)  # type: ignore[arg-type]


def _told(name: str, says: tuple[str, ...], changes: Changes, **more: object) -> Case:
    return Case(name, "condition", "RLJob", says, changes, **more)  # type: ignore[arg-type]


REFUSED_AT_APPLY: tuple[Case, ...] = (
    _apply(
        "name too long",
        ("metadata.name must be at most 43 characters", "its pods are named after it"),
        {"metadata.name": "a-job-with-a-name-that-is-far-too-long-for-us"},
    ),
    _apply(
        "name with a dot",
        ("metadata.name must be", "lower-case letters, digits and '-'"),
        {"metadata.name": "my.job"},
    ),
    _apply(
        "unknown inference engine",
        ("spec.rollouts[0].engine.name", "unknown inference engine; builtin: tiny"),
        {"spec.rollouts[0].engine.name": "tinny"},
    ),
    _apply(
        "unknown training engine",
        ("spec.trainer.engine.name", "unknown training engine; builtin: fsdp2"),
        {"spec.trainer.engine.name": "fsdp3"},
    ),
    _apply(
        "unknown sync engine",
        ("spec.weightSync.engine", "unknown weight sync engine; builtin: auto, gloo, nccl"),
        {"spec.weightSync.engine": "glue"},
    ),
    _apply(
        "negative replicas",
        ("spec.rollouts[0].replicas", "should be greater than or equal to 0"),
        {"spec.rollouts[0].replicas": -1},
    ),
    _apply(
        "no trainer",
        ("spec.trainer.replicas", "should be greater than or equal to 1"),
        {"spec.trainer.replicas": 0},
    ),
    _apply(
        "maxReplicas under minReplicas",
        ("spec.rollouts[0].minReplicas", "must not be above maxReplicas"),
        {"spec.rollouts[0].minReplicas": 3, "spec.rollouts[0].maxReplicas": 2},
    ),
    _apply(
        "replicas over maxReplicas",
        ("spec.rollouts[0].replicas", "must not be above maxReplicas; lower replicas"),
        {"spec.rollouts[0].replicas": 5, "spec.rollouts[0].maxReplicas": 2},
    ),
    _apply(
        "suspected before the next heartbeat",
        ("spec.membership.suspectAfterMilliseconds", "must be more than heartbeatMilliseconds"),
        {"spec.membership.heartbeatMilliseconds": 3000},
    ),
    _apply(
        "deterministic with stale samples",
        ("spec.algorithm.maxStaleness", "must be 0 when deterministic is true"),
        {"spec.algorithm.deterministic": True},
    ),
    _apply(
        "deterministic with checkpoints between versions",
        ("spec.trainer.checkpoint.everySteps", "must be a multiple of weightSync.trigger"),
        {
            "spec.algorithm.deterministic": True,
            "spec.algorithm.maxStaleness": 0,
            "spec.trainer.checkpoint": {"everySteps": 3, "volume": {"emptyDir": {}}},
            "spec.weightSync.triggerParameterSyncStep": 2,
        },
    ),
    _apply("no rollouts", ("spec.rollouts", "at least 1 items"), {"spec.rollouts": []}),
    _apply(
        "two rollouts of one name",
        ("spec.rollouts", 'duplicate entries for key [name="cpu"]'),
        {"spec.rollouts[1]": job()["spec"]["rollouts"][0]},
    ),
    _apply(
        "rollout name too long",
        ("spec.rollouts[0].name", "must be at most 19 characters"),
        {"spec.rollouts[0].name": "preemptible-a100-west"},
    ),
    _apply(
        "misspelt field",
        ("spec.algorithm.maxStep", "field not declared in schema"),
        {"spec.algorithm.maxStep": 10},
    ),
    _apply(
        "no end",
        ("spec.algorithm.maxSteps", "Required value"),
        {"spec.algorithm": {"groupSize": 8}},
    ),
    _apply(
        "a group of one",
        ("spec.algorithm.groupSize", "should be greater than or equal to 2"),
        {"spec.algorithm.groupSize": 1},
    ),
    _apply(
        "a float",
        ("spec.algorithm.loss.clip", "expected string"),
        {"spec.algorithm.loss.clip": 0.2},
    ),
    _apply(
        "a decimal string that does not parse",
        ("spec.algorithm.loss.clip", "must be a decimal string above 0.0 and at most 1.0"),
        {"spec.algorithm.loss.clip": "0,2"},
    ),
    _apply(
        "learning rate zero",
        ("spec.algorithm.optimizer.learningRate", 'such as "1e-3"'),
        {"spec.algorithm.optimizer.learningRate": "0"},
    ),
    _apply(
        "a quantity that does not parse",
        ("spec.weightSync.bucketSize", "must be a quantity of whole bytes", "such as 64Mi"),
        {"spec.weightSync.bucketSize": "64MB"},
    ),
    _apply(
        "a bucket too small",
        ("spec.weightSync.bucketSize", "from 4Ki to 4Gi"),
        {"spec.weightSync.bucketSize": "512"},
    ),
    _apply(
        "unknown staging",
        ("spec.weightSync.staging", 'supported values: "Host", "Device", "Streamed"'),
        {"spec.weightSync.staging": "Disk"},
    ),
    _apply(
        "traces into a relative folder",
        ("spec.weightSync.profile.path", "must be an absolute folder"),
        {"spec.weightSync.profile": {"enabled": True, "path": "traces"}},
    ),
    _apply(
        "a second default sync group",
        ("spec.weightSync.groups[0].name", "must not be default", "spec.weightSync.engine"),
        {"spec.weightSync.groups": [{"name": "default"}]},
    ),
    _apply(
        "two sync groups of one name",
        ("spec.weightSync.groups", 'duplicate entries for key [name="npu"]'),
        {"spec.weightSync.groups": [{"name": "npu"}, {"name": "npu", "engine": "nixl"}]},
    ),
    _apply(
        "a sync group with a name that is no label",
        ("spec.weightSync.groups[0].name", "lower-case letters, digits and '-'"),
        {"spec.weightSync.groups": [{"name": "NPU_1"}]},
    ),
    _apply(
        "unknown pause mode",
        ("spec.weightSync.pauseMode", 'supported values: "Abort", "Keep", "Wait"'),
        {"spec.weightSync.pauseMode": "Sleep"},
    ),
    _apply(
        "reward that names no callable",
        ("spec.reward.function", "must be module:callable"),
        {"spec.reward.function": "my_package/rewards.py"},
    ),
    _apply(
        "relative model folder",
        ("spec.model.path", "an absolute folder such as /models/mine"),
        {"spec.model.path": "./checkpoints/model"},
    ),
    _apply(
        "prompts in an unknown format",
        ("spec.data.prompts", "ends in .jsonl or .parquet"),
        {"spec.data.prompts": "/data/prompts.csv"},
    ),
    _apply(
        "two checkpoint volumes",
        ("spec.trainer.checkpoint.volume", "exactly one of emptyDir and persistentVolumeClaim"),
        {
            "spec.trainer.checkpoint.volume.emptyDir": {},
            "spec.trainer.checkpoint.volume.persistentVolumeClaim": {"claimName": "c"},
        },
    ),
    _apply(
        "a template without containers",
        ("spec.trainer.template.spec.containers", "Required value"),
        {f"{_TRAINER}.containers": DELETE},
    ),
    _apply(
        "a container without an image",
        (f"{_ROLLOUT}.containers[0].image", "Required value"),
        {f"{_ROLLOUT}.containers[0].image": DELETE},
    ),
    _apply(
        "impossible exit code",
        ("spec.failurePolicy.rules[0].exitCodes[0]", "less than or equal to 255"),
        {"spec.failurePolicy.rules": [{"exitCodes": [300], "action": "Fail"}]},
    ),
    _apply(
        "unknown action",
        ("spec.failurePolicy.rules[0].action", 'supported values: "Fail", "Ignore"'),
        {"spec.failurePolicy.rules": [{"exitCodes": [3], "action": "Retry"}]},
    ),
    _apply(
        "negative time to live",
        ("spec.ttlSecondsAfterFinished", "greater than or equal to 0"),
        {"spec.ttlSecondsAfterFinished": -1},
    ),
    _apply(
        "algorithm changed while it runs",
        ("spec.algorithm", "is immutable while the job is not suspended", _SUSPEND_FIRST),
        {},
        then={"spec.algorithm.groupSize": 8},
    ),
    _apply(
        "settings of a sync engine changed while it runs",
        ("spec.weightSync", "is immutable while the job is not suspended"),
        {"spec.weightSync.config": {"inFlight": 2}},
        then={"spec.weightSync.config": {"inFlight": 4}},
    ),
    _apply(
        "settings of a sync group changed while it runs",
        ("spec.weightSync", "is immutable while the job is not suspended"),
        {"spec.weightSync.groups": [{"name": "npu", "config": {"inFlight": 2}}]},
        then={"spec.weightSync.groups[0].config": {"inFlight": 4}},
    ),
    _apply(
        "trainers changed while it runs",
        ("spec.trainer.replicas", "is immutable while the job is not suspended"),
        {},
        then={"spec.trainer.replicas": 2},
    ),
    _apply(
        "checkpoints given up while it runs",
        ("spec.trainer.checkpoint", "is immutable while the job is not suspended"),
        {"spec.trainer.checkpoint.volume.emptyDir": {}},
        then={"spec.trainer.checkpoint": DELETE},
    ),
    _apply(
        "another model, even though suspended",
        ("spec.model", "is immutable (checkpoints belong to it); make a new job"),
        {"spec.suspend": True},
        then={"spec.model.path": "org/other"},
    ),
    _pool(
        "pool: maxReplicas under minReplicas",
        ("spec.minReplicas", "must not be above maxReplicas"),
        {"spec.replicas": 2, "spec.minReplicas": 3, "spec.maxReplicas": 2},
    ),
    _pool(
        "pool: scaled over maxReplicas",
        ("spec.replicas", "must not be above maxReplicas"),
        {"spec.replicas": 1, "spec.maxReplicas": 2},
        then={"spec.replicas": 3},
    ),
    _pool(
        "pool: handed to another job",
        ("spec.jobRef", "is immutable; delete the pool and apply it again"),
        {},
        then={"spec.jobRef.name": "other"},
    ),
    _pool(
        "pool: name of a job that cannot exist",
        ("spec.jobRef.name", "lower-case letters, digits and '-'"),
        {"spec.jobRef.name": "Bad"},
    ),
)

TOLD_IN_A_CONDITION: tuple[Case, ...] = (
    Case(
        "a pool whose job does not exist",
        "condition",
        "RolloutPool",
        ("spec.jobRef.name", "no RLJob 'bad' in this namespace", "create the job"),
        expected=Expected("JobFound", "False", "JobNotFound"),
    ),
    _told(
        "two containers and none is the worker",
        (f"{_TRAINER}.containers", "which of main, helper is the worker?", "'trainer'"),
        {
            f"{_TRAINER}.containers[0].name": "main",
            f"{_TRAINER}.containers[1]": {"name": "helper", "image": "busybox"},
        },
    ),
    _told(
        "a request that does not parse",
        (f"{_TRAINER}.containers[0].resources.requests.cpu", "'lots' is not a quantity"),
        {f"{_TRAINER}.containers[0].resources.requests.cpu": "lots"},
    ),
    _told(
        "a worker that must not restart",
        (f"{_ROLLOUT}.restartPolicy", "must be Always, not 'Never'; remove it"),
        {f"{_ROLLOUT}.restartPolicy": "Never"},
    ),
    _told(
        "a variable that is the operator's",
        (f"{_TRAINER}.containers[0].env[0].name", "rename ROLLCALL_CONFIG"),
        {f"{_TRAINER}.containers[0].env": [{"name": "ROLLCALL_CONFIG", "value": "{}"}]},
    ),
    _told(
        "a number as a variable's value",
        (f"{_ROLLOUT}.containers[0].env[0].value", 'write it in quotes: "1"'),
        {f"{_ROLLOUT}.containers[0].env": [{"name": "OMP_NUM_THREADS", "value": 1}]},
    ),
    _told(
        "a volume that is the operator's",
        (f"{_ROLLOUT}.volumes[0].name", "choose another name"),
        {f"{_ROLLOUT}.volumes": [{"name": "rollcall-state", "emptyDir": {}}]},
    ),
    _told(
        "a label that is the operator's",
        ("spec.trainer.template.metadata.labels", "rollcall.dev/job is the operator's"),
        {"spec.trainer.template.metadata.labels": {"rollcall.dev/job": "mine"}},
    ),
    _told(
        "a misspelt field in a template",
        (f"{_TRAINER}.containers[0].imagePolicy", "field not declared in schema"),
        {f"{_TRAINER}.containers[0].imagePolicy": "Always"},
    ),
    _told(
        "a mount of no volume",
        (f"{_ROLLOUT}.containers[0].volumeMounts[0].name", "Not found"),
        {f"{_ROLLOUT}.containers[0].volumeMounts": [{"name": "data", "mountPath": "/data"}]},
    ),
    _told(
        "a container name that pods do not take",
        (f"{_TRAINER}.containers[0].name", "Main_Container", "lower case"),
        {f"{_TRAINER}.containers[0].name": "Main_Container"},
    ),
    _told(
        "a limit under its request",
        (f"{_ROLLOUT}.containers[0].resources.requests", "less than or equal to memory limit"),
        {f"{_ROLLOUT}.containers[0].resources.limits": {"memory": "64Mi"}},
    ),
    _told(
        "a pool's name that is taken",
        ("spec.rollouts[0].name", "RolloutPool bad-cpu exists and is not this job's"),
        {},
        before=(changed(pool(), {"metadata.name": "bad-cpu"}),),
    ),
    _told(
        "a training engine set anew while it runs",
        ("spec.trainer.engine.config", "is immutable while the job is not suspended"),
        {},
        then={"spec.trainer.engine.config": {"cpuOffload": True}},
    ),
    _told(
        "a sync group that the job does not have",
        ("spec.rollouts[0].syncGroup", "no sync group 'npu', only default, cuda"),
        {
            "spec.weightSync.groups": [{"name": "cuda"}],
            "spec.rollouts[0].syncGroup": "npu",
        },
    ),
    Case(
        "pool: a sync group that the job does not have",
        "condition",
        "RolloutPool",
        ("spec.syncGroup", "no sync group 'npu', only default", "spec.weightSync.groups"),
        {"spec.syncGroup": "npu"},
        before=(job(),),
    ),
    Case(
        "pool: a mount of no volume",
        "condition",
        "RolloutPool",
        ("spec.template.spec.containers[0].volumeMounts[0].name", "Not found"),
        {"spec.template.spec.containers[0].volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        before=(job(),),
    ),
)

_NO_SUCH_IMAGE = "rollcall/no-such-image:nowhere"
TRAINER_NOT_READY, ROLLOUTS_NOT_READY = "TrainerReady", "RolloutsReady"

TOLD_WHEN_PODS_RUN: tuple[Case, ...] = (
    _told(
        "a trainer image that cannot be pulled",
        (f"{_TRAINER}.containers[0].image", "cannot be pulled", "correct the name"),
        {f"{_TRAINER}.containers[0].image": _NO_SUCH_IMAGE},
        expected=Expected(TRAINER_NOT_READY, "False", "ImagePullFailed"),
        needs_pods=True,
    ),
    _told(
        "a rollout image that cannot be pulled",
        (f"{_ROLLOUT}.containers[0].image", "cannot be pulled", "imagePullSecrets"),
        {f"{_ROLLOUT}.containers[0].image": _NO_SUCH_IMAGE},
        expected=Expected(ROLLOUTS_NOT_READY, "False", "ImagePullFailed"),
        needs_pods=True,
    ),
    _told(
        "a rollout command that exits at once",
        (f"{_ROLLOUT}.containers[0]", "exit code 3: out of ideas", "correct its command"),
        {
            f"{_ROLLOUT}.containers[0].command": [
                "python3", "-c", "raise SystemExit(print('out of ideas') or 3)",
            ]
        },
        expected=Expected(ROLLOUTS_NOT_READY, "False", "CrashLoop"),
        needs_pods=True,
    ),
    _told(
        "a trainer command that exits at once",
        ("the trainer restarted 1 times", "exit code 3: out of ideas", "spec.failurePolicy"),
        {
            "spec.failurePolicy.maxRestarts": 0,
            f"{_TRAINER}.containers[0].command": [
                "python3", "-c", "raise SystemExit(print('out of ideas') or 3)",
            ],
        },
        expected=Expected("Failed", "True", "BackoffLimitExceeded"),
        needs_pods=True,
    ),
    _told(
        "a command that is not in the image",
        (f"{_ROLLOUT}.containers[0]", "no-such-command"),
        {f"{_ROLLOUT}.containers[0].command": ["no-such-command"]},
        expected=Expected(ROLLOUTS_NOT_READY, "False", "CannotStart"),
        needs_pods=True,
    ),
    _told(
        "a reward function that does not import",
        ("spec.reward.function", "no_such_module"),
        {"spec.reward.function": "no_such_module:reward"},
        expected=Expected(ROLLOUTS_NOT_READY, "False", "BadConfig"),
        needs_pods=True,
    ),
    _told(
        "a builtin model that there is not",
        ("spec.model.path", "no-such-model"),
        {"spec.model.path": "builtin:no-such-model"},
        expected=Expected("Failed", "True", "BadConfig"),
        needs_pods=True,
    ),
    _told(
        "more CPU than any node has",
        (f"{_TRAINER}:", "cannot be scheduled", "Insufficient cpu", "requests"),
        {f"{_TRAINER}.containers[0].resources.requests.cpu": "10000"},
        expected=Expected(TRAINER_NOT_READY, "False", "Unschedulable"),
        needs_pods=True,
    ),
    _told(
        "a claim that does not exist",
        (f"{_TRAINER}:", "cannot be scheduled", 'persistentvolumeclaim "no-such-claim"'),
        {"spec.trainer.checkpoint.volume.persistentVolumeClaim.claimName": "no-such-claim"},
        expected=Expected(TRAINER_NOT_READY, "False", "Unschedulable"),
        needs_pods=True,
    ),
)  # fmt: skip

CASES: tuple[Case, ...] = (*REFUSED_AT_APPLY, *TOLD_IN_A_CONDITION, *TOLD_WHEN_PODS_RUN)
