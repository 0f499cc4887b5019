"""How long updates of verl take, and how long generation stands still, by two engines.

Each process that imports this, before verl, can have verl's engine `nixl` without a GPU.
"""

from hack.bench.verl_updates.nixl_on_cpu import prepare

prepare()
