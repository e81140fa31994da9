"""Measure what HTTP costs, beside the engine alone and beside real vLLM, and write it to `results/serving.json`.

    python -m benchmarks.serving             # about 8 minutes; `make vllm` first, or vLLM is left out
    python -m benchmarks.serving --quick     # a small load and one round, nothing is written: does it all run?

Let nothing else run meanwhile. See `benchmarks.section.serving` for what is compared and how.
"""

import typer

from benchmarks.section import serving
from benchmarks.suite import command

main = command("serving", "http", lambda bench: serving.run(bench))

if __name__ == "__main__":
    typer.run(main)
