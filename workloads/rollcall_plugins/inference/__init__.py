"""Inference engines that are servers of their own."""
