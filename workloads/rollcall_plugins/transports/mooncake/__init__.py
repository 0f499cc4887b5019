"""Engine `mooncake`: one-sided reads through Mooncake's TransferEngine."""
