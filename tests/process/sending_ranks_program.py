"""A trainer of several ranks, each of which sends its part of the weights; torchrun starts it.

Prints a line of JSON for each step: what `publish` returned or raised in this rank, and in rank 0
how far the samples' log-probabilities are from those of the whole model.
"""

import json
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import rollcall
from rollcall_runtime.models.open_model import open_model
from tests.process.external_job import PROMPTS, random_weights, worst_logprob

LAYOUT, STEPS = sys.argv[1], int(sys.argv[2])
FAILING_STEP = -1 if LAYOUT == "columns" else 2  # in the last rank; not where all have to gather
MODEL = "builtin:reverse-tiny"


def spread(model: torch.nn.Module) -> torch.nn.Module:
    """The model over all ranks, as LAYOUT says."""
    ranks = dist.get_world_size()
    if LAYOUT == "sharded":
        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    if LAYOUT == "sharded in replicas":
        mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replica", "shard"))
        fully_shard(model, mesh=mesh)
    if LAYOUT == "columns":
        mesh = init_device_mesh("cpu", (ranks,))
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                dimension = 1 if parameter.ndim > 1 else 0
                cut = distribute_tensor(parameter.data, mesh, [Shard(dimension)])
                module.register_parameter(name, torch.nn.Parameter(cut))
    return model  # whole in each rank


def fill(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Take these weights, each rank what it holds of them."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            held = parameter.data
            if isinstance(held, DTensor):
                held.copy_(distribute_tensor(weights[name], held.device_mesh, held.placements))
            else:
                held.copy_(weights[name])


def tensors(model: torch.nn.Module, step: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Those of the model; one rank fails half-way in FAILING_STEP."""
    for number, pair in enumerate(model.named_parameters()):
        if number == 2 and step == FAILING_STEP and dist.get_rank() == dist.get_world_size() - 1:
            raise ValueError("no more tensors")
        yield pair


def main() -> None:
    dist.init_process_group("gloo")
    whole = open_model(MODEL).build()
    model = spread(open_model(MODEL).build())
    with rollcall.Trainer(every_rank_sends=True) as rollouts:
        for step in range(STEPS):
            weights = random_weights(whole, step)
            fill(model, weights)
            line: dict[str, object] = {"rank": dist.get_rank(), "step": step}
            try:
                outcome = rollouts.publish(tensors(model, step), step)
                line |= {"version": outcome.version, "members": outcome.members}
                line |= {"left_out": dict(outcome.left_out)}
            except (rollcall.RollcallError, ValueError) as error:
                line |= {"error": f"{type(error).__name__}: {error}"}
            if dist.get_rank() == 0 and "version" in line:
                groups = rollouts.generate(PROMPTS, n=2, max_tokens=6)
                line |= {"worst": worst_logprob(whole, groups, weights)}
            sys.stdout.write(json.dumps(line) + "\n")  # in one piece, beside the other ranks
            sys.stdout.flush()
            time.sleep(0.3)  # else training may be over before the test kills a rollout
            dist.barrier()
        rollouts.finish(STEPS)


if __name__ == "__main__":
    main()
