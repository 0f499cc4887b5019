"""The training engine `torchtitan`: the models and the parallelism of torchtitan 0.3.

Importing this package raises ImportError that says what is missing.
"""

import warnings
from importlib import import_module
from importlib.util import find_spec

import torch

if find_spec("torchtitan") is None:
    raise ImportError("torchtitan is not installed: pip install 'rollcall[torchtitan]'")
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13):
    raise ImportError(f"torchtitan 0.3 needs torch 2.13 or newer; this is {torch.__version__}")
with warnings.catch_warnings():
    # torchtitan's attention makes torch import its compiler, which uses what torch has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import_module("torchtitan.models.common.attention")
