"""What is measured, how, and against what: `python -m benchmarks.engine --help` lists the sections."""
