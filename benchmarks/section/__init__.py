"""One file a question. Each has `run(bench) -> Result`, and says at its top what it measures and against what."""
