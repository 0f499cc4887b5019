"""The engine. All that differs from the built-in engine `megatron` is the model."""

from typing import ClassVar

from granite_megatron.model_provider import GraniteProvider
from rollcall_plugins.trainers.megatron.engine import MegatronEngine
from rollcall_plugins.trainers.megatron.model_provider import ModelProvider


class GraniteMegatronEngine(MegatronEngine):
    """What `megatron` trains, and Granite."""

    provider: ClassVar[ModelProvider] = GraniteProvider()
