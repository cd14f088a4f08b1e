"""The commands of `itl`; related commands share a module."""
