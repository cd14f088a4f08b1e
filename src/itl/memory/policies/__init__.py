"""Memory policies, one module each."""
