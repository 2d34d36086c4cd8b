# Circuitbook's menu. `make help` says what there is; every entry is phony, so nothing here is
# rebuilt by time stamps: each program compares contents by itself and does only what is missing.

PYTHON ?= python3
VENV ?= .venv
DEVICE ?= auto
MODELS ?= course
QUICK ?= 0
JOBS ?= 2
PYTEST_ARGS ?=
LAB_ARGS ?=

ifeq ($(filter auto cpu cuda,$(DEVICE)),)
$(error DEVICE=$(DEVICE) is not known: use DEVICE=auto, DEVICE=cpu or DEVICE=cuda)
endif
ifeq ($(filter course published,$(MODELS)),)
$(error MODELS=$(MODELS) is not known: use MODELS=course or MODELS=published)
endif
ifeq ($(filter 0 1,$(QUICK)),)
$(error QUICK=$(QUICK) is not known: use QUICK=1 for a fast pass, or leave it out)
endif
export DEVICE MODELS QUICK

PY := $(VENV)/bin/python

# The environment's own Python takes care of the environment, unless another one is asked for.
BOOT := $(PYTHON)
ifeq ($(origin PYTHON),file)
ifneq ($(wildcard $(PY)),)
BOOT := $(PY)
endif
endif

# Two test workers share the cores; one thread each keeps them from fighting.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help setup text all published test lint format lab figures lessons assignments grade site \
	test-site check compare weights accept doctor clean python ready

help: ## List what this menu offers
	@echo 'Circuitbook. Usage: make TARGET [DEVICE=auto|cpu|cuda] [MODELS=course|published] [QUICK=1]'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s  %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo 'PYTHON=python3.12 makes the environment with that Python (3.11 or later).'

setup: python ## Create the environment and install the pinned packages (minutes, once)
	@$(BOOT) tools/environment.py setup $(VENV)

text: setup ## Fetch the pinned text of the course, or check the text that is there
	@MODELS=course $(PY) -m circuitbook.corpus fetch

all: text ## Measure every chapter, draw figures, build notebooks, list the claims
ifeq ($(MODELS),published)
	@$(PY) -m circuitbook.published fetch
endif
	@status=0; \
	$(PY) tools/derive.py taught || status=1; \
	$(PY) -m circuitbook.measure || status=1; \
	$(PY) -m circuitbook.gallery || status=1; \
	$(PY) -m circuitbook.attribution.page || status=1; \
	$(PY) tools/derive.py all || status=1; \
	$(PY) -m circuitbook.results compare || status=1; \
	RECOMPUTE=1 $(PY) -m circuitbook.series || status=1; \
	RECOMPUTE=1 $(PY) -m circuitbook.results claims || status=1; \
	exit $$status

published: setup ## The same with the series' own models and text: about 1.4 GB are fetched, once
	@$(MAKE) --no-print-directory all MODELS=published

test: text ## Run the tests
	@$(ONE_THREAD) $(PY) -m pytest -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

lint: setup ## Check the code's style and format
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

format: setup ## Format the code
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

lab: setup ## Open JupyterLab on your own copy of the notebooks, in work/
	@$(PY) tools/environment.py work
	@$(PY) -m jupyter lab --ServerApp.root_dir=work $(LAB_ARGS)

figures: ready ## Draw the figures again from the results; trains and downloads nothing
	@$(PY) -m circuitbook.gallery
	@$(PY) -m circuitbook.attribution.page

lessons: ready ## Build notebooks, assignments and tables from scripts/; downloads nothing
	@$(PY) tools/derive.py all

assignments: ready ## Build the student and teacher copies of the notebooks from scripts/
	@$(PY) tools/derive.py assignments

grade: ready ## Grade a folder of submissions: make grade SUBMISSIONS=FOLDER [WRITTEN=marks.csv] [TRUST=1]
	@$(PY) tools/grade.py

site: ready ## Build the web pages in build/site from what is committed; runs nothing
	@$(PY) tools/site.py

test-site: setup ## Build the site and try it in a headless Chromium, with the network off
	@$(BOOT) tools/environment.py browser $(VENV)
	@$(PY) tools/site.py
	@$(ONE_THREAD) $(PY) -m pytest site/tests $(PYTEST_ARGS)

check: ready ## List every claim with its state and look for drift in what is built
	@status=0; \
	$(PY) -m circuitbook.results claims || status=1; \
	$(PY) -m circuitbook.gallery --check || status=1; \
	$(PY) -m circuitbook.attribution.page --check || status=1; \
	$(PY) tools/derive.py all --check || status=1; \
	$(PY) -m circuitbook.series --check || status=1; \
	exit $$status

compare: ready ## Set every number of the series beside ours, from results/ alone
	@$(if $(filter published,$(MODELS)),RECOMPUTE=1 )$(PY) -m circuitbook.series

weights: text ## Train the models and dictionaries (hours); goes on where it stopped
	@MODELS=course $(PY) -m circuitbook.train all
	@MODELS=course $(PY) -m circuitbook.autoencoders.train all

accept: ready ## Make the new measurements the committed evidence (read CONTRIBUTING first)
	@$(PY) -m circuitbook.measure --accept
	@$(PY) -m circuitbook.series

doctor: python ## Say what this machine has, what will be slow and what to do next
	@PYTHONPATH=src $(BOOT) -m circuitbook.doctor

clean: python ## Delete what was built; keeps the environment, the text and work/
	@$(BOOT) tools/environment.py clean

# Guards, not in the menu.
python:
	@$(BOOT) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo 'Circuitbook needs Python 3.11 or later, and $(BOOT) is not that (or is not there).'; \
	echo 'Name another one, for example: make $(firstword $(MAKECMDGOALS) setup) PYTHON=python3.12'; \
	exit 1; } >&2

ready: python
	@$(BOOT) tools/environment.py ready $(VENV)
