# make book   the book, its cells executed on live ranks (SHARE_GPUS=1: several ranks a GPU; SOLUTIONS=0: none of the labs)
# make test   everything that proves the project
# make check  what proves a change in a minute: format, lint, types, and the tests of ground, algorithms, simulated and theory
# make nightly   everything that is too slow for `make test`, and the steps of .github/workflows in fresh clones (WORKFLOWS=check: of one)
# make types  check the types of the ground, theory, explain and data
# make lab    JupyterLab on the notebooks, from a start page on (TORCH_INDEX=ADDRESS: another build of PyTorch)
# make course write what learners may have into a folder of its own (TARGET=folder, else _build/course)
# make labs   make the learners' notebooks, labs/release, from labs/source (by nbgrader)
# make labs-all   every answer to the labs, live and marked too, and the checks with each of their assertions taken away
# make notebooks   run the notebooks again and store their outputs, text only
# make gpu-record   on a machine with an NVIDIA GPU: run everything over NCCL and record it (ARGS=--help)
# make lock   resolve requirements.txt again into requirements.lock, and the hub's (ARGS=--upgrade: to the newest versions)
# make hub    set this server up as a hub; says first what it changes (YES=1: does not ask; ADDRESS=, CERTIFICATE=, KEY=, TEACHER=); as root
# make hub-remove   undo all of it, save the homes
# make hub-benchmark   twenty learners at once on a hub of their own: seconds, memory, what failed; as root (ARGS=--help)
# make hub-demo   a whole JupyterHub with Slurm on loopback, with two accounts; as root (ARGS="--gpus 8": pretend eight)
# make test-hub   everything that proves the hub: real Slurm, on one node and on two, real users, a real browser; as root (CUT=1: a small cut)
# make clean  remove what was built (`make distclean`: the environment too)

PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/installed
LOCKS := -c requirements.lock -c requirements-cuda.lock
HUB_LOCK := hub/server/requirements.lock

ifdef SHARE_GPUS
export RINGTREE_SHARE_GPUS := $(SHARE_GPUS)
endif

ifdef SOLUTIONS
export RINGTREE_SOLUTIONS := $(SOLUTIONS)
endif

# Three workers keep two cores busy, because each spends part of its time waiting. Found by trial.
WORKERS ?= 3
NBVAL := --nbval --nbval-cell-timeout 300 --nbval-sanitize-with tests/nbval_sanitize.cfg

# Write bytecode even if the machine says not to: hundreds of kernels and ranks import the same modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: book test check nightly types lab labs labs-all course notebooks gpu-record lock clean distclean
.DEFAULT_GOAL := book

book: $(READY)
	@$(RUN) tools/build.py

# What a change can have reached is run and compared; where CI is set, everything. A build that failed leaves no stamp, and the
# built book's own tests then fail and say so. A file's tests stay together.
test: $(READY)
	@failed=0; \
	$(RUN) tools/run_notebooks.py $(if $(CI),--all) || failed=1; \
	$(RUN) -m pytest $(NBVAL) --kept -n $(WORKERS) --dist loadfile notebooks $(wildcard labs/source) $(ARGS) || failed=1; \
	$(RUN) tools/build.py || failed=1; \
	$(RUN) -m pytest -n $(WORKERS) --dist loadfile tests $(ARGS) || failed=1; \
	exit $$failed

types: $(READY)
	@$(RUN) -m mypy

# The test files of `make check`, by room. CONTRIBUTING.md has their seconds. The tests that start processes are left to `make test`.
CHECKED := $(foreach name,collectives cost tables trace,tests/ground/test_$(name).py) tests/algorithms/test_algorithms.py \
  $(foreach name,booking follow nccl_rules simulate simulate_training,tests/simulated/test_$(name).py) \
  $(foreach name,cost_table lines model nccl published,tests/theory/test_$(name).py) \
  $(foreach name,rooms workflows,tests/repository/test_$(name).py)

check: $(READY)
	@failed=0; \
	$(RUN) -m ruff format --check . || failed=1; \
	$(RUN) -m ruff check . || failed=1; \
	$(RUN) -m mypy || failed=1; \
	$(RUN) -m pytest -q --cold -n $(WORKERS) --dist worksteal -k "not face_works_whatever" $(CHECKED) $(ARGS) || failed=1; \
	exit $$failed

# The tests that ask for RINGTREE_NIGHTLY are found by that word.
WORKFLOWS ?=
nightly: export RINGTREE_NIGHTLY := 1
nightly: $(READY)
	@failed=0; \
	$(RUN) -m pytest -n $(WORKERS) --dist loadfile $$(grep -rl --include='test_*.py' RINGTREE_NIGHTLY tests) $(ARGS) || failed=1; \
	$(MAKE) --no-print-directory labs-all || failed=1; \
	[ "$(WORKFLOWS)" = none ] || $(RUN) tools/run_workflows.py $(WORKFLOWS) || failed=1; \
	exit $$failed

# The teacher's menus, which nbgrader installs, are not for learners; and somebody else's notebook runs no script by itself.
lab: export JUPYTER_CONFIG_PATH := $(CURDIR)/book/jupyter$(addprefix :,$(JUPYTER_CONFIG_PATH))
lab: $(READY)
	@$(RUN) -m jupyter lab --notebook-dir . --LabApp.default_url=/lab/tree/book/start.md $(ARGS)

labs: $(READY)
	@$(RUN) -m ringtree.labs release

# `make test` tries every answer in the simulator, and a sample of them on live ranks and marked in two processes.
labs-all: export RINGTREE_LABS := all
labs-all: $(READY)
	@failed=0; \
	$(RUN) -m pytest -n $(WORKERS) --dist loadfile $(wildcard tests/labs/test_labs.py tests/labs/test_mark*.py) $(ARGS) || failed=1; \
	$(RUN) trials/mutate.py || failed=1; \
	exit $$failed

course: $(READY)
	@$(RUN) tools/course.py $(TARGET)

notebooks: $(READY)
	@$(RUN) tools/normalise.py --execute

gpu-record: $(READY)
	@$(RUN) tools/gpu_record.py $(ARGS)

# In an environment of its own, since the one in $(VENV) may not fit what requirements.txt has become. The oldest
# Python that README names is the one to take (PYTHON=): what it resolves, newer ones can install. Left out is what
# differs between machines: torch's builds, which requirements.txt pins, and CUDA's packages, which have their own lock.
# What the hub needs beside all that has a lock of its own: the book's lock holds for both.
COMPILE = CUSTOM_COMPILE_COMMAND="make lock" _build/lock/bin/python -m piptools compile --quiet --strip-extras --no-annotate --no-emit-options
LEFT_OUT = ringtree torch $(shell sed -n 's/==.*//p' requirements-cuda.lock)
lock:
	@$(PYTHON) -m venv --clear _build/lock
	@_build/lock/bin/python -m pip install --quiet --disable-pip-version-check pip-tools==7.6.2
	@$(COMPILE) $(addprefix --unsafe-package=,$(LEFT_OUT)) --output-file requirements.lock requirements.txt $(ARGS)
	@$(COMPILE) --constraint requirements.lock $$(sed -n 's/==.*//p' requirements*.lock | sed 's/^/--unsafe-package=/') \
	  --output-file $(HUB_LOCK) hub/server/requirements.txt $(ARGS)
	@sed -i '/^$$/,$$d' $(HUB_LOCK)

# The hub is a product of its own: hub/Makefile has its rules. Paths stay those of the folder in which you type.
HUB ?= _build/hub
.PHONY: hub hub-remove hub-demo hub-benchmark test-hub
hub hub-remove hub-demo hub-benchmark test-hub:
	@$(MAKE) --no-print-directory -C hub $@ HUB=$(abspath $(HUB)) FROM=$(CURDIR)

clean:
	rm -rf _build .pytest_cache .hypothesis

distclean: clean
	rm -rf $(VENV) ringtree.egg-info

$(READY): requirements.txt requirements.lock requirements-cuda.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "No $(PYTHON) found: install Python 3.11 or newer, or name one with 'make PYTHON=/path/to/python3.11'." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) --version), and this book needs Python 3.11 or newer: name one with 'make PYTHON=python3.11'." >&2; exit 1; }
	@$(RUN) -m pip --version >/dev/null 2>&1 || { echo "Making the environment in $(VENV)"; $(PYTHON) -m venv --clear $(VENV); } || { echo "$(PYTHON) could not make an environment: install its venv module (on Debian and Ubuntu: apt install python3-venv)." >&2; exit 1; }
	@echo "Installing requirements.txt into $(VENV): some minutes the first time"
	@[ -z "$(TORCH_INDEX)" ] || $(RUN) -m pip install --disable-pip-version-check --index-url "$(TORCH_INDEX)" "$$(grep '^torch==' requirements.txt)"
	@$(RUN) -m pip install --disable-pip-version-check --progress-bar on -r requirements.txt $(LOCKS)
	@touch $@
