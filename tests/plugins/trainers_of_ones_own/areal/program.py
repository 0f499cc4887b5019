"""AReaL's PPOTrainer with its workflow RLVRWorkflow, and Rollcall's class in the place of its own.

Arguments: a model, a folder for what AReaL writes, and settings as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

from areal.api import cli_args as areal
from datasets import Dataset

from rollcall.areal import PPOTrainer

WORDS = ["queue", "audio", "eerie", "ouija"]
BATCH, GROUP = len(WORDS), 8
NAMES = {"experiment_name": "rollcall", "trial_name": "one"}
HERE = f"{Path(__file__).stem}."  # its functions, by names that AReaL imports


def reward(prompt: str, completion: str, *ids: object, **data: object) -> float:
    """The share of a response's letters that are vowels."""
    del prompt, ids, data
    return sum(letter in "aeiou" for letter in completion) / max(1, len(completion))


def tokens(prompt: str, tokenizer: Any, thinking: bool) -> list[int]:
    """Without a chat template: the model has none."""
    del thinking
    return list(tokenizer.encode(prompt, add_special_tokens=False))


def word(data: dict[str, str]) -> str:
    """The prompt of a row."""
    return data["word"]


def config(model: str, folder: Path, settings: dict[str, Any]) -> areal.GRPOConfig:
    """A small one, on the CPU."""
    names = folder / "names"
    names.mkdir(parents=True, exist_ok=True)
    ranks = settings.get("ranks", 1)
    where = {**NAMES, "fileroot": str(folder)}
    worker = areal.SchedulingSpec(cpu=1, mem=1, gpu=0, cmd="python -m areal.infra.rpc.rpc_server")
    return areal.GRPOConfig(
        **NAMES,
        total_train_steps=settings["steps"],
        tokenizer_path=model,
        cluster=areal.ClusterSpecConfig(
            fileroot=str(folder),
            name_resolve=areal.NameResolveConfig(nfs_record_root=str(names)),
        ),
        gconfig=areal.GenerationHyperparameters(n_samples=GROUP, max_new_tokens=8),
        rollout=areal.InferenceEngineConfig(
            **where,
            backend="sglang:d2",
            max_concurrent_rollouts=32,
            consumer_batch_size=BATCH,
            scheduling_spec=(worker,),
        ),
        actor=areal.PPOActorConfig(
            **NAMES,
            path=model,
            backend=f"fsdp:d{ranks}",
            dtype="float32",
            attn_impl="sdpa",
            # Without flash-attn, AReaL lets packed sequences attend to each other: one in each.
            mb_spec=areal.MicroBatchSpec(n_mbs=BATCH * GROUP // ranks),
            optimizer=areal.OptimizerConfig(lr=5e-3, weight_decay=0.0),
            adv_norm=areal.NormConfig(mean_level="group", std_level="group", group_size=GROUP),
            kl_ctl=0.0,
            ppo_n_minibatches=1,
            scheduling_spec=(worker,),
        ),
        train_dataset=areal.TrainDatasetConfig(path="", type="rl", batch_size=BATCH),
        saver=areal.SaverConfig(**where),
        valid_dataset=areal.ValidDatasetConfig(path="", type="rl", batch_size=BATCH),
        evaluator=areal.EvaluatorConfig(**where, freq_steps=4),
        stats_logger=areal.StatsLoggerConfig(**where),
        recover=areal.RecoverConfig(**where, mode="on", freq_steps=1),
        scheduler=areal.SchedulerConfig(type="local"),
    )


def main() -> None:
    """Train."""
    model, folder, settings = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    chosen = config(model, folder, settings)
    data = Dataset.from_dict({"word": WORDS * 50})
    workflow = "areal.workflow.rlvr.RLVRWorkflow"
    settings_of_it = {
        "reward_fn": f"{HERE}reward",
        "get_input_ids_fn": f"{HERE}tokens",
        "data_extract_prompt_fn": f"{HERE}word",
        "gconfig": chosen.gconfig,
        "tokenizer": model,
    }
    with PPOTrainer(chosen, train_dataset=data, valid_dataset=data.select(range(4))) as trainer:
        trainer.train(
            workflow=workflow,
            workflow_kwargs=settings_of_it,
            eval_workflow=workflow,
            eval_workflow_kwargs=settings_of_it,
        )


if __name__ == "__main__":
    main()
