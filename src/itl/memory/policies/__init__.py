"""Memory policies, one class per module. `itl.memory.registry` lists them by name."""
