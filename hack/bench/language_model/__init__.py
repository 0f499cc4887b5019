"""Measures whether the language model of examples/smollm learns, as its rollouts see it."""
