# SPDX-License-Identifier: MIT
# Entry points for set-up, build, checks and installation. Meson does the build. `make help` lists the targets.
MAKEFLAGS += --no-builtin-rules --no-print-directory
.NOTPARALLEL: # ninja and meson run the jobs; two targets at once would build in one folder
SHELL := /bin/bash

PORT ?= 8080
DIR ?= build/docs
PREFIX ?= /usr/local
export PREFIX

release := build/release
jobs := $(shell nproc)

.PHONY: all setup run check check-all fuzz soak bench mutants format install install-tool dist deb clean help
.DEFAULT_GOAL := all

# A signal that drains the server must not make `make run` fail: see tools/make_signals.c. This needs a make that
# loads plug-ins and a kernel with /proc/PID/task/TID/children. Without them `make run` ends with the signal's status.
ifneq (,$(and $(filter run,$(MAKECMDGOALS)),$(filter load,$(.FEATURES)),$(wildcard /proc/self/task/*/children)))
$(shell tools/setup.sh build >&2 && gcc -O2 -shared -fPIC -o build/make_signals.so.new \
    tools/make_signals.c && mv build/make_signals.so.new build/make_signals.so)
-load build/make_signals.so(make_signals_gmk_setup)
endif

all: setup
	@tools/configure.sh release
	@ninja -C $(release) -j $(jobs) --quiet
	@mkdir -p build/bin
	@ln -sf ../release/serve/rouse-serve ../release/bench/rouse-bench build/bin/
	@ln -sf ../../tools/rouse.sh build/bin/rouse
	@ln -sfn release/docs/html build/docs

setup:
	@tools/setup.sh build

run: all
	@exec python3 tools/demo.py $(if $(.LOADED),--own-group) --port "$(PORT)" "$(DIR)"

check:
	@tools/setup.sh build check
	@tools/check.sh quick

check-all:
	@tools/setup.sh build check $(if $(GROUP),$(if $(filter aarch64 tidy spark others,$(GROUP)),check-all demos),check-all demos) $(if $(or $(filter packages,$(GROUP)),$(if $(GROUP),,all)),dist deb packages)
	@tools/check.sh $(or $(GROUP),all)

FUZZ_SECONDS ?= 20

fuzz:
	@tools/setup.sh build check
	@tools/configure.sh asan
	@ninja -C build/asan -j $(jobs) --quiet serve/rouse-serve
	@cd tests/e2e && FUZZ_SECONDS=$(FUZZ_SECONDS) ROUSE_BUILD=../../build/asan python3 serve_fuzz_test.py

SOAK_SECONDS ?= 600

soak: all
	@cd tests/e2e && SOAK_SECONDS=$(SOAK_SECONDS) ROUSE_BUILD=../../$(release) python3 serve_soak_test.py

bench: all
	@tools/setup.sh build bench
	@bench/run.sh

mutants:
	@tools/setup.sh build check
	@tests/mutants/run.sh

format:
	@tools/setup.sh build check
	@tools/format.sh

install:
	@tools/prefix.sh install "$(PREFIX)" "$(DESTDIR)"
	@$(MAKE) all
	@meson install -C $(release) --no-rebuild --quiet --tags runtime,devel,man,doc
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi
	@tools/prefix.sh installed "$(PREFIX)" "$(DESTDIR)"

# The Python packages come first: without them the command does not run, and nothing is installed.
install-tool:
	@tools/prefix.sh install-tool "$(PREFIX)" "$(DESTDIR)"
	@tools/setup.sh command
	@$(MAKE) all
	@meson install -C $(release) --no-rebuild --quiet --tags python-runtime
	@build/venv/bin/python tools/packages.py --copy "$(DESTDIR)$(PREFIX)/lib/rouse/packages"
	@tools/prefix.sh installed "$(PREFIX)" "$(DESTDIR)"

# What a release consists of, from the last commit.
dist:
	@tools/setup.sh build dist
	@tools/dist.sh build/dist

# The Debian packages of the last commit.
deb:
	@tools/setup.sh deb
	@tools/deb.sh build/deb

clean:
	rm -rf build

help:
	@echo 'make               install missing build tools and build: programs in build/bin/, pages in build/docs/'
	@echo 'make install       library, headers, programs, man pages: PREFIX=$(PREFIX), DESTDIR='
	@echo 'make install-tool  the command rouse and its Python packages: PREFIX=$(PREFIX), DESTDIR='
	@echo 'make dist          build/dist: the source tarball, the sdist and the wheel of the last commit'
	@echo 'make deb           build/deb: the Debian packages of the last commit'
	@echo 'make run           run one experiment, then serve DIR=$(DIR) at 127.0.0.1:$(PORT) until SIGINT or SIGTERM'
	@echo 'make check         run the quick test matrix; make check-all: the full one'
	@echo 'make fuzz          send random requests to rouse-serve with the address sanitizer for FUZZ_SECONDS=$(FUZZ_SECONDS)'
	@echo 'make soak          run rouse-serve with faults for SOAK_SECONDS=$(SOAK_SECONDS)'
	@echo 'make bench         measure the tables of docs/benchmarks.md on this machine'
	@echo 'make mutants       remove each fence or check in turn and name the test that notices'
	@echo 'make format        format the C and Python sources'
	@echo 'make clean         remove build/'
