# Every target installs what it needs; `make demo` and `make test` start from a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VENV_STAMP := $(VENV)/.stamp

.PHONY: venv lock lint
venv: $(VENV_STAMP)

$(VENV_STAMP): requirements/dev.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --only-binary :all: -r requirements/bootstrap.txt
	$(BIN)/uv pip install --python $(BIN)/python --quiet --require-hashes --no-deps -r requirements/dev.txt
	touch $@
