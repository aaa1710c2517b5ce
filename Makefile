# What a person does here; `make help` lists it. Each target is safe to repeat.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# make up UP="pxc --nodes 5"; make test PYTEST="-x -k restore"
UP ?= pxc --nodes 3 --exist-ok
PYTEST ?=
# Seconds after which the tests are interrupted; they then still clean up and report.
TEST_TIMEOUT ?= 4800
# The guests that test-zfs uses, such as `trixie`; all if empty.
ZFS_RELEASES ?=

python := .venv/bin/python
# The time of all tests together: SECONDS has passed when these begin.
pytest = timeout --foreground --signal=INT --kill-after=120 $$(($(TEST_TIMEOUT) - SECONDS)) \
    $(python) -m pytest --ignore=tests/platform
testvm = $(python) -m testvm test --releases "$(ZFS_RELEASES)" -- $(PYTEST)
scripts = $(shell grep -rslE '^\#! ?(/usr)?/bin/(env )?(ba)?sh' .ci scripts images testvm packaging)

.PHONY: help up setup setup-tests venv venv-serve venv-dev lint format test test-unit test-e2e test-zfs test-zfs-keep bench lock clean

help: ## list the targets
	@sed -nE 's/^([a-z][a-z0-9-]*):[^#]*## (.*)/\1\t\2/p' Makefile | \
	    while IFS=$$'\t' read -r name text; do printf '%-12s %s\n' "$$name" "$$text"; done

up: venv ## a ready 3-node cluster: prepares this host if needed, then `lab up pxc --nodes 3`
	@.venv/bin/lab up $(UP)

setup: ## install missing system packages and see that libvirt answers
	@scripts/setup-host

setup-tests: setup ## what only tests need: Chromium and ip
	@scripts/setup-host tests

venv: setup ## .venv with what `lab` needs, pinned
	@scripts/venv run

venv-serve: setup ## .venv with the service (`lab serve`) as well
	@scripts/venv serve

venv-dev: setup ## .venv with the tools for tests and checks as well
	@scripts/venv dev

lint: venv-dev ## style, types, shell scripts, spelling
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/shellcheck $(scripts)
	.venv/bin/codespell

format: venv-dev ## let ruff put the code in order
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

test: venv-dev setup-tests ## all tests this machine can run, on real guests too; says what was skipped and why
	@scripts/machine
	@status=0; $(testvm) || status=$$?; \
	    $(pytest) $(PYTEST) || status=$$?; exit $$status

test-unit: venv-dev setup-tests ## the tests that need no guest, in seconds
	$(pytest) -m "not e2e and not slow" $(PYTEST)

test-e2e: venv-dev ## the tests on real guests
	@scripts/machine
	$(pytest) -m e2e $(PYTEST)

test-zfs: venv-dev ## the tests on real ZFS: here if this host has it, else in guests built for that
	@$(testvm)

test-zfs-keep: venv-dev ## keep such a guest running, for many runs in it (CONTRIBUTING.md)
	@$(python) -m testvm keep $(addprefix --release ,$(ZFS_RELEASES))

bench: venv-dev ## measure, and print the table of docs/benchmarks.md
	@scripts/machine
	$(python) scripts/bench.py

lock: ## pin the newest allowed dependencies (requirements*.txt) for Python 3.10 to 3.14
	@scripts/lock --upgrade

clean: ## remove .venv and caches; labs, templates and images stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
