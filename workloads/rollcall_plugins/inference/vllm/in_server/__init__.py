"""A plugin of vLLM that loads staged weights while vLLM serves, all or nothing.

vLLM imports this package in its own processes.
"""

BACKEND = "rollcall"


def register() -> None:
    """Called by vLLM in each of its processes (entry point group `vllm.general_plugins`)."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory  # noqa: PLC0415

    if BACKEND not in WeightTransferEngineFactory._registry:  # noqa: SLF001 - it may be called twice
        WeightTransferEngineFactory.register_engine(
            BACKEND, f"{__name__}.weight_transfer", "StagedWeightTransfer"
        )
