# Short targets; each installs what it needs. `make help` lists them.
UV := $(or $(shell command -v uv 2>/dev/null),.tools/bin/uv)
RUN := $(UV) run --frozen
export UV_TOOL_DIR := $(CURDIR)/.tools/uv
export UV_TOOL_BIN_DIR := $(CURDIR)/.tools/bin
# The machine's own certificates: many sites reach the package index through a proxy of theirs.
export UV_SYSTEM_CERTS := true
# The tests start hundreds of processes: each would compile all it imports, which is most of its start.
unexport PYTHONDONTWRITEBYTECODE
ARGS ?=

.PHONY: help install redis slurm rdma clients real-files demo cluster soak test test-slurm-24 test-rdma test-rdma-trixie check format \
	bench bench-rdma clean

help:          ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*##/\1\t/p' $(MAKEFILE_LIST)

demo: install  ## the main job on real files, end to end (ARGS=--keep stays up)
	@$(RUN) python -m demo $(ARGS)

cluster: install redis ## six nodes in three racks on this machine (ARGS=--keep stays up)
	@$(RUN) python -m demo.cluster $(ARGS)

soak: install redis ## clients on six nodes while everything fails (SOAK_MINUTES=10, SEED=…)
	@$(RUN) python -m tests.cluster.soak

test: install redis slurm clients real-files ## all tests but those marked hardware and bench
	$(RUN) pytest -n auto --dist loadgroup $(ARGS)

test-slurm-24: install redis ## the tests with a Slurm, on release 24.11, in a Debian root that it makes
	@sh tests/slurm/make-root.sh trixie .tools/trixie
	FEEDRACK_SLURM_ROOT=$(CURDIR)/.tools/trixie REQUIRE=slurm $(RUN) pytest -n auto --dist loadgroup tests/slurm $(ARGS)

test-rdma: install rdma ## what wants verbs, in virtual machines (RDMA_MAY_BE_MISSING=1 lets it pass without; WITHIN=900: seconds at most)
	@$(RUN) python -m tests.rdma.vm test $(if $(WITHIN),--within $(WITHIN)) -- $(ARGS)

test-rdma-trixie: install rdma ## of these what a newer kernel does otherwise, on Debian trixie's (6.12)
	@$(RUN) python -m tests.rdma.vm --release trixie run $(CURDIR)/.venv/bin/python -m pytest -p no:cacheprovider tests/rdma/verbs/test_mapped.py $(ARGS)

check: install ## format, lint, types, import floors
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) lint-imports

format: install ## format and mend what can be mended
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

bench: $(UV)   ## beside the peers, which it installs; results under benchmarks/results/ (ARGS=--quick)
	@$(UV) sync --frozen --quiet --group bench
	$(if $(ARGS),,$(RUN) --group bench python -m benchmarks.eviction)
	$(RUN) --group bench python -m benchmarks.run $(ARGS)
	$(if $(filter-out --quick,$(ARGS)),,@set -e; for name in packing batches epoch cluster affinity placed submissions; do \
		$(RUN) --group bench python -m benchmarks.$$name $(ARGS); done)

bench-rdma: install rdma ## RDMA beside HTTP, in virtual machines with two kernels (ARGS=--here: on this machine's device)
	@$(UV) sync --frozen --quiet --group bench
	@$(RUN) --group bench python -m benchmarks.rdma $(ARGS)

install: $(UV)
	@$(UV) sync --frozen --quiet

redis:         # the coordinator of several nodes, where it can be had
	@sh tests/install-redis.sh

slurm:         # the scheduler, where it can be had
	@sh tests/slurm/install-slurm.sh

rdma:          # what the virtual machines are made of, where it can be had
	@sh tests/rdma/install-rdma.sh

clients:       # the S3 clients the tests drive, where they can be had
	@sh tests/install-clients.sh $(UV)

real-files:    # the small files the tests pack, where they can be had
	@sh tests/fetch-real-files.sh .tools/real-files

.tools/bin/uv:
	python3 -m venv .tools
	.tools/bin/pip install --quiet uv

clean:         ## what the other targets made
	rm -rf --one-file-system .venv .tools .demo .cluster .pytest_cache .mypy_cache .ruff_cache .hypothesis
