# `make train` and `make test` work on a fresh machine: both install what they need, `make train` nothing more.
PYTHON ?= python3
BIN := .venv/bin
CORE := .venv/.installed-core
DOCS := .venv/.installed-docs
STAMP := .venv/.installed
# Modules are compiled when they are imported first, not all of them here: 230 MB and a third of the time.
INSTALL := $(BIN)/pip install --disable-pip-version-check --no-compile --constraint constraints.txt --editable

# Settings of `make train`, such as ARGS="env=particle/simple_tag steps=1M".
ARGS ?=

# Tests start many processes, which compile all modules again if a variable of the environment forbids to cache them.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest

.PHONY: setup train test test-fast lint check format bench gpu docs pages wheel clean football football-engine vmas unity unity-test browser-test
setup: $(STAMP)

$(CORE): pyproject.toml constraints.txt
	@echo "Installing what training needs into .venv: PyTorch and a few libraries. It takes minutes, once."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) .
	rm -rf $(BIN)/../lib/python3*/site-packages/torch/test $(BIN)/../lib/python3*/site-packages/torch/bin/test_*  # PyTorch's own tests: 120 MB
	@touch $@

$(STAMP): $(CORE)
	@echo "Adding to .venv what tests and development need. It takes minutes, once."
	$(INSTALL) '.[dev]'
	@touch $@

$(DOCS): $(CORE)
	@echo "Adding to .venv what the documentation needs."
	$(INSTALL) '.[docs]'
	@touch $@

train: $(CORE)  ## train MAPPO on particle/simple_spread for about a minute and show the result
	$(BIN)/coterie train $(ARGS)

test: setup  ## run all tests
	$(PYTEST)

test-fast: setup  ## run the tests that are not marked slow (under three minutes on two cores)
	$(PYTEST) -m "not slow"

lint: setup  ## check format, lint, types, imports and spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/codespell

check: lint  ## what CI runs: format, lint, types, imports, tests
	$(PYTEST)

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## measure speed next to the reference script
	$(BIN)/python benchmarks/speed.py

gpu: setup  ## run all tests on CUDA and measure the speed there, next to eager PyTorch and, if installed, JaxMARL
	@$(BIN)/python -c 'import torch; raise SystemExit(not torch.cuda.is_available())' || \
		{ echo "make gpu: PyTorch finds no GPU here, so nothing was tested or measured." >&2; exit 2; }
	$(PYTEST) -n 4 --device cuda
	$(BIN)/python benchmarks/speed.py --cuda --results benchmarks/results/cuda

docs: $(DOCS)  ## build the site into docs/_build/html
	$(BIN)/sphinx-build --fresh-env --fail-on-warning --keep-going --quiet -b html docs docs/_build/html

pages: setup  ## regenerate the tables of the pages, which need all environments
	$(BIN)/python docs/generate.py --text

wheel:  ## build the files of a release into dist: source, a pure wheel, and a manylinux wheel with compiled kernels
	PYTHON=$(PYTHON) .ci/wheel

# The football engine is compiled from its PyPI source against the system's Python, which PYTHON has to match.
FOOTBALL_NEEDS := build-essential cmake python3-dev libboost-python-dev libboost-thread-dev libboost-filesystem-dev \
	libboost-system-dev libsdl2-dev libsdl2-image-dev libsdl2-ttf-dev libsdl2-gfx-dev libgl1-mesa-dev libegl1-mesa-dev
FOOTBALL_HEADERS := boost/python.hpp boost/thread.hpp boost/filesystem.hpp SDL2/SDL.h SDL2/SDL_image.h SDL2/SDL_ttf.h \
	SDL2/SDL2_gfxPrimitives.h GL/gl.h EGL/egl.h

football: setup  ## build the football engine if necessary, test it, and train briefly
	@$(BIN)/python -c 'import gfootball_engine' 2>/dev/null || $(MAKE) --no-print-directory football-engine
	$(PYTEST) -n0 tests/football
	$(BIN)/coterie train algo=mappo env=football/academy_empty_goal_close steps=20000 eval.every=10000 eval.episodes=16

football-engine: setup
	@for tool in cmake make c++; do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	for header in $(FOOTBALL_HEADERS); do \
		printf '#if !__has_include(<%s>)\n#error\n#endif\n' $$header | c++ -E -x c++ - >/dev/null 2>&1 || missing="$$missing $$header"; \
	done; \
	boost=boost_python$$($(BIN)/python -c 'import sys; print("%d%d" % sys.version_info[:2])'); \
	echo | c++ -shared -x c++ - -l$$boost -o /dev/null 2>/dev/null || missing="$$missing lib$$boost"; \
	if [ -n "$$missing" ]; then \
		echo "the football engine needs$$missing. On Debian and Ubuntu:"; \
		echo "  apt-get install $(FOOTBALL_NEEDS)"; \
		case $$missing in *lib$$boost*) echo "(Boost is built for the system's Python, which .venv has to use: make clean, make football PYTHON=/usr/bin/python3)";; esac; \
		exit 1; \
	fi
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[football]'
	PATH="$(CURDIR)/$(BIN):$$PATH" CMAKE_POLICY_VERSION_MINIMUM=3.5 $(BIN)/pip install --disable-pip-version-check --constraint constraints.txt \
		--no-deps --no-build-isolation --no-binary gfootball gfootball

# VMAS is GPL-licensed and depends on an older pyglet (for windows, which are never opened): kept in a separate folder.
vmas: setup  ## install VMAS into a separate folder and test its adapter
	test -d .vmas/vmas || $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target .vmas vmas==1.5.2 gym==0.26.2 gym-notices==0.1.0
	PYTHONPATH=.vmas $(PYTEST) -n0 tests/batched

# mlagents-envs needs a protobuf version that conflicts with other packages: a separate virtual environment.
unity: .venv-unity/.installed  ## create the virtual environment of the Unity helper

.venv-unity/.installed: src/coterie/envs/external/unity/install.py $(STAMP)
	$(BIN)/python -m coterie.envs.external.unity.install .venv-unity
	touch $@

unity-test: unity  ## test the Unity adapter with the real protocol against a stand-in
	$(PYTEST) -n0 tests/unity/live_unity.py

# A headless browser: Chromium and its driver are system packages, Selenium comes from PyPI.
browser-test: setup  ## test the browser pages in a headless Chromium
	@for tool in chromium chromedriver; do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	if [ -n "$$missing" ]; then \
		echo "the browser tests need$$missing. On Debian:"; \
		echo "  apt-get install chromium chromium-driver"; \
		exit 1; \
	fi
	@$(BIN)/python -c 'import selenium' 2>/dev/null || \
		$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[browser]'
	$(PYTEST) -n0 -p no:hypothesispytest tests/browser  # its plugin imports that of trio, which Selenium installs, and warns

clean:
	rm -rf .venv .vmas .venv-unity
