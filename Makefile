# SPDX-License-Identifier: MIT
# Doors to set-up, build and checks; the build itself is Meson's. `make help` lists them.
MAKEFLAGS += --no-builtin-rules --no-print-directory
SHELL := /bin/bash

PORT ?= 8080
DIR ?= build/docs
PREFIX ?= /usr/local
export PREFIX

release := build/release
jobs := $(shell nproc)

.PHONY: all setup run check check-all bench mutants format install clean help
.DEFAULT_GOAL := all

# A signal that drains the server must not make `make run` a failure: see tools/make_signals.c. Where
# make or the kernel lacks what that needs, `run` works and ends with the signal's status.
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
	@tools/setup.sh build check check-all demos
	@tools/check.sh all

bench: all
	@tools/setup.sh build bench
	@bench/run.sh

mutants:
	@tools/setup.sh build check
	@tests/mutants/run.sh

format:
	@tools/setup.sh build check
	@tools/format.sh

install: all
	@tools/setup.sh build command
	@meson install -C $(release) --no-rebuild --quiet
	@if [ -d build/venv ]; then build/venv/bin/python tools/packages.py \
	    --copy "$(DESTDIR)$(PREFIX)/lib/rouse/packages"; fi
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

clean:
	rm -rf build

help:
	@echo 'make             set up what is missing and build; programs in build/bin/, pages in build/docs/'
	@echo 'make run         one experiment, then serve DIR=$(DIR) at 127.0.0.1:$(PORT) until SIGINT or SIGTERM'
	@echo 'make check       every test of the quick matrix; make check-all: the full one'
	@echo 'make bench       the tables of docs/benchmarks.md, measured here'
	@echo 'make mutants     each removed fence or check with the test that killed it'
	@echo 'make format      format the C and Python sources'
	@echo 'make install     PREFIX=$(PREFIX), DESTDIR='
	@echo 'make clean       remove build/'
