"""Rollcall for trainers of your own: publish weights to rollouts that come and go, and sample.

```python
with rollcall.Trainer() as rollouts:
    for step in range(steps):
        rollouts.publish(model.named_parameters(), step)
        groups = rollouts.generate(prompts, n=8, max_tokens=256)
        train(model, groups)
    rollouts.finish(steps)
```

The program runs as the trainer of an RLJob with `trainer.kind: External`.
"""

from rollcall.errors import RollcallError
from rollcall.results import Outcome, ResponseGroup, RolloutEvent, SampledResponse
from rollcall.trainer import Trainer

__all__ = [
    "Outcome",
    "ResponseGroup",
    "RollcallError",
    "RolloutEvent",
    "SampledResponse",
    "Trainer",
]
