"""Engine `nccl`: broadcast between NVIDIA GPUs."""
