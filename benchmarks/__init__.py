"""Scripts that make the committed records and the tables of the documents. Run one with `python -m benchmarks.NAME`."""
