# make demo   runs the main job: a language model trained on four processes, split by a proven plan (makes .venv itself)
# make test   runs every test
# make zoo    traces, plans and verifies all models of tests/zoo and prints the table (installs diffusers, monai, timm; an hour)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

$(VENV)/.done: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[hf,dev]'
	touch $@

# timm by itself: it asks for torchvision, which would bring another torch; its other needs come with transformers
$(VENV)/.zoo: $(VENV)/.done
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[hf,zoo]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps 'timm>=1.0.20'
	touch $@

.PHONY: demo test test-fast zoo clean
demo: $(VENV)/.done
	$(BIN)/autopar demo --out demo_out

# a tier of seconds without torch first, then the rest; file by file, in the order of tests/conftest.py, on as many cores as there are, one thread each
test: test-fast
	$(PYTEST) --rest tests

test-fast: $(VENV)/.done
	$(PYTEST) tests/laws tests/graph tests/cost tests/errors -m "not torch and not gloo and not browser"

zoo: $(VENV)/.zoo
	$(BIN)/autopar zoo

clean:
	rm -rf $(VENV) demo_out
