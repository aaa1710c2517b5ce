# What a person does here; `make help` lists it. Each target is safe to repeat.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# make up UP="pxc --nodes 5"; make test PYTEST="-x -k restore"
UP ?= pxc --nodes 3 --exist-ok
PYTEST ?=
# Seconds after which the tests are interrupted; they then still clean up and report.
TEST_TIMEOUT ?= 14400
# Guests for the tests on ZFS, such as `trixie`. If empty: all for test-zfs and test-all, the newest
# for test.
ZFS_RELEASES ?=
# Seconds of `make soak`.
SOAK ?= 7200
# make test-e2e ALL=1: rare tests as well.
ALL ?=

python := .venv/bin/python
suite = $(python) tests/suite.py --timeout $(TEST_TIMEOUT) --releases "$(ZFS_RELEASES)" $(if $(ALL),--all)
scripts = $(shell grep -rslE '^\#! ?(/usr)?/bin/(env )?(ba)?sh' .ci scripts images lab testvm packaging)

.PHONY: help up setup setup-tests venv venv-client venv-serve venv-dev lint format test test-all test-unit test-installs test-e2e test-zfs test-zfs-keep test-kvm soak fuzz bench release lock clean

help: ## list the targets
	@sed -nE 's/^([a-z][a-z0-9-]*):[^#]*## (.*)/\1\t\2/p' Makefile | \
	    while IFS=$$'\t' read -r name text; do printf '%-12s %s\n' "$$name" "$$text"; done

up: venv ## a ready 3-node cluster: prepares this host if needed, then `lab up pxc --nodes 3`
	@.venv/bin/lab up $(UP)

setup: ## install missing system packages and see that libvirt answers
	@scripts/setup-host

setup-tests: setup ## install programs that only tests need: Chromium, curl, gpg, ip, jq, PostgreSQL, zstd
	@scripts/setup-host tests

venv: setup ## .venv with what labs and datasets on this host need, pinned
	@scripts/venv run

venv-client: ## .venv for a service elsewhere only: nothing is compiled, and no system package is needed
	@scripts/venv client

venv-serve: setup ## .venv with the service (`lab serve`) as well
	@scripts/venv serve

venv-dev: setup ## .venv with the tools for tests and checks as well
	@scripts/venv dev

lint: venv-dev ## style, types, shell scripts, spelling, subjects of commits
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/shellcheck $(scripts)
	.venv/bin/codespell
	scripts/words
	scripts/subjects

format: venv-dev ## let ruff put the code in order
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

test: venv-dev setup-tests ## the tests that each change must pass, with real guests and real ZFS; reports what was skipped and why
	@scripts/machine
	@$(suite) -- $(PYTEST)

test-all: ALL = 1
test-all: venv-dev setup-tests ## all tests, including rare ones, on each OpenZFS release: hours where guests are emulated
	@scripts/machine
	@$(suite) -- $(PYTEST)

test-unit: venv-dev setup-tests ## the tests of `make test` that need no guest: minutes
	@$(suite) --only unit -- $(PYTEST)

test-installs: venv-dev ## the wheel without our pins: the newest packages, the oldest, beside others', and a client alone
	@$(suite) --only unit --all -- tests/project/test_installs.py $(PYTEST)

test-e2e: venv-dev ## the tests of `make test` on real guests
	@scripts/machine
	@$(suite) --only e2e -- $(PYTEST)

test-zfs: venv-dev ## all tests on real ZFS: here if this host has it, else in guests built for that
	@$(python) -m testvm test --releases "$(ZFS_RELEASES)" -- $(PYTEST)

test-zfs-keep: venv-dev ## keep such a guest running, for many runs in it (CONTRIBUTING.md)
	@$(python) -m testvm keep $(addprefix --release ,$(ZFS_RELEASES))

test-kvm: venv-dev ## labs under KVM in machines of both Debian releases, by an emulated SVM where this host has no KVM: about an hour
	@scripts/machine
	@$(suite) --only e2e --all -- tests/e2e/test_kvm.py tests/contract/test_hypervisor_libvirt.py $(PYTEST)

soak: venv-dev ## two hours of resets, claims, sleeps and wakes under clients that work (SOAK: seconds)
	@scripts/machine
	@LAB_SOAK_SECONDS=$(SOAK) $(suite) --only e2e --all -- tests/e2e/test_soak.py $(PYTEST)

fuzz: venv-dev ## damaged inputs for each reader of foreign bytes, five minutes each
	$(python) -m pytest tests/fuzz -m rare $(PYTEST)

bench: venv-dev ## measure, and print the table of docs/benchmarks.md
	@scripts/machine
	$(python) -m bench

release: venv-dev ## build wheel and sdist in dist/, install them into an empty environment and try them; nothing is uploaded
	@$(python) scripts/release

lock: ## pin the newest allowed dependencies (packaging/requirements) for Python 3.10 to 3.14
	@scripts/lock --upgrade

clean: ## remove .venv and caches; labs, templates and images stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
