"""Measures how algorithms learn the reverse task."""
