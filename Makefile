SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := run
.PHONY: run test test-all test-federation test-ray test-track check-report torture lint docs results clean

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

run: $(INSTALLED)
ifeq ($(NOISE),1)
	$(BIN)/fedskew compare fedavg fedla "fednoro(warmup=8)" --dataset digits --partition dirichlet:1.0 --clients 10 \
		--noise pairflip:0.4 --set noise.low=0.6 --set noise.high=0.8 --rounds 20 --lr 0.05 --out runs/noise --force
	$(BIN)/fedskew detect runs/noise/fednoro-warmup=8-seed0 --out runs/noise
else
	$(BIN)/fedskew compare fedavg fedntd fedlmd-tf fedlmd fedvls --dataset digits --partition dirichlet:0.1 \
		--clients 20 --per-round 10 --rounds 30 --score-clients --out runs/demo --force
endif

test: $(INSTALLED)
	$(BIN)/python -m pytest -q -n auto --dist worksteal

test-all: $(INSTALLED)
	$(BIN)/python -m pytest -q -m "slow or not slow" -n auto --dist worksteal --durations 20 2>&1 | tee test-all.log

test-ray: $(INSTALLED)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev,ray]"
	$(BIN)/python -m pytest -q -rP -m "slow or not slow" --durations 20 tests/engines/test_ray.py

test-track: $(INSTALLED)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev,track]"
	$(BIN)/python -m pytest -q -rs -m "slow or not slow" --durations 20 tests/test_track.py

test-federation: $(INSTALLED)
	$(BIN)/python -m pytest -q -m "slow or not slow" --durations 20 tests/flower tests/federation tests/test_leaving.py

check-report: $(INSTALLED)
	$(BIN)/fedskew report runs/demo -o runs/demo/report.html
	$(BIN)/python -m tests.browser.opens runs/demo/report.html

torture: $(INSTALLED)
	$(BIN)/python scripts/torture.py --quick

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy src/fedskew

docs: $(INSTALLED)
	$(BIN)/fedskew methods --pages docs
	$(BIN)/python -m fedskew.methods.combine > docs/combinations.md
	$(BIN)/python -m fedskew.data.pages docs/data

results: $(INSTALLED)
	$(BIN)/python scripts/results.py
	$(BIN)/python scripts/results_page.py

clean:
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis test-all.log
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@
