# `make help` lists the targets. Both `demo` and `test` begin with `setup`, and both are safe to run again.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test unit training foreign gpu-check gpu-images own-python matrix matrix-short matrix-soak slow cuts ways faults hostile soak soak-diloco sick calm mutants lint type golden schema reference docs pictures lock bench bench-when bench-forecast release submit clean

PY := .venv/bin/python
KIT := .venv/bin/kit
JOB ?= examples/ddp
CLUSTER ?= local
ARGS ?=
N ?= 50
SUITES ?= trixie sid
# Tests wait for Slurm more than they compute (about 3 CPU seconds each of a cluster): four at a time for two cores. WORKERS=0: one after the other.
WORKERS ?= 4

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## .venv, system packages, a Docker Engine; says what it installs; without root .venv alone
	@scripts/setup.sh

demo: setup ## the main job: cluster up, image built and pinned, DDP on 2 nodes in the container, cluster down
	@scripts/demo.sh

test: ## set-up, then all tests, on a real Slurm and a real Docker Engine; skips are named
	@scripts/setup.sh --with-tests
	@$(if $(ARGS),,KIT_OUTCOMES=tests) $(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 20 --durations-min 5 $(ARGS)
	@$(if $(ARGS),,$(PY) -m tests.rows)

unit: ## the unit tests, which need .venv and nothing else; ARGS="-k name" runs some
	@$(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder tests/unit $(ARGS)

training: setup ## all of tests/training, in .train-venv with the frameworks; ARGS="-m smoke": every program once, as CI does
	@scripts/training.sh $(or $(ARGS),-m "smoke or not smoke")

foreign: setup ## what the kit writes for other people's programs, given to their own parsers; MEGATRON_LM, TORCHTITAN, PRIME_RL and NEMO_RL name checkouts
	@scripts/foreign.sh $(ARGS)

cuts: ## 60 broken lines at random moments of what is done over ssh (as root)
	@KIT_CUTS=60 $(PY) -m pytest -q -m "slow or not slow" -k cut tests/cluster/test_remote.py

ways: ## types the lines of the existing ways of working, in order, on an embedded cluster
	@$(PY) -m pytest -m "slow or not slow" tests/ways $(ARGS)

faults: ## the whole fault matrix: every fault in every start shape and container runtime of this machine
	@scripts/setup.sh --with-tests
	@$(PY) -m pytest -m 'faults or not faults' tests/cluster/test_faults.py tests/cluster/test_preflight.py \
		tests/cluster/test_secrets.py tests/cluster/test_interactive.py tests/cluster/test_containers.py \
		tests/cluster/test_lost_nodes.py tests/cluster/test_roles.py tests/cluster/test_data_loaders.py \
		tests/cluster/test_prolog.py tests/cluster/test_fresh_nodes.py \
		--numprocesses $(WORKERS) --dist worksteal $(ARGS)

own-python: setup ## the oldest Pythons: unit tests of images on /usr/bin/python3, what runs beside ranks (templates/kit_node) on 3.8
	@scripts/own_python.sh $(ARGS)

matrix: ## all cluster tests, and the unit tests of images, on Debian's other suites (SUITES="trixie sid"), each with its own Slurm and Python; root only
	@scripts/setup.sh --with-tests
	@for suite in $(SUITES); do $(PY) -m tests.matrix $$suite --workers $(WORKERS) $(ARGS) || exit 1; done

matrix-short: ## the same with seven cluster tests a suite
	@scripts/setup.sh --with-tests
	@for suite in $(SUITES); do $(PY) -m tests.matrix $$suite --short $(ARGS) || exit 1; done

matrix-soak: ## N runs with random faults on each of Debian's other suites
	@scripts/setup.sh --with-tests
	@for suite in $(SUITES); do $(PY) -m tests.matrix $$suite --soak $(N) $(if $(SEED),--seed $(SEED)) || exit 1; done

soak: ## N runs with random faults (SEED=… repeats them); prints leaks and wrong codes
	@scripts/setup.sh --with-tests
	@$(PY) -m tests.soak --runs $(N) $(if $(SEED),--seed $(SEED))

soak-diloco: ## N faults over one job of replica groups (SEED=… repeats them); prints what did not hold
	@scripts/setup.sh --with-tests
	@$(PY) -m tests.soak_diloco --faults $(N) $(if $(SEED),--seed $(SEED))

sick: ## 15 faults of ranks, nodes, disks and a lighthouse in 8 ranks on 4 nodes, in srun and torchrun, Pyxis and bubblewrap: who is named, how soon (ARGS="--faults gil --rotate")
	@scripts/setup.sh --with-tests
	@$(PY) -m tests.sick $(ARGS)

calm: ## ordinary runs of 5,000 steps in all, with all that is slow by nature: no alarm
	@scripts/setup.sh --with-tests
	@$(PY) -m tests.sick.calm $(ARGS)

slow: setup ## the tests that take more than a minute each: rebuilds from nothing, stubborn registries, every launcher cancelled
	@$(PY) -m pytest -m slow $(ARGS)

hostile: setup ## 10,000 hostile inputs: job files, expressions, run folders, logs, archives, OCI layouts
	@KIT_HOSTILE_CASES=10000 $(PY) -m pytest -s --timeout 3000 tests/hostile $(ARGS)

mutants: setup ## small faults in eleven central files, and which of them the tests pass with (FILES=…, ARGS="--most 0 --minutes 30")
	@$(PY) scripts/mutants.py $(FILES) $(ARGS)

# Checks that only read the scripts; those that run them are in `make test`, which has these, too: `SCRIPT_CHECKS=` leaves them to it.
SCRIPT_CHECKS := $(addprefix tests/scripts/test_,scripts.py sweep_scripts.py oldest_bash.py globals.py parts.py)

lint: ## ruff, mypy --strict, layers, names, lengths of journeys, shellcheck on rendered scripts, codespell
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@scripts/types.sh
	@.venv/bin/lint-imports
	@$(PY) scripts/names.py
	@$(PY) scripts/journeys.py --check
	@$(if $(SCRIPT_CHECKS),$(PY) -m pytest -q -p no:cacheprovider $(SCRIPT_CHECKS))
	@shellcheck --external-sources scripts/*.sh launchers/lib/prime-rl/*.sh .ci/run .ci/hidden.sh
	@.venv/bin/codespell

type: ## mypy --strict alone
	@scripts/types.sh

golden: ## rewrite tests/golden from the code as it is; read the diff before you commit it
	@$(PY) -m tests.golden.cases
	@$(PY) -m tests.golden.wrong
	@git diff --stat -- tests/golden

schema: ## rewrite docs/schema, the schemas of TOML files and of metrics, from the models
	@for noun in $(patsubst docs/schema/%.schema.json,%,$(wildcard docs/schema/*.json)); do $(KIT) schema "$$noun" --output docs/schema || exit 1; done

reference: ## rewrite docs/reference and the man pages from the code
	@$(PY) scripts/reference.py
	@$(PY) scripts/architecture.py

docs: ## the site of the pages in site/, for any browser, without a network
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet

pictures: ## rewrite docs/images/report*.png from a run and a sweep of this machine: RUN=… SWEEP=…; needs Chromium
	@$(PY) -m tests.pictures $(RUN) $(SWEEP)

lock: ## rewrite requirements/dev.lock
	@.venv/bin/pip-compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
		--no-header --strip-extras --allow-unsafe --extra dev --output-file requirements/dev.lock pyproject.toml requirements/dev.in

gpu-images: setup ## build train-gpu and frameworks-gpu: root, an engine, 25 GB of disk, an index with NVIDIA's wheels; no GPU
	@KIT_GPU_IMAGES=1 $(PY) -m pytest -m slow -rs tests/cluster/test_gpu_images.py $(ARGS)

gpu-check: setup ## every training program once on this machine's GPUs, and one table; PYTHON=… has torch and the frameworks
	@$(PY) scripts/gpu_check.py --python $(or $(PYTHON),.train-venv/bin/python) $(ARGS)

bench: setup ## measure, side by side with what a user would pick instead
	@$(PY) -m benchmarks $(ARGS)

bench-when: setup ## kit when against the truth: 500 jobs in the shape of a public workload trace, on embedded clusters; about 25 minutes
	@$(PY) -m benchmarks when $(ARGS)

bench-forecast: setup ## the forecast of kit submit against twenty trainings; needs .train-venv (make training) and a quiet machine
	@$(PY) -m benchmarks forecast $(ARGS)

release: reference docs ## wheel and source archive in dist/, installed and tried in fresh environments; version and changelog are checked
	@scripts/release.sh

submit: ## kit submit JOB=folder-or-file CLUSTER=name
	@$(KIT) submit $(JOB) --cluster $(CLUSTER) $(ARGS)

clean: ## take the local cluster down; remove runs, caches and .venv. Images stay: kit prune-images
	@if [ -x $(KIT) ]; then $(KIT) cluster down; fi
	@rm -rf runs .venv .train-venv .foreign-venv .node-venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
