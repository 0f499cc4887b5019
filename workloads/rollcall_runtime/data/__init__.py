"""Data: rows of files and data sets, their order, and the tokens that a model sees of them."""
