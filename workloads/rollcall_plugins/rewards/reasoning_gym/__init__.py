"""The reward `reasoning-gym`: the data set of the question scores the answer."""
