"""Rewards that come with the worker image; a job names them without a module."""
