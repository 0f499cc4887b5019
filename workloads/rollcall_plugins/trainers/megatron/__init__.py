"""The engine `megatron`: NVIDIA's megatron-core with data and tensor parallelism.

Importing this package imports megatron-core, an optional dependency (the extra `megatron`).
"""

import warnings

with warnings.catch_warnings():
    # megatron-core warns of apex and Transformer Engine, which it can do without, once for each
    # module that would use them.
    warnings.simplefilter("ignore")
    try:
        import megatron.core.distributed
        import megatron.core.models.gpt.gpt_layer_specs
        import megatron.core.optimizer  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{error}; it needs megatron-core: install rollcall with the extra `megatron`"
        ) from error
