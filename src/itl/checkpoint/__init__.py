"""Saved state: learners as folders, folder generations, locks, atomic writes."""
