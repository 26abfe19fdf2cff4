# `make train` and `make test` are all that a fresh machine needs: both set up what they use.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup train test check format bench docs clean football football-engine vmas unity unity-test browser-test
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

train: setup  ## trains MAPPO on particle/simple_spread and shows the result
	$(BIN)/coterie train

test: setup  ## every test
	$(BIN)/pytest

check: setup  ## what CI runs: format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/pytest

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## speed, beside the yardstick
	$(BIN)/python benchmarks/speed.py

docs: setup  ## regenerates the pages and pictures that come from the code
	$(BIN)/python docs/generate.py

# The football engine is compiled from PyPI's source, against the system's own Python: PYTHON has to be of its version.
FOOTBALL_NEEDS := build-essential cmake python3-dev libboost-python-dev libboost-thread-dev libboost-filesystem-dev \
	libboost-system-dev libsdl2-dev libsdl2-image-dev libsdl2-ttf-dev libsdl2-gfx-dev libgl1-mesa-dev libegl1-mesa-dev
FOOTBALL_HEADERS := boost/python.hpp boost/thread.hpp boost/filesystem.hpp SDL2/SDL.h SDL2/SDL_image.h SDL2/SDL_ttf.h \
	SDL2/SDL2_gfxPrimitives.h GL/gl.h EGL/egl.h

football: setup  ## builds the football engine if need be, tests it, and trains a little on it
	@$(BIN)/python -c 'import gfootball_engine' 2>/dev/null || $(MAKE) --no-print-directory football-engine
	$(BIN)/pytest -n0 tests/football
	$(BIN)/coterie train algo=mappo env=football/academy_empty_goal_close steps=20000 eval.every=10000 eval.episodes=16

football-engine: setup
	@for tool in cmake make c++; do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	for header in $(FOOTBALL_HEADERS); do \
		printf '#if !__has_include(<%s>)\n#error\n#endif\n' $$header | c++ -E -x c++ - >/dev/null 2>&1 || missing="$$missing $$header"; \
	done; \
	boost=boost_python$$($(BIN)/python -c 'import sys; print("%d%d" % sys.version_info[:2])'); \
	echo | c++ -shared -x c++ - -l$$boost -o /dev/null 2>/dev/null || missing="$$missing lib$$boost"; \
	if [ -n "$$missing" ]; then \
		echo "the football engine needs$$missing; on Debian and Ubuntu:"; \
		echo "  apt-get install $(FOOTBALL_NEEDS)"; \
		case $$missing in *lib$$boost*) echo "(Boost is built for the system's own Python: .venv has to be of it, make clean, make football PYTHON=/usr/bin/python3)";; esac; \
		exit 1; \
	fi
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[football]'
	PATH="$(CURDIR)/$(BIN):$$PATH" CMAKE_POLICY_VERSION_MINIMUM=3.5 $(BIN)/pip install --disable-pip-version-check --constraint constraints.txt \
		--no-deps --no-build-isolation --no-binary gfootball gfootball

# VMAS is licensed under the GPL and wants an older pyglet, for windows that are not opened here: beside the rest, not in it.
vmas: setup  ## installs VMAS into a folder of its own and tests its adapter
	test -d .vmas/vmas || $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target .vmas vmas==1.5.2 gym==0.26.2 gym-notices==0.1.0
	PYTHONPATH=.vmas $(BIN)/pytest -n0 tests/batched

# mlagents-envs wants a protobuf that nothing else could live with: an interpreter of its own.
unity: .venv-unity/.installed  ## makes the interpreter that speaks to Unity

.venv-unity/.installed: src/coterie/envs/unity/install.py $(STAMP)
	$(BIN)/python -m coterie.envs.unity.install .venv-unity
	touch $@

unity-test: unity  ## tests Unity's adapter by its real protocol, on a stand-in
	$(BIN)/pytest -n0 tests/unity/live_unity.py

# A real browser, headless: Chromium and its driver are the system's, what drives them is PyPI's.
browser-test: setup  ## tests the pages in a headless Chromium
	@for tool in chromium chromedriver; do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	if [ -n "$$missing" ]; then \
		echo "the tests of the pages need$$missing; on Debian:"; \
		echo "  apt-get install chromium chromium-driver"; \
		exit 1; \
	fi
	@$(BIN)/python -c 'import selenium' 2>/dev/null || \
		$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[browser]'
	$(BIN)/pytest -n0 tests/browser

clean:
	rm -rf .venv .vmas .venv-unity
