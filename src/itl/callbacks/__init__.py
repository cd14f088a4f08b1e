"""Callbacks that a learner calls while it trains, and the loggers built on them."""
