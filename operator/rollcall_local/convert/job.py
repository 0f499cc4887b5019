"""An RLJob of the settings of a job of verl: pure, no file is opened."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from rollcall_local.convert.algorithm import algorithm, critic, weight_sync
from rollcall_local.convert.engines import inference_engine, ranks, tensor_parallel, training_engine
from rollcall_local.convert.settings import Ending, VerlSettings
from rollcall_local.convert.source import ConvertError
from rollcall_operator.api.scalars import JOB_NAME_MAX
from rollcall_operator.plan.children.pod_template import variable

IMAGE = "registry.example.com/rollcall/worker-cuda:dev"
_REWARD = ("reward.custom_reward_function", "custom_reward_function")
_REWARD_MODEL = ("reward.reward_model.enable", "reward_model.enable")
_TOO_LONG = {"error": "Fail", "left": "TruncateLeft", "right": "TruncateRight"}
_HOME = re.compile(r"^(~|\$HOME|\$\{HOME\})/")
_REASONS = {
    "trainer.v1": "of verl's own trainer",
    "trainer.resume": "a job that starts again goes on from its newest checkpoint",
    "trainer.default_local_dir": "checkpoints are on spec.trainer.checkpoint.volume",
    "trainer.val_before_train": "the first evaluation is at step everySteps",
    "trainer.experiment_name": "is the job's name",
    "trainer.use_legacy_worker_impl": "of verl's own workers",
    "actor_rollout_ref.actor.ppo_micro_batch_size": "see maxTokensPerMicrobatch",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "without effect: no use_dynamic_bsz",
    "actor_rollout_ref.ref.": "the reference has the actor's settings, or pods of its own",
    "actor_rollout_ref.rollout.log_prob": "the actor's micro-batches are used",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "a rollout has its cards for itself; see "
    "gpuMemoryUtilization",
    "actor_rollout_ref.rollout.load_format": "rollouts get their weights from the trainer",
    "actor_rollout_ref.rollout.layered_summon": "weights are sent tensor by tensor",
    "actor_rollout_ref.rollout.free_cache_engine": "a rollout has its cards for itself",
    "actor_rollout_ref.rollout.multi_turn": "several turns: spec.environment, by hand",
    "actor_rollout_ref.rollout.agent": "several turns: spec.environment, by hand",
    "actor_rollout_ref.rollout.checkpoint_engine": "spec.weightSync.engine chooses the transport",
    "actor_rollout_ref.rollout.val_kwargs": "evaluation samples as training does",
    "critic.": "the critic has the actor's settings, but for its learning rate",
    "data.shuffle": "each pass over the prompts has an order of its own",
    "data.val_batch_size": "spec.evaluation.prompts is how many prompts are answered",
    "data.filter_overlong_prompts_workers": "rows are measured as they come",
    "reward.": "by hand: docs/coming-from/verl.md",
    "reward_model.": "by hand: docs/coming-from/verl.md",
    "global_profiler": "of verl's own processes",
    "ray_kwargs": "there is no Ray",
    "transfer_queue": "of verl's own processes",
}


@dataclass(frozen=True, slots=True)
class Converted:
    """The manifest, and what became of settings that are not in it."""

    body: dict[str, Any]
    ending: Ending


def convert(given: Mapping[str, Any], name: str = "") -> Converted:
    """The RLJob, which may lack what verl takes from the data; ConvertError for a wrong value.

    `name` is the job's; empty: that of verl's experiment.
    """
    settings = VerlSettings(given)
    job = name or _job_name(settings.text("trainer.experiment_name"))
    files = _Files()
    learning = algorithm(settings)
    spec: dict[str, Any] = {
        "model": {"path": files.model(settings.text("actor_rollout_ref.model.path"))},
        "data": _data(settings, files),
        "reward": _reward(settings, files),
        "rewardModel": _reward_model(settings, files),
        "trainer": _trainer(settings, job, learning.get("maxSteps")),
        "rollouts": [_pool(settings, learning["promptsPerStep"])],
        "algorithm": learning,
        "critic": _critic(settings, files),
        "evaluation": _evaluation(settings, files),
        "tracking": _tracking(settings),
        "weightSync": weight_sync(settings),
    }
    spec = {field: value for field, value in spec.items() if value}
    pods = (spec["trainer"], "trainer"), (spec["rollouts"][0], "rollout")
    for pod, container in pods:
        pod["template"] = _template(settings, container, files, _gpus(settings, container))
    if files.claim_needed:
        settings.say("files", f"of the job: put them on the volume of the claim {CLAIM}")
    metadata = {"name": job}
    body = {"apiVersion": "rollcall.dev/v1alpha1", "kind": "RLJob", "metadata": metadata}
    return Converted({**body, "spec": spec}, settings.ending(_REASONS, "nothing takes its place"))


CLAIM = "files"


class _Files:
    """Paths in the containers for paths of verl's machine, and what has to be mounted for them."""

    def __init__(self) -> None:
        self.folders: set[str] = set()
        self.modules = ""

    @property
    def claim_needed(self) -> bool:
        return bool(self.folders)

    def path(self, text: str) -> str:
        """Of a file: what was below the home folder is below /."""
        found = _HOME.sub("/", text)
        if "://" in found:
            return found
        if not found.strip("/"):
            raise ConvertError(f"a path must name a file or a folder, not {text!r}")
        found = str(PurePosixPath("/", found))
        self.folders.add(f"/{PurePosixPath(found).parts[1]}")
        return found

    def model(self, text: str) -> str:
        """Of a model: a name of the hub stays."""
        return self.path(text) if text.startswith(("/", "~", "$", ".")) else text


def _job_name(experiment: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", experiment.lower()).strip("-")
    return re.sub(r"^[^a-z]+", "", name)[:JOB_NAME_MAX].strip("-") or "verl"


def _data(settings: VerlSettings, files: _Files) -> dict[str, Any]:
    found = settings.get("data.train_files")
    names = [files.path(str(name)) for name in (found if isinstance(found, list) else [found])]
    column = settings.text("data.prompt_key")
    sources = [
        {"name": name, **({"column": column} if column != "prompt" else {})} for name in names
    ]
    data: dict[str, Any] = {"sources": sources}
    if len(names) == 1 and column == "prompt":
        data = {"prompts": names[0]}
    elif len(names) > 1:
        settings.say(
            "data.train_files", "the sources take turns; verl has them one after the other"
        )
    data["maxTokens"] = settings.count("data.max_prompt_length")
    truncation = settings.text("data.truncation")
    if settings.flag("data.filter_overlong_prompts"):
        data["tooLong"] = "Drop"
    elif truncation in _TOO_LONG:
        data["tooLong"] = _TOO_LONG[truncation]
    else:
        settings.say(
            "data.truncation", "there is TruncateLeft and TruncateRight; Fail is the default"
        )
    if (seed := settings.whole("data.seed")) is not None:
        data["seed"] = seed
    for key in ("data.train_max_samples", "data.val_max_samples"):
        if (settings.whole(key) or -1) > 0:
            settings.say(key, "all rows are used; make a smaller file")
    return data


def _reward(settings: VerlSettings, files: _Files) -> dict[str, str]:
    """The user's function, or verl's own, called as verl does."""
    path = settings.text(*(f"{above}.path" for above in _REWARD))
    if not path:
        settings.say(
            f"{_REWARD[0]}.path",
            "verl's own function chooses by each row's data_source; the rollouts' image needs verl",
        )
        return {"function": "verl.utils.reward_score:default_compute_score", "style": "verl"}
    file = PurePosixPath(files.path(path))
    files.modules = str(file.parent)
    name = settings.text(*(f"{above}.name" for above in _REWARD)) or "compute_score"
    return {"function": f"{file.stem}:{name}", "style": "verl"}


def _reward_model(settings: VerlSettings, files: _Files) -> dict[str, Any]:
    if not settings.flag(*_REWARD_MODEL):
        return {}
    path = settings.text("reward.reward_model.model_path", "reward_model.model.path")
    settings.say(_REWARD_MODEL[0], "its score is added to that of spec.reward.function")
    return {"path": files.model(path)}


def _critic(settings: VerlSettings, files: _Files) -> dict[str, Any]:
    found = critic(settings) or {}
    return {**found, **({"path": files.model(found["path"])} if "path" in found else {})}


def _evaluation(settings: VerlSettings, files: _Files) -> dict[str, Any]:
    every, found = settings.whole("trainer.test_freq") or 0, settings.get("data.val_files")
    if every < 1:
        return {}
    names = found if isinstance(found, list) else [found]
    if len(names) > 1:
        settings.say("data.val_files", "the first of them is evaluated")
    settings.say("trainer.test_freq", "64 of the prompts are answered: spec.evaluation.prompts")
    samples = settings.whole("actor_rollout_ref.rollout.val_kwargs.n") or 1
    return {"everySteps": every, "source": {"name": files.path(str(names[0]))}, "samples": samples}


def _tracking(settings: VerlSettings) -> dict[str, Any]:
    found = settings.get("trainer.logger")
    loggers = found if isinstance(found, list) else [found]
    project = settings.text("trainer.project_name")
    others = sorted({str(logger) for logger in loggers} - {"console", "wandb"})
    if others and settings.given("trainer.logger"):
        why = f"not {', '.join(others)}: Weights & Biases, and TensorBoard by spec.tracking.folder"
        settings.say("trainer.logger", why)
    return {"wandbProject": project} if "wandb" in loggers else {}


def _trainer(settings: VerlSettings, job: str, steps: int | None) -> dict[str, Any]:
    trainer: dict[str, Any] = {"replicas": settings.count("trainer.nnodes")}
    if settings.text("trainer.device") == "cpu":
        trainer["device"] = "cpu"
    trainer["engine"] = training_engine(settings, steps)
    every = settings.whole("trainer.save_freq") or 0
    if every > 0:
        volume = {"persistentVolumeClaim": {"claimName": f"{job}-checkpoints"}}
        trainer["checkpoint"] = {"everySteps": every, "volume": volume}
    return trainer


def _pool(settings: VerlSettings, prompts: int) -> dict[str, Any]:
    nodes = settings.whole("actor_rollout_ref.rollout.nnodes") or 0
    each = settings.whole("actor_rollout_ref.rollout.n_gpus_per_node") or 0
    cards = nodes * each or ranks(settings)
    if not nodes:
        why = f"{cards} for the trainer, and {cards} more for rollouts: verl shares them"
        settings.say("trainer.n_gpus_per_node", why)
    replicas = max(1, cards // tensor_parallel(settings))
    engine = inference_engine(settings, prompts=prompts, replicas=replicas)
    return {"name": "rollout", "replicas": replicas, "engine": engine}


def _gpus(settings: VerlSettings, container: str) -> dict[str, int]:
    device = settings.text("trainer.device")
    count = settings.count("trainer.n_gpus_per_node")
    count = count if container == "trainer" else tensor_parallel(settings)
    if device == "npu":
        settings.say("trainer.device", "docs/how-to/ascend.md has the names of devices and images")
    return {"nvidia.com/gpu": count} if device == "cuda" else {}


def _template(
    settings: VerlSettings, name: str, files: _Files, gpus: dict[str, int]
) -> dict[str, Any]:
    container: dict[str, Any] = {"name": name, "image": IMAGE}
    if name == "rollout" and files.modules:
        container["env"] = [variable("PYTHONPATH", files.modules)]
    if files.folders:
        container["volumeMounts"] = [
            {"name": CLAIM, "mountPath": folder, "subPath": folder[1:], "readOnly": True}
            for folder in sorted(files.folders)
        ]
    if gpus:
        container["resources"] = {"limits": gpus}
    settings.say("image", f"of the job: {IMAGE} is to be replaced by your own")
    spec: dict[str, Any] = {"containers": [container]}
    if files.folders:
        spec["volumes"] = [{"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM}}]
    return {"spec": spec}
