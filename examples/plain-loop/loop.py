"""A trainer of one's own in a plain loop: a small model learns to reverse five symbols.

Any loop has these lines: `publish` brings its weights to the rollouts, `generate` gets their
samples. The rest is REINFORCE, with the mean of a prompt's samples as the baseline.
"""

import random

import torch

import rollcall
from rollcall_runtime.models.open_model import open_model

STEPS, PROMPTS, SAMPLES = 300, 16, 16
BEGIN, ASK, SYMBOLS = 0, 1, range(3, 13)  # the numbers of the model's tokens


def new_prompts() -> list[list[int]]:
    """Five symbols between two marks."""
    return [[BEGIN, *random.choices(SYMBOLS, k=5), ASK] for _ in range(PROMPTS)]


def reward(prompt: tuple[int, ...], answer: tuple[int, ...]) -> float:
    """The share of the five symbols that are in their reversed places."""
    wanted = prompt[-2:0:-1]
    return sum(a == b for a, b in zip(answer, wanted, strict=False)) / len(wanted)


def loss_of(model: torch.nn.Module, groups: list[rollcall.ResponseGroup]) -> torch.Tensor:
    """Of the samples' log-probabilities, each weighed by how good the sample is in its group."""
    losses = []
    for group in groups:
        rewards = torch.tensor([reward(group.prompt, s.tokens) for s in group.samples])
        rows = [torch.tensor([*group.prompt, *s.tokens]) for s in group.samples]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        logprobs = model(tokens)[:, len(group.prompt) - 1 : -1].float().log_softmax(-1)
        chosen = logprobs.gather(-1, tokens[:, len(group.prompt) :, None]).squeeze(-1)
        lengths = torch.tensor([len(s.tokens) for s in group.samples])
        sampled = torch.arange(chosen.shape[1]) < lengths[:, None]  # the rest is padding
        losses.append(-((rewards - rewards.mean())[:, None] * chosen * sampled).sum(1).mean())
    return torch.stack(losses).mean()


def main() -> None:
    """Train; each step from samples of the newest weights."""
    model = open_model("builtin:reverse-tiny").build().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with rollcall.Trainer() as rollouts:
        for step in range(STEPS):
            outcome = rollouts.publish(model.named_parameters(), step)
            groups = rollouts.generate(new_prompts(), SAMPLES, max_tokens=5)
            optimizer.zero_grad()
            loss_of(model, groups).backward()
            optimizer.step()
            rewards = [reward(g.prompt, s.tokens) for g in groups for s in g.samples]
            mean = sum(rewards) / len(rewards)
            rollouts.report(step + 1, reward=mean)
            print(
                f"step {step + 1}: reward {mean:.2f}, {len(outcome.members)} rollouts", flush=True
            )
            for event in rollouts.events():
                print(f"{event.pod}: {event.kind} {event.cause}", flush=True)
        rollouts.finish(STEPS)


if __name__ == "__main__":
    main()
