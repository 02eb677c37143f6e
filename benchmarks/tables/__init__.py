"""The tables of `benchmarks/bench_tables.py`: their rows, the methods, scores and the summary."""
