"""Weight-sync engines beyond gloo."""
