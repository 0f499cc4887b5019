"""Training engines, one file each. `rollcall_runtime.train.registry` finds them."""
