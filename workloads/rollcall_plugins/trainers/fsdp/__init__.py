"""The training engine `fsdp`: torch's first FSDP, with its flat parameters."""
