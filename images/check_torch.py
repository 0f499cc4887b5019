"""Ends with an error unless torch shards a model and trains it, with stubs of CUDA's libraries."""

import os

import torch
from torch import distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

assert not torch.cuda.is_available()
os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the container of a build may have no other
distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(8, 8)
before = model.weight.detach().clone()
fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
model(torch.ones(2, 8)).sum().backward()
torch.optim.AdamW(model.parameters()).step()
assert isinstance(model.weight, DTensor)
assert not torch.equal(before, model.weight.full_tensor())
distributed.destroy_process_group()
