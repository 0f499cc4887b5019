"""A program of several ranks in several pods; it fails if samples are of other weights."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import rollcall
from rollcall_runtime.models.open_model import open_model

MODEL, PROMPT = "builtin:reverse-tiny", [0, 3, 4, 5, 6, 7, 1]
STEPS = int(sys.argv[1])


def main() -> None:
    dist.init_process_group("gloo")
    whole, model = open_model(MODEL).build(), open_model(MODEL).build()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    with rollcall.Trainer(every_rank_sends=True) as rollouts:
        for step in range(STEPS):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.01)
            rollouts.publish(model.named_parameters(), step)
            gathered = {name: whole_of(tensor) for name, tensor in model.named_parameters()}
            if dist.get_rank() == 0:
                whole.load_state_dict(gathered, strict=False)
                (group,) = rollouts.generate([PROMPT], max_tokens=5)
                check(whole, group.samples[0])
                rollouts.report(step + 1, reward=0.0)
        rollouts.finish(STEPS)


def whole_of(tensor: torch.Tensor) -> torch.Tensor:
    """Collective."""
    assert isinstance(tensor, DTensor)
    return tensor.full_tensor().detach()


def check(model: torch.nn.Module, sample: rollcall.SampledResponse) -> None:
    with torch.no_grad():
        logprobs = model(torch.tensor([[*PROMPT, *sample.tokens]])).log_softmax(-1)[0]
    for place, (token, logprob) in enumerate(zip(sample.tokens, sample.logprobs, strict=True)):
        own = float(logprobs[len(PROMPT) - 1 + place, token])
        assert abs(own - logprob) < 1e-3, f"{own}, and the sample has {logprob}"


if __name__ == "__main__":
    main()
