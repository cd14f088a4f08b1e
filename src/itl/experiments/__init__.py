"""Experiments: run a method on a stream, record it, refine it, search and sweep."""
