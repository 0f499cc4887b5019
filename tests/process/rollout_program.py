"""A rollout's program of a user's own, which is in the middle of `receive` until it is killed."""

import time

import rollcall

RECEIVING = "the first tensor is here"

if __name__ == "__main__":
    with rollcall.Rollout.join() as rollout:
        for _ in rollout.receive():
            print(RECEIVING, flush=True)
            time.sleep(600)
