"""What models are for in training: actor, reference, critic and reward model, each with an engine.

Engines know nothing of them. `policy_step` puts them together.
"""
