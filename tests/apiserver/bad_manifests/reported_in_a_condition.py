"""Wrong manifests that the API server accepts and a condition reports."""

from tests.apiserver.bad_manifests.case import REFERENCE, ROLLOUT, TRAINER, Case, Expected
from tests.apiserver.bad_manifests.manifests import (
    DELETE,
    EXTERNAL,
    FRONT,
    OWN_REFERENCE,
    Changes,
    changed,
    job,
    pool,
    supervised_job,
)
from tests.apiserver.bad_manifests.refused_at_apply import CA_BUNDLE, EVALUATION, NO_ALGORITHM


def _reported(name: str, says: tuple[str, ...], changes: Changes, **more: object) -> Case:
    return Case(name, "condition", "RLJob", says, changes, **more)  # type: ignore[arg-type]


REPORTED_IN_A_CONDITION: tuple[Case, ...] = (
    Case(
        "a pool whose job does not exist",
        "condition",
        "RolloutPool",
        ("spec.jobRef.name", "RLJob 'bad' does not exist in this namespace", "create the RLJob"),
        expected=Expected("JobFound", "False", "JobNotFound"),
    ),
    _reported(
        "a builtin reward in the style of TRL",
        ("spec.reward.style", "must be rollcall unless function is module:callable"),
        {"spec.reward.function": "exact-match", "spec.reward.style": "trl"},
    ),
    _reported(
        "a part that is a builtin reward in the style of verl",
        ("spec.reward.parts[0].style", "must be rollcall unless function is module:callable"),
        {"spec.reward": {"parts": [{"name": "a", "function": "exact-match", "style": "verl"}]}},
    ),
    _reported(
        "a label of pods that is a number",
        ("spec.trainer.template.metadata.labels.version", "must be a string; write it in quotes"),
        {"spec.trainer.template.metadata": {"labels": {"version": 1}}},
    ),
    _reported(
        "two containers and none is the worker",
        (f"{TRAINER}.containers", "not clear which of main, helper is the worker", "'trainer'"),
        {
            f"{TRAINER}.containers[0].name": "main",
            f"{TRAINER}.containers[1]": {"name": "helper", "image": "busybox"},
        },
    ),
    _reported(
        "an authority whose certificate cannot be read",
        ("spec.tls.caBundle", "cannot be read as certificates (PEM)"),
        {"spec.tls": {"secretName": "mine", "caBundle": CA_BUNDLE}},
    ),
    _reported(
        "settings of a source that takes none",
        (
            "spec.data.sources[0].config",
            "must be empty but for builtin:reasoning-gym/<data set>, whose settings it holds",
        ),
        {
            "spec.data.prompts": DELETE,
            "spec.data.sources": [{"name": "org/sums", "config": {"min_terms": 2}}],
        },
    ),
    _reported(
        "trajectories of agents without a front",
        ("spec.data.prompts", "builtin:front needs the front that agents use; add spec.front"),
        {"spec.data.prompts": "builtin:front"},
    ),
    _reported(
        "trajectories of agents beside prompts",
        ("spec.data.sources", "builtin:front must be the only source", "spec.data.prompts"),
        {
            **FRONT,
            "spec.data.prompts": DELETE,
            "spec.data.sources": [{"name": "org/sums"}, {"name": "builtin:front"}],
        },
    ),
    _reported(
        "trajectories of agents in a deterministic job",
        ("spec.algorithm.deterministic", "must be false with builtin:front"),
        {
            **FRONT,
            "spec.data.prompts": "builtin:front",
            "spec.algorithm.deterministic": True,
            "spec.algorithm.maxStaleness": 0,
        },
    ),
    _reported(
        "settings of module:callable",
        ("spec.reward.config", "must be empty for module:callable"),
        {"spec.reward.config": {"column": "answer"}},
    ),
    _reported(
        "settings of a part that is module:callable",
        ("spec.reward.parts[0].config", "must be empty for module:callable"),
        {
            "spec.reward.function": DELETE,
            "spec.reward.parts": [{"name": "a", "function": "m:f", "config": {"column": "b"}}],
        },
    ),
    _reported(
        "settings of tools",
        ("spec.environment.config", "must be empty with tools"),
        {"spec.environment": {"tools": ["games:roll"], "config": {"dice": 2}}},
    ),
    _reported(
        "the reward of an environment that there is not",
        ("spec.reward.function", "the reward of spec.environment, which is not given"),
        {"spec.reward.function": "environment"},
    ),
    _reported(
        "rewards of turns that the trainer is to verify",
        ("spec.reward.verifyShare", "must be 0 with spec.environment"),
        {"spec.environment": {"function": "games:Chess"}, "spec.reward.verifyShare": "0.1"},
    ),
    _reported(
        "settings of a reward beside its parts",
        ("spec.reward.config", "must be empty with parts"),
        {
            "spec.reward.function": DELETE,
            "spec.reward.parts": [{"name": "right", "function": "exact-match"}],
            "spec.reward.config": {"column": "answer"},
        },
    ),
    _reported(
        "a request that does not parse",
        (f"{TRAINER}.containers[0].resources.requests.cpu", "'lots' is not a quantity"),
        {f"{TRAINER}.containers[0].resources.requests.cpu": "lots"},
    ),
    _reported(
        "a worker that must not restart",
        (f"{ROLLOUT}.restartPolicy", "must be Always, not 'Never'; remove it"),
        {f"{ROLLOUT}.restartPolicy": "Never"},
    ),
    _reported(
        "a variable that is reserved",
        (f"{TRAINER}.containers[0].env[0].name", "rename ROLLCALL_CONFIG"),
        {f"{TRAINER}.containers[0].env": [{"name": "ROLLCALL_CONFIG", "value": "{}"}]},
    ),
    _reported(
        "a number as a variable's value",
        (f"{ROLLOUT}.containers[0].env[0].value", 'write it in quotes: "1"'),
        {f"{ROLLOUT}.containers[0].env": [{"name": "OMP_NUM_THREADS", "value": 1}]},
    ),
    _reported(
        "a volume that is reserved",
        (f"{ROLLOUT}.volumes[0].name", "choose another name"),
        {f"{ROLLOUT}.volumes": [{"name": "rollcall-state", "emptyDir": {}}]},
    ),
    _reported(
        "a label that is reserved",
        ("spec.trainer.template.metadata.labels", "rollcall.dev/job is reserved for the operator"),
        {"spec.trainer.template.metadata.labels": {"rollcall.dev/job": "mine"}},
    ),
    _reported(
        "a misspelt field in a template",
        (f"{TRAINER}.containers[0].imagePolicy", "field not declared in schema"),
        {f"{TRAINER}.containers[0].imagePolicy": "Always"},
    ),
    _reported(
        "a mount of no volume",
        (f"{ROLLOUT}.containers[0].volumeMounts[0].name", "Not found"),
        {f"{ROLLOUT}.containers[0].volumeMounts": [{"name": "data", "mountPath": "/data"}]},
    ),
    _reported(
        "an egress rule that is none",
        ("spec.networkPolicy.egress[0].to[0].ipBlock.cidr", "Invalid value"),
        {"spec.networkPolicy": {"egress": [{"to": [{"ipBlock": {"cidr": "everywhere"}}]}]}},
    ),
    _reported(
        "a misspelt field in an egress rule",
        ("spec.networkPolicy.egress[0].form", "field not declared in schema"),
        {"spec.networkPolicy": {"egress": [{"form": []}]}},
    ),
    _reported(
        "a container name that pods do not take",
        (f"{TRAINER}.containers[0].name", "Main_Container", "lower case"),
        {f"{TRAINER}.containers[0].name": "Main_Container"},
    ),
    _reported(
        "a limit under its request",
        (f"{ROLLOUT}.containers[0].resources.requests", "less than or equal to memory limit"),
        {f"{ROLLOUT}.containers[0].resources.limits": {"memory": "64Mi"}},
    ),
    _reported(
        "a pool's name that is taken",
        ("spec.rollouts[0].name", "RolloutPool bad-cpu exists and is not owned by this RLJob"),
        {},
        before=(changed(pool(), {"metadata.name": "bad-cpu"}),),
    ),
    _reported(
        "a training engine changed while it runs",
        ("spec.trainer.engine.config", "is immutable while the job is not suspended"),
        {},
        then={"spec.trainer.engine.config": {"offload": "optimizer"}},
    ),
    _reported(
        "a builtin model for vllm",
        ("spec.rollouts[0].engine.name", "vllm does not serve builtin models"),
        {"spec.rollouts[0].engine": {"name": "vllm"}},
    ),
    _reported(
        "adapters for an engine that does not serve them",
        ("spec.rollouts[0].engine.name", "tiny does not serve adapters; name vllm"),
        {
            "spec.rollouts[0].engine": {"name": "tiny"},
            "spec.trainer.engine.config": {"loraRank": 8, "loraExport": "adapter"},
        },
    ),
    _reported(
        "an adapter without a rank",
        ("spec.trainer.engine.config", "loraRank must be at least 1 when loraExport is adapter"),
        {
            "spec.model.path": "/model",
            "spec.rollouts[0].engine": {"name": "vllm"},
            "spec.trainer.engine.config": {"loraExport": "adapter"},
        },
    ),
    _reported(
        "a rank that vllm does not serve",
        ("spec.trainer.engine.config", "loraRank must be at most 512"),
        {"spec.trainer.engine.config": {"loraRank": 513}},
    ),
    _reported(
        "a moving reference of another model with adapters",
        ("spec.reference.path", "the policy's adapter fits the job's own model alone"),
        {
            "spec.reference": {"path": "/models/other", "updateEvery": 5},
            "spec.algorithm.settings": {"klCoefficient": "0.1"},
            "spec.model.path": "/model",
            "spec.rollouts[0].engine": {"name": "vllm"},
            "spec.trainer.engine.config": {"loraRank": 8, "loraExport": "adapter"},
        },
    ),
    _reported(
        "an unknown setting of vllm",
        ("spec.rollouts[0].engine.config.maxLen", "unknown setting; known: arguments"),
        {
            "spec.model.path": "/model",
            "spec.rollouts[0].engine": {"name": "vllm", "config": {"maxLen": 3}},
        },
    ),
    _reported(
        "an argument of vllm that Rollcall sets",
        ("spec.rollouts[0].engine.config", "arguments must not have --port"),
        {
            "spec.model.path": "/model",
            "spec.rollouts[0].engine": {"name": "vllm", "config": {"arguments": "--port 80"}},
        },
    ),
    _reported(
        "more ranks of vllm than accelerators",
        ("spec.rollouts[0].engine.config", "tensorParallelSize 4 needs as many accelerators"),
        {
            "spec.model.path": "/model",
            "spec.rollouts[0].engine": {"name": "vllm", "config": {"tensorParallelSize": 4}},
            f"{ROLLOUT}.containers[0].resources": {"limits": {"nvidia.com/gpu": 2}},
        },
    ),
    _reported(
        "a builtin model for sglang",
        ("spec.rollouts[0].engine.name", "sglang does not serve builtin models"),
        {"spec.rollouts[0].engine": {"name": "sglang"}},
    ),
    _reported(
        "a setting of sglang out of its range",
        ("spec.rollouts[0].engine.config", "memFractionStatic must be at least 0 and below 1"),
        {
            "spec.model.path": "/model",
            "spec.rollouts[0].engine": {"name": "sglang", "config": {"memFractionStatic": "1.5"}},
        },
    ),
    _reported(
        "an argument of sglang with which no update reaches all weights",
        ("spec.rollouts[0].engine.config", "arguments must not have --dp-size"),
        {
            "spec.model.path": "/model",
            "spec.rollouts[0].engine": {"name": "sglang", "config": {"arguments": "--dp-size 2"}},
        },
    ),
    _reported(
        "a sampling whose log-probabilities sglang does not say",
        ("spec.algorithm.sampling.topP", "must be 1 with sglang", "spec.rollouts[0].engine.name"),
        {
            "spec.model.path": "/model",
            "spec.rollouts[0].engine": {"name": "sglang"},
            "spec.algorithm.sampling": {"topP": "0.9"},
        },
    ),
    _reported(
        "an unknown setting of a training engine",
        ("spec.trainer.engine.config.cpuOffload", "unknown setting; engine fsdp2 has: activ"),
        {"spec.trainer.engine.config": {"cpuOffload": True}},
    ),
    _reported(
        "a setting that the training engine lacks",
        (
            "spec.trainer.engine.config.pipelineParallel",
            "engine fsdp2 does not have this setting",
        ),
        {"spec.trainer.engine.config": {"pipelineParallel": 2}},
    ),
    _reported(
        "a setting of a training engine out of its range",
        ("spec.trainer.engine.config", "precision must be one of fp32, bf16"),
        {"spec.trainer.engine.config": {"precision": "fp8"}},
    ),
    _reported(
        "a setting of a training engine of another type",
        ("spec.trainer.engine.config.packing", "'yes' is not of type bool"),
        {"spec.trainer.engine.config": {"packing": "yes"}},
    ),
    _reported(
        "a device mesh that the ranks do not fill",
        (
            "spec.trainer.engine.config",
            "replicas 2 does not divide the number of ranks, 3 (spec.trainer.replicas 3 x",
        ),
        {"spec.trainer.replicas": 3, "spec.trainer.engine.config": {"replicas": 2}},
    ),
    _reported(
        "a CPU beside accelerators",
        ("spec.trainer.device", "would leave idle the 8 nvidia.com/gpu", "remove one of them"),
        {
            "spec.trainer.device": "cpu",
            f"{TRAINER}.containers[0].resources.limits": {"nvidia.com/gpu": 8},
        },
    ),
    _reported(
        "claims of devices whose number is not said",
        ("spec.trainer.processesPerPod", "claims (gpus) are not counted; set it to their number"),
        {
            f"{TRAINER}.resourceClaims": [{"name": "gpus", "resourceClaimName": "four-gpus"}],
            f"{TRAINER}.containers[0].resources": {"claims": [{"name": "gpus"}]},
        },
    ),
    _reported(
        "more ranks in a pod than accelerators",
        ("spec.trainer.processesPerPod", "4 processes need as many accelerators", "for 2 nvidia"),
        {
            "spec.trainer.processesPerPod": 4,
            f"{TRAINER}.containers[0].resources.limits": {"nvidia.com/gpu": 2},
        },
    ),
    _reported(
        "more accelerators than a pod has ranks",
        ("spec.trainer.processesPerPod", "a pod has at most 64 processes; set processesPerPod"),
        {f"{TRAINER}.containers[0].resources.limits": {"nvidia.com/gpu": 65}},
    ),
    _reported(
        "algorithm settings that contradict each other",
        (
            "spec.algorithm.settings",
            "normalisation must not be group-std when baseline is critic",
            "change one of them",
        ),
        {
            "spec.algorithm.name": "ppo",
            "spec.algorithm.settings.normalisation": "group-std",
        },
    ),
    _reported(
        "no steps for a batch",
        ("spec.trainer.engine.config", "minibatches must be at least 1"),
        {"spec.trainer.engine.config": {"minibatches": 0}},
    ),
    _reported(
        "deterministic with dynamic sampling",
        ("spec.algorithm.settings.dynamicSampling", "must be false when deterministic is true"),
        {
            "spec.algorithm.name": "dapo",
            "spec.algorithm.deterministic": True,
            "spec.algorithm.maxStaleness": 0,
        },
    ),
    _reported(
        "a reference without a KL term",
        ("spec.reference", "nothing uses a reference model", "klCoefficient above 0"),
        {"spec.reference.path": "org/other"},
    ),
    _reported(
        "pods for a reference without a KL term",
        ("spec.reference", "nothing uses a reference model", "or remove spec.reference"),
        {**OWN_REFERENCE, "spec.algorithm.settings.klCoefficient": "0"},
    ),
    _reported(
        "pods for a reference in supervised training",
        ("spec.reference", "supervised training has no use for it; remove it"),
        {
            **{f"spec.{field}": DELETE for field in ("algorithm", "reward", "rollouts")},
            "spec.supervised": {},
            "spec.reference": OWN_REFERENCE["spec.reference"],
        },
    ),
    _reported(
        "a reference pod with two accelerators",
        ("spec.reference.template", "computes on one device", "raise spec.reference.replicas"),
        {**OWN_REFERENCE, f"{REFERENCE}.containers[0].resources.limits": {"nvidia.com/gpu": 2}},
    ),
    _reported(
        "a reference on the CPU beside its accelerator",
        ("spec.reference.device", "cpu would leave idle the 1 nvidia.com/gpu", "remove one"),
        {
            **OWN_REFERENCE,
            "spec.reference.device": "cpu",
            f"{REFERENCE}.containers[0].resources.limits": {"nvidia.com/gpu": 1},
        },
    ),
    _reported(
        "a reference pod whose worker is not clear",
        ("spec.reference.template.spec.containers", "name that container 'reference'"),
        {
            **OWN_REFERENCE,
            f"{REFERENCE}.containers": [{"name": n, "image": "x"} for n in ("one", "two")],
        },
    ),
    _reported(
        "rollouts whose name is that of the reference's pods",
        ("spec.rollouts[0].name", "have a Deployment of this name", "choose another name"),
        {**OWN_REFERENCE, "spec.rollouts[0].name": "reference"},
    ),
    _reported(
        "a critic without a use",
        ("spec.critic", "nothing uses a critic", "baseline: critic"),
        {"spec.critic.warmupSteps": 5},
    ),
    _reported(
        "supervised training that rollouts would evaluate",
        ("spec.evaluation", "no rollouts that could answer", "use spec.supervised.evaluation"),
        {**NO_ALGORITHM, "spec.supervised": {}, "spec.evaluation": EVALUATION},
    ),
    _reported(
        "supervised training with a reward model",
        ("spec.rewardModel", "supervised training has no use for it; remove it"),
        {**NO_ALGORITHM, "spec.supervised": {}, "spec.rewardModel.path": "org/other"},
    ),
    *(
        _reported(
            f"an External trainer with {field}",
            (f"spec.{field}", "must not be given with trainer.kind: External", "remove it"),
            {**EXTERNAL, f"spec.{field}": value},
        )
        for field, value in {
            "reference": {"path": "org/other"},
            "critic": {"warmupSteps": 5},
            "trainer.engine": {"config": {"precision": "bf16"}},
            "trainer.recoverFrom": "Rollouts",
        }.items()
    ),
    _reported(
        "a group of one",
        ("spec.algorithm.groupSize", "must be at least 2 with baseline group-mean", "raise it"),
        {"spec.algorithm.groupSize": 1},
    ),
    _reported(
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
        "pool: a job without a use for rollouts",
        "condition",
        "RolloutPool",
        ("spec.jobRef.name", "the RLJob is supervised", "delete the pool"),
        before=(supervised_job(),),
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

REPORTED_WHEN_PODS_RUN: tuple[Case, ...] = (
    _reported(
        "a trainer image that cannot be pulled",
        (f"{TRAINER}.containers[0].image", "cannot be pulled", "correct the name"),
        {f"{TRAINER}.containers[0].image": _NO_SUCH_IMAGE},
        expected=Expected(TRAINER_NOT_READY, "False", "ImagePullFailed"),
    ),
    _reported(
        "a rollout image that cannot be pulled",
        (f"{ROLLOUT}.containers[0].image", "cannot be pulled", "imagePullSecrets"),
        {f"{ROLLOUT}.containers[0].image": _NO_SUCH_IMAGE},
        expected=Expected(ROLLOUTS_NOT_READY, "False", "ImagePullFailed"),
    ),
    _reported(
        "a rollout command that exits at once",
        (f"{ROLLOUT}.containers[0]", "exit code 3: out of ideas", "correct its command"),
        {
            f"{ROLLOUT}.containers[0].command": [
                "python3",
                "-c",
                "raise SystemExit(print('out of ideas') or 3)",
            ]
        },
        expected=Expected(ROLLOUTS_NOT_READY, "False", "CrashLoop"),
    ),
    _reported(
        "a trainer command that exits at once",
        ("the trainer restarted", "exit code 3: out of ideas", "spec.failurePolicy"),
        {
            "spec.failurePolicy.maxRestarts": 0,
            f"{TRAINER}.containers[0].command": [
                "python3",
                "-c",
                "raise SystemExit(print('out of ideas') or 3)",
            ],
        },
        expected=Expected("Failed", "True", "BackoffLimitExceeded"),
    ),
    _reported(
        "a command that is not in the image",
        (f"{ROLLOUT}.containers[0]", "no-such-command"),
        {f"{ROLLOUT}.containers[0].command": ["no-such-command"]},
        expected=Expected(ROLLOUTS_NOT_READY, "False", "CannotStart"),
    ),
    _reported(
        "a reward function that does not import",
        ("spec.reward.function", "no_such_module"),
        {"spec.reward.function": "no_such_module:reward"},
        expected=Expected(ROLLOUTS_NOT_READY, "False", "BadConfig"),
    ),
    _reported(
        "a builtin model that there is not",
        ("spec.model.path", "no-such-model"),
        {"spec.model.path": "builtin:no-such-model"},
        expected=Expected("Failed", "True", "BadConfig"),
    ),
    _reported(
        "more CPU than any node has",
        (f"{TRAINER}:", "cannot be scheduled", "Insufficient cpu", "requests"),
        {f"{TRAINER}.containers[0].resources.requests.cpu": "10000"},
        expected=Expected(TRAINER_NOT_READY, "False", "Unschedulable"),
    ),
    _reported(
        "a claim that does not exist",
        (f"{TRAINER}:", "cannot be scheduled", 'persistentvolumeclaim "no-such-claim"'),
        {"spec.trainer.checkpoint.volume.persistentVolumeClaim.claimName": "no-such-claim"},
        expected=Expected(TRAINER_NOT_READY, "False", "Unschedulable"),
    ),
)
