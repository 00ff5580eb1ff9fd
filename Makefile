# make demo   runs the main job: a language model trained on four processes, split by a proven plan (makes .venv itself)
# make test   runs every test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

$(VENV)/.done: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[hf,dev]'
	touch $@

.PHONY: demo test test-fast clean
demo: $(VENV)/.done
	$(BIN)/autopar demo --out demo_out

# the torch-free tier first: it answers in seconds
test: $(VENV)/.done
	$(BIN)/python -m pytest tests/laws tests/graph tests/solver tests/cost tests/errors -m "not torch and not gloo and not browser"
	$(BIN)/python -m pytest tests

test-fast: $(VENV)/.done
	$(BIN)/python -m pytest tests/laws tests/graph tests/solver tests/cost tests/errors -m "not torch and not gloo and not browser"

clean:
	rm -rf $(VENV) demo_out
