# One command each, and each does all its own set-up: needs a Python of 3.11 or newer, make, and a package registry.
#
# Everything is installed into .venv in this checkout. A stamp file in it says what is installed, so that a second run
# starts at once; removing .venv forgets everything. Installing uses uv where it can be had, else pip.

VENV := .venv
VLLM := .venv-vllm
NEMO_GYM := .venv-nemo-gym
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
INSTALL := .ci/install $(VENV) -c constraints.txt
NPM_HARNESSES := @anthropic-ai/claude-code@2.1.332 @openai/codex@0.171.0 opencode-ai@1.18.33 @google/gemini-cli@0.61.0 \
	@mariozechner/pi-coding-agent@0.73.1
PY := $(wildcard src tests benchmarks examples docs .ci)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-real lint format docs bench clean constraints
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

demo: $(STAMPS)/demo ## a real harness on a real small model: 24 rollouts, captured, rebuilt and rewarded
	$(BIN)/rolltape demo

test: $(STAMPS)/test ## the tests, except those that drive third-party programs
	$(BIN)/python -m pytest -m "not real"

test-real: $(STAMPS)/test $(STAMPS)/fuzz $(STAMPS)/demo $(STAMPS)/torch $(STAMPS)/strace $(STAMPS)/bwrap $(STAMPS)/postgres $(STAMPS)/npm $(VLLM)/.stamp $(NEMO_GYM)/.stamp ## the tests that drive real harnesses and models; skips are failures
	$(BIN)/python -m pytest -m real --no-skips

lint: $(STAMPS)/lint ## style, types, the floors, and the rules of the house
	$(BIN)/ruff check $(PY)
	$(BIN)/ruff format --check $(PY)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/house.py

format: $(STAMPS)/lint ## put the files in shape
	$(BIN)/ruff check --fix $(PY)
	$(BIN)/ruff format $(PY)

docs: $(STAMPS)/test ## write docs/reference from the code
	$(BIN)/python docs/generate.py

bench: $(STAMPS)/test ## run the benchmarks; results go to benchmarks/RESULTS.md by hand
	@for script in $(filter-out benchmarks/soak.py,$(wildcard benchmarks/[a-z]*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

constraints: $(BIN)/python ## resolve every pin of constraints.txt anew
	.ci/install --resolve $(VENV) constraints.txt

clean: ## remove everything that the targets made
	rm -rf $(VENV) $(VLLM) $(NEMO_GYM) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: no Python of 3.11 or newer found"; echo; echo "hint: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV) 2>/dev/null || $(PYTHON) -m venv --without-pip $(VENV)

$(STAMPS)/test: pyproject.toml constraints.txt $(BIN)/python
	$(INSTALL) -e '.[pool]' --group test
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/fuzz: pyproject.toml constraints.txt $(BIN)/python
	$(INSTALL) -e '.[pool]' --group test --group fuzz
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/lint: pyproject.toml constraints.txt $(BIN)/python
	$(INSTALL) -e '.[pool]' --group lint --group test
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/demo: pyproject.toml constraints.txt $(BIN)/python
	$(INSTALL) -e '.[demo]'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/torch: pyproject.toml constraints.txt $(BIN)/python
	.ci/install --pip $(VENV) -c constraints.txt -e '.[torch,ray,renderers,transferqueue]'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/npm: .ci/npm Makefile $(BIN)/python
	.ci/need npm
	.ci/npm $(VENV) $(NPM_HARNESSES)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/strace: $(BIN)/python
	.ci/need strace
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/bwrap: $(BIN)/python
	.ci/need bwrap bubblewrap
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/postgres: $(BIN)/python
	.ci/need initdb postgresql
	@mkdir -p $(STAMPS) && touch $@

$(VLLM)/.stamp: .ci/vllm tests/real/tiny_qwen3.py
	PYTHON=$(PYTHON) .ci/vllm $(VLLM)
	@touch $@

$(NEMO_GYM)/.stamp: .ci/nemo-gym constraints.txt
	PYTHON=$(PYTHON) .ci/nemo-gym $(NEMO_GYM)
	@touch $@
