# make demo | test | check | docs | bench. Everything is set up in .venv from PyPI; nothing else is assumed but Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
STAMP := $(VENV)/.installed

.PHONY: demo test check lint types house docs fuzz coverage bench bench-headline bench-stale wheel gpu clean

$(BASE): pyproject.toml setup.py constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(STAMP): $(BASE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: $(BASE)  ## schedule ResNet152 on 4, 5 and 6 pipelined Edge TPUs, with proof and pictures in demo/
	$(BIN)/python -m examples.edge_tpu_resnet152 demo

test: $(STAMP)  ## all tests, on two workers; a file stays on one, so that what it compiles or trains is there once
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

# Kernels count by their Python form, which is slow and warns of what compiled code does in silence (hashes that wrap,
# divisions by zero): there tests draw few examples, and those marked `compiled` are left out. Both runs take half an hour.
COVERED := tests/exact tests/checker tests/kernels tests/stages tests/placements tests/heuristics
COVER := -m pytest -q -n 2 --dist loadfile --cov=rlinit.exact --cov=rlinit.checker --cov=rlinit.kernels --cov-branch

coverage: $(STAMP)  ## share of branches of exact, checker and kernels that tests take
	rm -f .coverage
	$(BIN)/python $(COVER) --cov-report= $(COVERED) tests/solving tests/regression tests/properties tests/certificates
	NUMBA_DISABLE_JIT=1 $(BIN)/python $(COVER) --cov-append --cov-report=term:skip-covered -m "not compiled" \
		--hypothesis-profile=few -W ignore::RuntimeWarning $(COVERED)

check: $(STAMP)  ## all that must hold before a change is merged: two at once what takes one core, then the tests
	$(MAKE) -j 2 types docs wheel lint house
	$(MAKE) test

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

house: $(STAMP)  ## figures of the source tree; fails where one got worse than in tools/house.json
	$(BIN)/python tools/house.py

docs: $(STAMP)  ## the site, in docs/_build; a warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build

wheel: $(STAMP)  ## build a source distribution, the wheel from it, and use that in an environment of its own
	rm -rf build dist $(VENV)/smoke
	$(BIN)/python -m build --quiet --outdir dist .
	$(PYTHON) -m venv $(VENV)/smoke
	$(VENV)/smoke/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd $(VENV) && smoke/bin/python ../tests/wheel_smoke.py

CASES ?= 20000
SEED ?= 0
KILLS ?= 4

fuzz: $(STAMP)  ## random problems against brute force, mutated certificates, kill -9: make fuzz CASES=20000 KILLS=100 SEED=0
	$(BIN)/python -m tests.properties.fuzz --cases $(CASES) --seed $(SEED)
	$(BIN)/python -m tests.certificates.attack --cases $(CASES) --seed $(SEED)
	$(BIN)/python -m tests.certificates.proof_attack --cases $(CASES) --seed $(SEED)
	$(BIN)/python -m tests.properties.kills --kills $(KILLS) --seed $(SEED)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --hypothesis-profile=many --hypothesis-seed=$(SEED) --timeout 0 \
		$$(grep -rl --include='test_*.py' 'draws(' tests)

bench: $(STAMP)  ## every published table and figure that is not of today's code; data and pictures in benchmarks/results
	$(BIN)/python -m benchmarks

bench-headline: $(STAMP)  ## the same for what README and the first page of benchmarks quote
	$(BIN)/python -m benchmarks --headline

bench-stale: $(STAMP)  ## results whose code has changed since
	$(BIN)/python -m benchmarks --stale

gpu:  ## on a machine with a GPU and torch: its tests, plans against runs, costs, language models, training; under 9 minutes
	$(PYTHON) -c "import torch; assert torch.cuda.is_available(), 'torch sees no GPU'"
	test -x $(VENV)/gpu/bin/python || $(PYTHON) -m venv --system-site-packages $(VENV)/gpu
	$(VENV)/gpu/bin/python -m pip install --quiet --disable-pip-version-check -e ".[test,torch,agent]" "transformers>=4.50"
	$(VENV)/gpu/bin/python -m benchmarks.components.gpu

clean:  ## built files
	rm -rf build dist docs/_build docs/_generated *.egg-info
