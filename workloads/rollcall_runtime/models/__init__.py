"""Models that the built-in training and inference engines share."""
