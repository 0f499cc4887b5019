"""Engine `nixl`: one-sided reads through NIXL."""
