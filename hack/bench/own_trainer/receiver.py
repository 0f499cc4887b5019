"""A rollout's program that takes each version and does nothing with it."""

import threading

import rollcall

if __name__ == "__main__":
    with rollcall.Rollout.join(apply=lambda _version, _tensors: None):
        threading.Event().wait()
