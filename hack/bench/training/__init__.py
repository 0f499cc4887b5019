"""What the benches of training engines share: models, rows, and the sides that take turns."""
