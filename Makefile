# `make help` lists the commands. Each environment is made from pinned packages at its first use and kept.

PHOTOS ?= samples/photos
OUT ?= out
RECIPE ?=
# environments: serving only, training, and everything that the tests need
ENV_SERVE ?= .venv
ENV_TRAIN ?= .venv-train
ENV_TEST ?= .venv-test
export PHOTOS OUT RECIPE PYTHON

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help label serve doctor train test lint soak clean
.PHONY: recipe-given

help: ## list these commands
	@echo "usage: make COMMAND [SETTING=value ...]"
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-8s  %s\n", $$1, $$2}' Makefile

# Status 3 tells a script that some file could not be read; to a person the summary has said so, and the rest is labelled.
label: $(ENV_SERVE)/.installed ## label a folder of photos: PHOTOS=folder (samples/photos), OUT=folder (out)
	@"$(ENV_SERVE)/bin/python" -m app label "$$PHOTOS" --out "$$OUT" || test $$? -eq 3

serve: $(ENV_SERVE)/.installed ## answer REST requests and show the webcam page; MIEN_HOST and MIEN_PORT say where
	@"$(ENV_SERVE)/bin/python" -m app serve

doctor: $(ENV_SERVE)/.installed ## say what is installed, what really runs, and which model is in use
	@"$(ENV_SERVE)/bin/python" -m app doctor

train: recipe-given $(ENV_TRAIN)/.installed ## train a model: RECIPE=training/recipes/NAME.yaml
	@"$(ENV_TRAIN)/bin/python" -m training.train "$$RECIPE"

recipe-given:
	@test -n "$$RECIPE" || { echo "Which recipe? Say: make train RECIPE=one of" >&2; ls training/recipes/*.yaml >&2; exit 2; }

test: lint ## check style, types and imports, then run every test
	@"$(ENV_TEST)/bin/python" -m pytest

lint: $(ENV_TEST)/.installed ## check style, types and imports only
	@"$(ENV_TEST)/bin/ruff" check --quiet .
	@"$(ENV_TEST)/bin/ruff" format --quiet --check .
	@"$(ENV_TEST)/bin/mypy"
	@"$(ENV_TEST)/bin/lint-imports" --no-logo

soak: $(ENV_TEST)/.installed ## run the long tests of endurance and load, which `make test` runs in short
	@"$(ENV_TEST)/bin/python" -m pytest -m soak --timeout=0

clean: ## remove the environments and everything that a command made, except OUT
	rm -rf .venv .venv-train .venv-test .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(ENV_SERVE)/.installed: requirements/serve.txt requirements/build.txt requirements/install.sh pyproject.toml
	@sh requirements/install.sh "$(ENV_SERVE)" serve

$(ENV_TRAIN)/.installed: requirements/train.txt requirements/build.txt requirements/install.sh pyproject.toml
	@sh requirements/install.sh "$(ENV_TRAIN)" train

$(ENV_TEST)/.installed: requirements/test.txt requirements/build.txt requirements/install.sh pyproject.toml
	@sh requirements/install.sh "$(ENV_TEST)" test
