# `make help` lists the commands. Each environment is created from pinned packages at first use.

PHOTOS ?= samples/photos
OUT ?= out
SITE ?= site
RECIPE ?=
# environments: serving only, training, and tests
ENV_SERVE ?= .venv
ENV_TRAIN ?= .venv-train
ENV_TEST ?= .venv-test
RUNTIME = app/static/page/runtime
# more processes than the two cores of a small machine, since tests wait for services and browsers; one thread each
PYTEST = OMP_NUM_THREADS=1 "$(ENV_TEST)/bin/python" -m pytest --numprocesses 3 --dist worksteal
export PHOTOS OUT SITE RECIPE PYTHON
# changes to the recipe, as in `make train RECIPE=... epochs=3`: every other setting of the command line
CHANGES = $(filter-out $(foreach own,$(SETTINGS),$(own)=%),$(MAKEOVERRIDES))
SETTINGS = PHOTOS OUT SITE RECIPE PYTHON ENV_SERVE ENV_TRAIN ENV_TEST
# an empty folder would be the current one
$(foreach folder,PHOTOS OUT SITE,$(if $(strip $($(folder))),,$(error $(folder) is empty: give a folder, or leave it out)))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help label serve runtime page doctor train test test-all lint soak mutations clean
.PHONY: recipe-given run-tests run-all-tests

help: ## list the commands
	@echo "usage: make COMMAND [SETTING=value ...]"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-9s  %s\n", $$1, $$2}' Makefile

# Status 3 means that some files could not be read; the summary reports them, and all others are labeled.
label: $(ENV_SERVE)/.installed ## label a folder of photos: PHOTOS=folder (samples/photos), OUT=folder (out)
	@"$(ENV_SERVE)/bin/python" -m mien label "$$PHOTOS" --out "$$OUT" || test $$? -eq 3

serve: $(ENV_SERVE)/.installed ## serve REST requests and the live page; address: MIEN_HOST and MIEN_PORT
	@"$(ENV_SERVE)/bin/python" -m mien serve

runtime: $(RUNTIME)/ort.wasm.min.mjs ## fetch ONNX Runtime Web with npm: the page can then label in the browser

page: runtime $(ENV_SERVE)/.installed ## write the page as static files for any web server: SITE=folder (site)
	@"$(ENV_SERVE)/bin/python" -m mien page "$$SITE"

doctor: $(ENV_SERVE)/.installed ## check the installation: versions, detector, model, device
	@"$(ENV_SERVE)/bin/python" -m mien doctor

train: recipe-given $(ENV_TRAIN)/.installed ## train a model: RECIPE=training/recipes/NAME.yaml [key=value ...]
	@"$(ENV_TRAIN)/bin/python" -m mien train "$$RECIPE" $(CHANGES)

recipe-given:
	@test -n "$$RECIPE" || { echo "Missing recipe. Run: make train RECIPE=one of" >&2; ls training/recipes/*.yaml >&2; exit 2; }

test: ## check style, types and imports, and run the tests except the slow ones
	@$(MAKE) --no-print-directory --jobs 2 lint run-tests

test-all: ## check style, types and imports, and run the tests including the slow ones
	@! command -v npm >/dev/null || $(MAKE) --no-print-directory runtime || echo "Tests of local mode are skipped." >&2
	@$(MAKE) --no-print-directory --jobs 2 lint run-all-tests

run-tests: $(ENV_TEST)/.installed
	@$(PYTEST)

run-all-tests: $(ENV_TEST)/.installed
	@$(PYTEST) -m "not soak and not registry"

lint: $(ENV_TEST)/.installed ## check style, types, imports and spelling only, of the page's scripts if npm is there
	@"$(ENV_TEST)/bin/ruff" check --quiet .
	@"$(ENV_TEST)/bin/ruff" format --quiet --check .
	@"$(ENV_TEST)/bin/mypy"
	@"$(ENV_TEST)/bin/lint-imports" --no-logo
	@"$(ENV_TEST)/bin/codespell"
	@sh requirements/page/lint/run.sh

soak: $(ENV_TEST)/.installed ## run the long endurance and load tests; the other commands run short versions
	@"$(ENV_TEST)/bin/python" -m pytest -m soak --timeout=0

mutations: $(ENV_TEST)/.installed ## draw 40 small defects and check that the tests notice them
	@"$(ENV_TEST)/bin/python" -m tests.mutations

clean: ## remove environments and caches, but not OUT
	rm -rf .venv .venv-train .venv-test .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNTIME)/ort.wasm.min.mjs: requirements/page/package-lock.json requirements/page/install.sh
	@sh requirements/page/install.sh "$(RUNTIME)"

$(ENV_SERVE)/.installed: requirements/serve.txt requirements/build.txt requirements/install.sh pyproject.toml
	@sh requirements/install.sh "$(ENV_SERVE)" serve

$(ENV_TRAIN)/.installed: requirements/train.txt requirements/build.txt requirements/install.sh pyproject.toml
	@sh requirements/install.sh "$(ENV_TRAIN)" train

$(ENV_TEST)/.installed: requirements/test.txt requirements/build.txt requirements/install.sh pyproject.toml
	@sh requirements/install.sh "$(ENV_TEST)" test
