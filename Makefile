SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := run
.PHONY: run test test-all test-more test-federation test-ray test-track check-report check-wheel coverage torture lint docs docs-site results clean

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
RUNNABLE := .venv/.runnable

run: $(RUNNABLE)
ifeq ($(NOISE),1)
	$(BIN)/fedskew compare fedavg fedla "fednoro(warmup=8)" --dataset digits --partition dirichlet:1.0 --clients 10 \
		--noise pairflip:0.4 --set noise.low=0.6 --set noise.high=0.8 --rounds 20 --lr 0.05 --out runs/noise --force
	$(BIN)/fedskew detect runs/noise/fednoro-warmup=8-seed0 --out runs/noise \
		--picture runs/noise/detection.png
else
	$(BIN)/fedskew compare fedavg fedntd fedlmd-tf fedlmd fedvls --dataset digits --partition dirichlet:0.1 \
		--clients 20 --clients-per-round 10 --rounds 30 --evaluate-clients --out runs/demo --force
endif

test: $(INSTALLED)
	$(BIN)/python -m pytest -q -n auto --dist worksteal

test-all: $(INSTALLED)
	$(BIN)/python -m pytest -q -m "slow or not slow" -n auto --dist worksteal --durations 20 2>&1 | tee test-all.log

# slow tests that continuous integration runs, too: every page, and a site that waits a minute until Flower lets it in
test-more: $(INSTALLED)
	$(BIN)/python -m pytest -q -m slow -n auto --dist worksteal tests/project/test_pages.py \
		tests/federation/transport/test_faults.py::test_a_site_killed_in_a_round_comes_back_with_its_memory

test-ray: $(INSTALLED)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev,ray]"
	$(BIN)/python -m pytest -q -rP -m "slow or not slow" --durations 20 tests/engines/test_ray.py tests/examples/test_deployment.py

test-track: $(INSTALLED)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev,track]"
	$(BIN)/python -m pytest -q -rs -m "slow or not slow" --durations 20 tests/experiment/callbacks/test_trackers.py

test-federation: $(INSTALLED)
	$(BIN)/python -m pytest -q -m "slow or not slow" --durations 20 tests/federation tests/experiment/test_upload_preview.py

check-report: $(INSTALLED)
	$(BIN)/fedskew report runs/demo -o runs/demo/report.html
	$(BIN)/python -m tests.browser.opens runs/demo/report.html

check-wheel: $(INSTALLED)
	$(BIN)/python scripts/check_wheel.py

coverage: $(INSTALLED)
	$(BIN)/python -m pytest -q -n auto --dist worksteal --cov --cov-report term:skip-covered

torture: $(INSTALLED)
	$(BIN)/python scripts/torture.py --quick

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy src/fedskew
	$(BIN)/deptry src
	$(BIN)/typos

docs: $(INSTALLED)
	$(BIN)/python -m fedskew.methods.index
	$(BIN)/fedskew methods --pages docs/reference/methods
	$(BIN)/python -m fedskew.methods.combine > docs/reference/combinations.md
	$(BIN)/python -m fedskew.data.datasets.pages docs/reference/data
	$(BIN)/python -m fedskew.config.page docs/reference/configuration.md
	$(BIN)/python scripts/licenses.py

docs-site: $(INSTALLED)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev,docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "Open build/site/index.html."

results: $(INSTALLED)
	$(BIN)/python scripts/results.py
	$(BIN)/python scripts/results_page.py
	$(BIN)/python scripts/standings.py
	$(BIN)/python scripts/robust.py page

clean:
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis test-all.log .coverage
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNNABLE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(RUNNABLE) $@
