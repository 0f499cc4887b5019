"""Engine `hccl`: broadcast between Ascend NPUs."""
