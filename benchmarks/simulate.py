"""Hold the simulator against the engine on this machine, and write what came out to `results/simulate.json`.

    python -m benchmarks.simulate             # about 5 minutes
    python -m benchmarks.simulate --quick     # small loads and one round, nothing is written: does it all run?

Let nothing else run meanwhile. See `benchmarks.section.simulate` for what is compared and how.
"""

import typer

from benchmarks.section import simulate
from benchmarks.suite import command

main = command("simulate", "loads", lambda bench: simulate.run(bench))

if __name__ == "__main__":
    typer.run(main)
