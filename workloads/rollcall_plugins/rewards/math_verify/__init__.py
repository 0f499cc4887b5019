"""The reward `math-verify`: the answer equals the row's as mathematics."""
