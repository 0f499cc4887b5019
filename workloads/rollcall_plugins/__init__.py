"""Optional parts of the runtime: a package for each kind of plug-in, in it one for each plug-in.

A plug-in is found by its entry point (pyproject.toml) and imports the core, never another plug-in.
The core names no plug-in's module.
"""
