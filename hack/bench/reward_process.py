"""Measures what it costs to call the reward function in a process of its own."""

import asyncio
import statistics
import time
from pathlib import Path

from rollcall_runtime.tasks.reward_function import load_reward
from rollcall_runtime.tasks.reward_process import RewardProcess

FUNCTION = "rollcall_runtime.tasks.reverse:reward"
GROUP = 16
ROUNDS = 30
LENGTHS = ((7, 6), (512, 1024), (2048, 8192))  # tokens of prompt and response


async def main() -> None:
    """Print seconds to start, memory, and microseconds a sample beside a direct call."""
    process = RewardProcess(FUNCTION, timeout=30.0, stop_at_error=True)
    began = time.perf_counter()
    await process.start()
    print(f"start: {time.perf_counter() - began:.3f} s")
    direct = load_reward(FUNCTION)
    for before, after in LENGTHS:
        prompt = tuple(range(before))
        responses = [tuple(token % 50_000 for token in range(after))] * GROUP
        beside, within = [], []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            await process.score(prompt, responses, {})
            beside.append(time.perf_counter() - began)
            began = time.perf_counter()
            for response in responses:
                direct(prompt, response)
            within.append(time.perf_counter() - began)
        figures = [statistics.median(seconds) / GROUP * 1e6 for seconds in (beside, within)]
        text = f"{figures[0]:.1f} us a sample, direct {figures[1]:.1f} us"
        print(f"{before} + {after} tokens: {text}")
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    sizes = {line.split()[0]: int(line.split()[1]) // 1024 for line in lines[1:]}
    print(f"memory: {sizes['Rss:']} MiB, with a share of what is shared {sizes['Pss:']} MiB")
    await process.close()


if __name__ == "__main__":
    asyncio.run(main())
