"""What the API server refuses by itself."""

from tests.apiserver.bad_manifests.case import ROLLOUT, SUSPEND_FIRST, TRAINER, Case
from tests.apiserver.bad_manifests.manifests import (
    DELETE,
    EXTERNAL,
    FRONT,
    OWN_REFERENCE,
    Changes,
    job,
)


def _apply(name: str, says: tuple[str, ...], changes: Changes, **more: object) -> Case:
    return Case(name, "apply", "RLJob", says, changes, **more)  # type: ignore[arg-type]


def _pool(name: str, says: tuple[str, ...], changes: Changes, **more: object) -> Case:
    return Case(name, "apply", "RolloutPool", says, changes, **more)  # type: ignore[arg-type]


NO_ALGORITHM = {f"spec.{field}": DELETE for field in ("algorithm", "reward", "rollouts")}
CA_BUNDLE = "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"
EVALUATION = {"everySteps": 10, "source": {"name": "builtin:reverse"}}

REFUSED_AT_APPLY: tuple[Case, ...] = (
    _apply(
        "name too long",
        ("metadata.name must be lower-case", "at most 43 characters (its"),
        {"metadata.name": "a-job-with-a-name-that-is-far-too-long-for-us"},
    ),
    _apply(
        "name with a dot",
        ("metadata.name must be", "lower-case letters, digits and '-'"),
        {"metadata.name": "my.job"},
    ),
    _apply(
        "unknown inference engine",
        (
            "spec.rollouts[0].engine.name",
            "unknown inference engine; builtin: tiny, transformers, sglang, vllm",
        ),
        {"spec.rollouts[0].engine.name": "tinny"},
    ),
    _apply(
        "unknown training engine",
        ("spec.trainer.engine.name", "unknown training engine; builtin: fsdp2, fsdp, megatron"),
        {"spec.trainer.engine.name": "fsdp3"},
    ),
    _apply(
        "unknown sync engine",
        ("spec.weightSync.engine", "unknown weight sync engine; builtin: auto, gloo, nccl"),
        {"spec.weightSync.engine": "glue"},
    ),
    _apply(
        "an init container that is a text",
        (f"{TRAINER}.initContainers[0]", "expected map"),
        {f"{TRAINER}.initContainers": ["busybox"]},
    ),
    _apply(
        "volumes that are one map",
        ("template.spec.volumes", "expected list"),
        {f"{ROLLOUT}.volumes": {"name": "data", "emptyDir": {}}},
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
        "replicas under minReplicas",
        ("spec.rollouts[0].replicas", "must not be below minReplicas; raise replicas"),
        {"spec.rollouts[0].replicas": 2, "spec.rollouts[0].minReplicas": 3},
    ),
    _apply(
        "rollouts in a sync group with a name that is no label",
        ("spec.rollouts[0].syncGroup", "it is part of the names of sessions and metrics"),
        {"spec.rollouts[0].syncGroup": "NPU_1"},
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
    _apply(
        "an algorithm and supervised training",
        ("spec", "must have exactly one of algorithm (with rollouts and reward) and supervised"),
        {"spec.supervised": {}},
    ),
    *(
        _apply(
            f"an algorithm without {field}",
            (f"spec.{field}", "is required with algorithm"),
            {f"spec.{field}": DELETE},
        )
        for field in ("reward", "rollouts")
    ),
    *(
        _apply(
            f"supervised training with {field}",
            (f"spec.{field}", "must not be given with supervised"),
            {**NO_ALGORITHM, "spec.supervised": {}, f"spec.{field}": job()["spec"][field]},
        )
        for field in ("reward", "rollouts")
    ),
    *(
        _apply(
            f"an External trainer with {field}",
            (f"spec.{field}", "must not be given with trainer.kind: External", "remove it"),
            {**EXTERNAL, f"spec.{field}": value},
        )
        for field, value in {
            "data": {"prompts": "builtin:reverse"},
            "reward": {"function": "m:score"},
            "environment": {"function": "m:Game"},
            "algorithm": {"maxSteps": 200},
            "supervised": {},
            "rewardModel": {"path": "org/judge"},
            "evaluation": EVALUATION,
            "trainer.checkpoint": {"volume": {"emptyDir": {}}},
            "trainer.exportPath": "/models/mine",
            "trainer.processesPerPod": 2,
        }.items()
    ),
    _apply(
        "an External trainer without rollouts",
        ("spec.rollouts", "is required with algorithm and with trainer.kind: External"),
        {**EXTERNAL, "spec.rollouts": DELETE},
    ),
    _apply(
        "no data",
        ("spec.data", "is required unless trainer.kind is External"),
        {"spec.data": DELETE},
    ),
    _apply(
        "another kind of trainer, even while the job is suspended",
        ("spec.trainer.kind", "is immutable", "create another RLJob"),
        {**EXTERNAL, "spec.suspend": True},
        then={
            "spec.trainer.kind": "Builtin",
            **{f"spec.{field}": job()["spec"][field] for field in ("algorithm", "data", "reward")},
        },
    ),
    _apply(
        "supervised training with a front",
        ("spec.front", "must not be given with supervised", "remove it"),
        {**NO_ALGORITHM, **FRONT, "spec.supervised": {}},
    ),
    _apply(
        "supervised training changed while it runs",
        ("spec.supervised", "is immutable while the job is not suspended"),
        {**NO_ALGORITHM, "spec.supervised": {}},
        then={"spec.supervised.epochs": 2},
    ),
    _apply(
        "supervised training that learns nothing",
        ("spec.supervised.learningRate", 'such as "1e-3"'),
        {**NO_ALGORITHM, "spec.supervised.learningRate": "0"},
    ),
    *(
        _apply(
            f"a learning rate of a billion, {field}",
            (f"{field}.learningRate", "above 0.0 and at most 1.0"),
            {**section, f"{field}.learningRate": "1e9"},
        )
        for field, section in (
            ("spec.algorithm.optimizer", {}),
            ("spec.critic", {"spec.algorithm.name": "ppo"}),
            ("spec.supervised", NO_ALGORITHM),
        )
    ),
    _apply(
        "a model exported to a relative folder",
        ("spec.trainer.exportPath", "must be an absolute path"),
        {"spec.trainer.exportPath": "model"},
    ),
    _apply(
        "held-out rows in an unknown format",
        ("spec.supervised.evaluation.source.name", "a file that ends in .jsonl"),
        {**NO_ALGORITHM, "spec.supervised.evaluation": {"source": {"name": "/data/a.txt"}}},
    ),
    _apply("no rollouts", ("spec.rollouts", "at least 1 items"), {"spec.rollouts": []}),
    _apply(
        "two rollouts of one name",
        ("spec.rollouts", 'duplicate entries for key [name="cpu"]'),
        {"spec.rollouts[1]": job()["spec"]["rollouts"][0]},
    ),
    _apply(
        "rollout name too long",
        ("spec.rollouts[0].name", "at most 19 characters"),
        {"spec.rollouts[0].name": "preemptible-a100-west"},
    ),
    _apply(
        "misspelt field",
        ("spec.algorithm.maxStep", "field not declared in schema"),
        {"spec.algorithm.maxStep": 10},
    ),
    _apply(
        "no end",
        ("spec.algorithm", "must have exactly one of maxSteps and epochs"),
        {"spec.algorithm": {"groupSize": 8}},
    ),
    _apply(
        "no samples",
        ("spec.algorithm.groupSize", "should be greater than or equal to 1"),
        {"spec.algorithm.groupSize": 0},
    ),
    _apply(
        "unknown algorithm",
        ("spec.algorithm.name", 'supported values: "grpo", "dr-grpo", "rloo"'),
        {"spec.algorithm.name": "gppo"},
    ),
    _apply(
        "unknown objective",
        ("spec.algorithm.settings.objective", 'supported values: "ppo", "gspo"'),
        {"spec.algorithm.settings.objective": "grpo"},
    ),
    _apply(
        "a float",
        ("spec.algorithm.settings.clipHigh", "expected string"),
        {"spec.algorithm.settings.clipHigh": 0.2},
    ),
    _apply(
        "a decimal string that does not parse",
        ("spec.algorithm.settings.clipLow", "must be a decimal string from 0.0 to 1.0"),
        {"spec.algorithm.settings.clipLow": "0,2"},
    ),
    _apply(
        "importance sampling capped at zero",
        ("spec.algorithm.settings.correctionCap", "must be a decimal string from 1.0 to 1000.0"),
        {"spec.algorithm.settings.correctionCap": "0"},
    ),
    *(
        _apply(
            f"{name} out of its range",
            (f"spec.algorithm.settings.{name}", "must be a decimal string from 0.0 to 1.0"),
            {f"spec.algorithm.settings.{name}": "1.1"},
        )
        for name in ("discount", "gaeLambda", "correctionFloor")
    ),
    *(
        _apply(
            f"{name} out of its range",
            (f"spec.algorithm.settings.{name}", "must be a decimal string from 0.0 to 1000.0"),
            {f"spec.algorithm.settings.{name}": "1001"},
        )
        for name in (
            "clipHigh",
            "dualClip",
            "klCoefficient",
            "entropyCoefficient",
            "overlongPenalty",
            "valueClip",
        )
    ),
    *(
        _apply(
            f"sampling with {name} {value!r:.20}",
            (f"spec.algorithm.sampling.{name}", text),
            {f"spec.algorithm.sampling.{name}": value},
        )
        for name, value, text in (
            ("maxTokens", 0, "greater than or equal to 1"),
            ("maxTokens", 1_048_577, "less than or equal to 1048576"),
            ("temperature", "0", "from 0.01 to 10.0"),
            ("temperature", "10.5", "from 0.01 to 10.0"),
            ("temperature", "1e-45", "from 0.01 to 10.0"),
            ("topP", "0", "from 0.000001 to 1.0"),
            ("topP", "1e-46", "from 0.000001 to 1.0"),
            ("topK", -1, "greater than or equal to 0"),
        )
    ),
    _apply(
        "a template of more than 16384 characters",
        ("spec.data.sources[0].template", "16384"),
        {
            "spec.data": {
                "sources": [{"name": "/data/rows.jsonl", "template": "{question}" + " " * 16_384}]
            }
        },
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
        "a delta of more than the whole",
        ("spec.weightSync.delta.maxShare", "must be a decimal string above 0.0 and at most 1.0"),
        {"spec.weightSync.delta": {"enabled": True, "maxShare": "1.5"}},
    ),
    _apply(
        "blocks of a delta too small",
        ("spec.weightSync.delta.blockSize", "from 4Ki to 4Gi"),
        {"spec.weightSync.delta": {"enabled": True, "blockSize": "512"}},
    ),
    _apply(
        "unknown engine of a sync group",
        ("spec.weightSync.groups[0].engine", "unknown weight sync engine; builtin: auto, gloo"),
        {"spec.weightSync.groups": [{"name": "npu", "engine": "glue"}]},
    ),
    _apply(
        "unknown staging",
        ("spec.weightSync.staging", 'supported values: "Host", "Device", "Streamed"'),
        {"spec.weightSync.staging": "Disk"},
    ),
    _apply(
        "traces into a relative folder",
        ("spec.weightSync.profile.path", "must be an absolute path"),
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
        "steps and epochs",
        ("spec.algorithm", "must have exactly one of maxSteps and epochs"),
        {"spec.algorithm.epochs": 2},
    ),
    _apply(
        "supervised steps and epochs",
        ("spec.supervised.maxSteps", "must not be given beside epochs above 1: either ends"),
        {**NO_ALGORITHM, "spec.supervised": {"maxSteps": 5, "epochs": 2}},
    ),
    _apply(
        "a system's turn without a chat",
        ("spec.data.sources[0].system", "must be empty unless chat is true"),
        {"spec.data": {"sources": [{"name": "/data/a.jsonl", "system": "Be brief."}]}},
    ),
    _apply(
        "a system's turn without a chat in an evaluation",
        ("spec.evaluation.source.system", "must be empty unless chat is true"),
        {"spec.evaluation": {"everySteps": 5, "source": {"name": "/a.jsonl", "system": "Add."}}},
    ),
    _apply(
        "a system's turn without a chat in held-out rows",
        ("spec.supervised.evaluation.source.system", "must be empty unless chat is true"),
        {
            **NO_ALGORITHM,
            "spec.supervised.evaluation": {"source": {"name": "/a.jsonl", "system": "Add."}},
        },
    ),
    _apply(
        "a reward function and parts",
        ("spec.reward", "must have exactly one of function and parts"),
        {"spec.reward.parts": [{"name": "right", "function": "exact-match"}]},
    ),
    _apply(
        "two parts of a reward with one name",
        ("spec.reward.parts", 'duplicate entries for key [name="a"]'),
        {
            "spec.reward.function": DELETE,
            "spec.reward.parts": [
                {"name": "a", "function": "m:f"},
                {"name": "a", "function": "m:g"},
            ],
        },
    ),
    *(
        _apply(
            f"a part of a reward with a wrong {field}",
            (f"spec.reward.parts[0].{field}", says),
            {
                "spec.reward.function": DELETE,
                "spec.reward.parts": [{"name": "a", "function": "m:f", field: value}],
            },
        )
        for field, value, says in (
            ("name", "A_1", "lower-case letters, digits and '-'"),
            ("function", "Right Answer", "must be module:callable"),
            ("weight", "-1", "must be a decimal string from 0.0 to 1000.0"),
        )
    ),
    _apply(
        "more samples scored at once than a rollout may",
        ("spec.reward.concurrency", "should be less than or equal to 64"),
        {"spec.reward.concurrency": 65},
    ),
    _apply(
        "reward that names no callable",
        ("spec.reward.function", "must be module:callable"),
        {"spec.reward.function": "my_package/rewards.py"},
    ),
    _apply(
        "an unknown outcome of a reward that fails",
        ("spec.reward.onError", 'supported values: "Reject", "Zero", "Fail"'),
        {"spec.reward.onError": "Ignore"},
    ),
    _apply(
        "no share of rewards that may fail",
        ("spec.reward.maxErrorShare", "must be a decimal string above 0.0 and at most 1.0"),
        {"spec.reward.maxErrorShare": "0"},
    ),
    _apply(
        "a share of rewards to verify as a percentage",
        ("spec.reward.verifyShare", "must be a decimal string from 0.0 to 1.0"),
        {"spec.reward.verifyShare": "5%"},
    ),
    _apply(
        "no time for a reward",
        ("spec.reward.timeoutSeconds", "should be greater than or equal to 1"),
        {"spec.reward.timeoutSeconds": 0},
    ),
    _apply(
        "an environment and tools in its place",
        ("spec.environment", "must have exactly one of function and tools"),
        {"spec.environment": {"function": "games:Chess", "tools": ["games:roll"]}},
    ),
    _apply(
        "a tool that is no function of a module",
        ("spec.environment.tools[0]", "must be module:name"),
        {"spec.environment": {"tools": ["calculator"]}},
    ),
    _apply(
        "an environment that is no class of a module",
        ("spec.environment.function", "must be module:name"),
        {"spec.environment": {"function": "chess"}},
    ),
    _apply(
        "no turn to sample",
        ("spec.environment.maxTurns", "should be greater than or equal to 1"),
        {"spec.environment": {"function": "games:Chess", "maxTurns": 0}},
    ),
    _apply(
        "relative model folder",
        ("spec.model.path", "an absolute path such as /models/mine"),
        {"spec.model.path": "./checkpoints/model"},
    ),
    _apply(
        "prompts in an unknown format",
        ("spec.data.prompts", "a file that ends in .jsonl"),
        {"spec.data.prompts": "/data/prompts.txt"},
    ),
    _apply(
        "one source of prompts in an unknown format",
        ("spec.data.sources[0].name", "a file that ends in .jsonl"),
        {"spec.data.prompts": DELETE, "spec.data.sources": [{"name": "/data/prompts.txt"}]},
    ),
    _apply(
        "prompts and sources",
        ("spec.data", "must have exactly one of prompts and sources"),
        {"spec.data.sources": [{"name": "/data/prompts.jsonl"}]},
    ),
    _apply(
        "a source without a share",
        ("spec.data.sources[0].weight", "should be greater than or equal to 1"),
        {
            "spec.data.prompts": DELETE,
            "spec.data.sources": [{"name": "org/prompts", "weight": 0}],
        },
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
        {f"{TRAINER}.containers": DELETE},
    ),
    _apply(
        "a container without an image",
        (f"{ROLLOUT}.containers[0].image", "Required value"),
        {f"{ROLLOUT}.containers[0].image": DELETE},
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
        ("spec.algorithm", "is immutable while the job is not suspended", SUSPEND_FIRST),
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
        "ranks of a pod changed while it runs",
        ("spec.trainer.processesPerPod", "is immutable while the job is not suspended"),
        {},
        then={"spec.trainer.processesPerPod": 2},
    ),
    _apply(
        "device changed while it runs",
        ("spec.trainer.device", "is immutable while the job is not suspended"),
        {},
        then={"spec.trainer.device": "cpu"},
    ),
    _apply(
        "unknown device",
        ("spec.trainer.device", 'supported values: "auto", "cpu"'),
        {"spec.trainer.device": "gpu"},
    ),
    *(
        _apply(
            f"{path} changed while it runs",
            (f"spec.{path}", "is immutable while the job is not suspended"),
            before,
            then=then,
        )
        for path, before, then in (
            ("reference.updateEvery", {}, {"spec.reference.updateEvery": 5}),
            ("reference.path", {}, {"spec.reference.path": "org/other"}),
            ("critic", {}, {"spec.critic.warmupSteps": 5}),
            ("rewardModel", {}, {"spec.rewardModel": {"path": "org/reward"}}),
            ("environment", {}, {"spec.environment": {"function": "games:Chess"}}),
            ("health", {}, {"spec.health.maxSkippedSteps": 2}),
            ("evaluation", {}, {"spec.evaluation": EVALUATION}),
            ("tracking", {}, {"spec.tracking.folder": "/logs"}),
            ("observe", {}, {"spec.observe.samples.share": "1"}),
            ("tls.enabled", {}, {"spec.tls.enabled": False}),
            (
                "tls.secretName",
                {},
                {"spec.tls": {"secretName": "mine", "caBundle": CA_BUNDLE}},
            ),
        )
    ),
    *(
        _apply(
            f"{path} in a relative folder",
            (f"spec.{path}.path", "an absolute path such as /models/mine"),
            {f"spec.{path}.path": "./model"},
        )
        for path in ("reference", "critic", "rewardModel")
    ),
    _apply(
        "a moving reference in pods of its own",
        ("spec.reference.updateEvery", "must be 0 with template", "or remove template"),
        {**OWN_REFERENCE, "spec.reference.updateEvery": 5},
    ),
    *(
        _apply(
            f"{field} of a reference in the trainer",
            (f"spec.reference.{field}", "has no effect without template", f"remove {field}"),
            {f"spec.reference.{field}": value},
        )
        for field, value in (("replicas", 2), ("device", "cpu"))
    ),
    _apply(
        "no pod for the reference",
        ("spec.reference.replicas", "should be greater than or equal to 1"),
        {**OWN_REFERENCE, "spec.reference.replicas": 0},
    ),
    _apply(
        "pods for the reference while the job runs",
        ("spec.reference.template", "must not be added or removed", "spec.suspend: true first"),
        {"spec.algorithm.settings.klCoefficient": "0.1"},
        then=OWN_REFERENCE,
    ),
    _apply(
        "a front that asks for no key",
        ("spec.front.apiKeysSecret", "is required", "withoutApiKeys: true"),
        {**FRONT, "spec.front.apiKeysSecret": DELETE},
    ),
    _apply(
        "a front with and without keys",
        ("spec.front.withoutApiKeys", "must not be true together with apiKeysSecret"),
        {**FRONT, "spec.front.withoutApiKeys": True},
    ),
    _apply(
        "a front while the job runs",
        ("spec.front", "nor added while the job is not suspended", "before you add it"),
        {},
        then=FRONT,
    ),
    _apply(
        "a front that is taken away from a suspended job",
        ("spec.front", "must not be removed"),
        {**FRONT, "spec.suspend": True},
        then={"spec.front": DELETE},
    ),
    _apply(
        "a critic that does not learn",
        ("spec.critic.learningRate", 'such as "1e-3"'),
        {"spec.critic.learningRate": "0"},
    ),
    _apply(
        "a reward model with a negative weight",
        ("spec.rewardModel.weight", "must be a decimal string from 0.0 to 1000.0"),
        {"spec.rewardModel": {"path": "org/reward", "weight": "-1"}},
    ),
    *(
        _apply(
            f"{name} that is no decimal",
            (f"spec.health.{name}", "must be a decimal string from 0.0 to 1000.0"),
            {f"spec.health.{name}": "high"},
        )
        for name in ("maxMismatchKl", "maxMismatchRatio")
    ),
    _apply(
        "pass@k of more than the samples",
        ("spec.evaluation.passAt", "must be at most samples"),
        {"spec.evaluation": {**EVALUATION, "samples": 4, "passAt": [1, 8]}},
    ),
    _apply(
        "a reward that every sample passes",
        ("spec.evaluation.passReward", "must be a decimal string above 0.0 and at most 1.0"),
        {"spec.evaluation": {**EVALUATION, "passReward": "0"}},
    ),
    _apply(
        "a certificate of one's own without its authority",
        ("spec.tls.caBundle", "must be given together with secretName"),
        {"spec.tls.secretName": "mine"},
    ),
    _apply(
        "an authority that is no certificate",
        ("spec.tls.caBundle", "must hold certificates (PEM)"),
        {"spec.tls": {"secretName": "mine", "caBundle": "mine"}},
    ),
    _apply(
        "an evaluation of prompts in an unknown format",
        ("spec.evaluation.source.name", "a file that ends in .jsonl"),
        {"spec.evaluation": {"everySteps": 10, "source": {"name": "/data/a.txt"}}},
    ),
    _apply(
        "figures in a relative folder",
        ("spec.tracking.folder", "must be an absolute path"),
        {"spec.tracking.folder": "logs"},
    ),
    _apply(
        "more than all responses kept",
        ("spec.observe.samples.share", "must be a decimal string from 0.0 to 1.0"),
        {"spec.observe.samples.share": "1.5"},
    ),
    _apply(
        "responses kept of every step before the first",
        ("spec.observe.samples.allEverySteps", "greater than or equal to 0"),
        {"spec.observe.samples.allEverySteps": -1},
    ),
    _apply(
        "checkpoints given up while it runs",
        ("spec.trainer.checkpoint", "is immutable while the job is not suspended"),
        {"spec.trainer.checkpoint.volume.emptyDir": {}},
        then={"spec.trainer.checkpoint": DELETE},
    ),
    _apply(
        "prompts changed while it runs",
        ("spec.data", "is immutable while the job is not suspended"),
        {},
        then={"spec.data.prompts": "/data/prompts.jsonl"},
    ),
    _apply(
        "reward changed while it runs",
        ("spec.reward", "is immutable while the job is not suspended"),
        {},
        then={"spec.reward.function": "my_package.rewards:score"},
    ),
    _apply(
        "another source of weights after a restart while it runs",
        ("spec.trainer.recoverFrom", "is immutable while the job is not suspended"),
        {},
        then={"spec.trainer.recoverFrom": "Rollouts"},
    ),
    _apply(
        "membership changed while it runs",
        ("spec.membership", "is immutable while the job is not suspended"),
        {},
        then={"spec.membership.settleSeconds": 7},
    ),
    _apply(
        "another training engine, even though suspended",
        ("spec.trainer.engine.name", "is immutable (checkpoints are in its format)"),
        {"spec.suspend": True},
        then={"spec.trainer.engine.name": "example.com/mine"},
    ),
    _apply(
        "another model, even though suspended",
        ("spec.model", "is immutable (checkpoints hold its weights); create another RLJob"),
        {"spec.suspend": True},
        then={"spec.model.path": "org/other"},
    ),
    _pool(
        "pool: maxReplicas under minReplicas",
        ("spec.minReplicas", "must not be above maxReplicas"),
        {"spec.replicas": 2, "spec.minReplicas": 3, "spec.maxReplicas": 2},
    ),
    _pool(
        "pool: replicas under minReplicas",
        ("spec.replicas", "must not be below minReplicas; raise replicas"),
        {"spec.replicas": 2, "spec.minReplicas": 3},
    ),
    _pool(
        "pool: unknown inference engine",
        ("spec.engine.name", "unknown inference engine; builtin: tiny, transformers, sglang, vllm"),
        {"spec.engine.name": "tinny"},
    ),
    _pool(
        "pool: a sync group with a name that is no label",
        ("spec.syncGroup", "it is part of the names of sessions and metrics"),
        {"spec.syncGroup": "NPU_1"},
    ),
    _pool(
        "pool: name with a dot",
        ("metadata.name must be lower-case", "at most 63 characters (its pods carry it as a label"),
        {"metadata.name": "my.pool"},
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
