"""Rollcall for programs of your own.

A trainer publishes weights to rollouts that come and go, and samples:

```python
with rollcall.Trainer() as rollouts:
    for step in range(steps):
        rollouts.publish(model.named_parameters(), step)
        groups = rollouts.generate(prompts, n=8, max_tokens=256)
        train(model, groups)
    rollouts.finish(steps)
```

It runs as the trainer of an RLJob with `trainer.kind: External`. A rollout takes the weights:

```python
with rollcall.Rollout.join() as rollout:
    while True:
        for name, tensor in rollout.receive(at_least=(rollout.version or 0) + 1):
            load(name, tensor)
```

It runs in a rollout pod of any RLJob, in the place of `rollcall-rollout`.
"""

from rollcall.errors import RollcallError
from rollcall.results import Outcome, ResponseGroup, RolloutEvent, SampledResponse
from rollcall.rollout import Rollout
from rollcall.trainer import Trainer

__all__ = [
    "Outcome",
    "ResponseGroup",
    "RollcallError",
    "Rollout",
    "RolloutEvent",
    "SampledResponse",
    "Trainer",
]
