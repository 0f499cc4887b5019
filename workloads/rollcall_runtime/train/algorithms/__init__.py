"""Advantages, objectives, corrections and losses of policy training, each a small pure function.

`rollcall_protocol.algorithm_settings` composes them; `train.roles` calls them.
"""
