# Each target is a command that you can also type. tools/lab.py makes .venv first where it is missing or out of date.
PYTHON ?= $(or $(shell command -v python3 || command -v python3.12 || command -v python3.13 || command -v python3.11),python3)
TORCH ?=
BUILD ?=
DEVELOP = @SERVELAB_AGAIN="make $@" $(PYTHON) tools/lab.py --torch "$(TORCH)" --extras author,serving,teacher,test run
NBVAL = --nbval-lax --nbval-current-env --nbval-cell-timeout=120

.PHONY: lab test test-all check notebooks labs bench gpu vllm guidellm

lab:        ## start the course; PORT=8899, BROWSER=0 on a remote machine, TORCH=cpu for the small build of torch
	@$(PYTHON) tools/lab.py --torch "$(TORCH)" --extras serving lab --port "$(PORT)" --browser "$(BROWSER)"

test:       ## the tests, then every notebook from top to bottom
	$(DEVELOP) pytest -n 2 --dist loadfile -m "not slow"
	$(DEVELOP) pytest -n 2 --dist loadfile $(NBVAL) notebooks

test-all:   ## what takes longer than 20 seconds a test
	$(DEVELOP) pytest -n 2 --dist loadfile -m slow

check:      ## before each commit: lint, format, types, fresh notebooks, the table of imports
	$(DEVELOP) ruff check
	$(DEVELOP) ruff format --check
	$(DEVELOP) mypy
	$(DEVELOP) python notebooks/build.py --check
	$(DEVELOP) python labs/build.py --check
	$(DEVELOP) pytest -q tests/architecture

notebooks:  ## run notebooks/source/*.py into notebooks/*.ipynb
	$(DEVELOP) python notebooks/build.py

labs:       ## make the learner's and the solved notebooks from labs/*/source.py
	$(DEVELOP) python labs/build.py

bench:      ## measure the engine beside transformers and vLLM (about 40 minutes); QUICK=1 for a trial, SECTIONS="step memory" for some
	$(DEVELOP) python -m benchmarks.engine $(SECTIONS) $(if $(QUICK),--quick)

gpu:        ## on a machine with a GPU: check and time every kernel there (under 5 minutes); DRY=1 tries it without one
	$(DEVELOP) python -m benchmarks.kernels $(if $(DRY),--dry)

vllm:       ## real vLLM in an environment of its own, .venv-vllm, for this machine's GPU or CPU; BUILD=cpu or BUILD=gpu decides
	@$(PYTHON) tools/vllm.py --build "$(BUILD)"

guidellm:   ## GuideLLM in an environment of its own, .venv-guidellm: what `servelab load` sends its requests with
	@$(PYTHON) tools/guidellm.py
