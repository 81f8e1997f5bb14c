# Sets everything up in .venv, builds the plugin, runs and tests it. `make help` says what there is.
#
# Every build goes through the same interpreter, target folder and profile, so that `pip wheel`, `cargo test` and
# `cargo clippy` share what they have in common and a second run finds nothing to build.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps

# Where build.rs looks for headers and compilers; see nvcomp-sys/build/wheels.rs.
export ZARR_DALI_PYTHON := $(BIN)/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Many tests start a process, and each would compile all Python files anew.
unexport PYTHONDONTWRITEBYTECODE

EXTRAS := build train test dev
SOURCES := $(shell find Cargo.toml Cargo.lock build build.rs pyproject.toml LICENSE README.md core cpp_shim nvcomp-sys plugin \
	python src \
	-type f -not -path '*/__pycache__/*')
# Many thousand zstd frames each.
LONG_RUST_TESTS := damaged_frames_do_not_pass repeat_offsets_are_those_of_libzstd valid_frames_pass
# So many Python tests run side by side: twice as many as there are cores, since they wait for servers, and a tenth of a
# second for each store that was just written. Each process takes up to 1 GB of memory.
JOBS ?= $(shell cores=$$(nproc); echo $$((cores < 4 ? 2 * cores : 8)))
# The files with tests that measure. No other has to be imported for them.
MEASURING := $(shell grep -lE 'mark\.alone' tests/python/test_*.py)

# Python tests that an expression of markers chooses: side by side, then one after the other those that measure.
define python_tests
	@echo '==> Python tests, $(JOBS) at a time'
	$(call run_pytest,($(1)) and not alone,-n $(JOBS) --dist loadfile --no-loadscope-reorder)
	@echo '==> Python tests that measure, one after the other'
	$(call run_pytest,($(1)) and alone,$(MEASURING))
endef

# What fails runs again, one after the other, which counts: it may have lacked time or memory, or a process may have been
# ended. Where that leaves nothing to run (5), or the run itself ended (3: an internal error of pytest, 128 and more: a
# signal), all of it does. What an earlier run noted is cleared, so that it is not taken for what failed in this one.
define run_pytest
	@$(BIN)/python -m pytest --cache-clear $(2) -m '$(1)' || { status=$$?; \
		again() { echo "==> exit status $$status: again, one after the other"; $(BIN)/python -m pytest -m '$(1)' "$$@"; }; \
		case $$status in \
			1) again --last-failed --last-failed-no-failures none --maxfail 10 || { \
				status=$$?; [ $$status -eq 5 ] || exit $$status; again; } ;; \
			2|4|5) exit $$status ;; \
			*) again ;; \
		esac; }
endef

# Exit status 69: they cannot be downloaded, as without a network.
get_dali_releases = echo '==> DALI releases (downloaded the first time)' && mkdir -p target \
	&& $(BIN)/python python/wheels.py target/dali $(MACHINE) > target/dali.txt

MINIMUM_RUST := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
MINIMUM_PYTHON := $(shell sed -n 's/^requires-python = ">=\(.*\)"/\1/p' pyproject.toml)

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

.PHONY: demo
demo: $(STAMPS)/installed ## train a small U-Net for a few steps on a store it writes; ARGS="..." goes to the script
	@echo '==> training: pipelines/train_unet.py' $(ARGS)
	@$(BIN)/python pipelines/train_unet.py $(ARGS)

.PHONY: test
test: $(STAMPS)/installed ## the quick tests, Rust and Python: some minutes, every part of the code
	@echo '==> Rust tests'
	@PROPTEST_CASES=64 cargo test --release --workspace -- $(addprefix --skip ,$(LONG_RUST_TESTS))
	$(call python_tests,not full)

.PHONY: test-all
test-all: $(STAMPS)/installed ## all tests that this machine can run, Rust and Python
	@status=0; $(get_dali_releases) || status=$$?; case $$status in \
		0) $(MAKE) --no-print-directory wheels ;; \
		69) echo '==> without the releases of DALI the tests of the wheel of a release are skipped' ;; \
		*) exit $$status ;; \
	esac
	@echo '==> Rust tests'
	@PROPTEST_CASES=256 cargo test --release --workspace
	$(call python_tests,full or not full)

.PHONY: azurite
azurite: $(STAMPS)/requirements ## install Azurite, with which tests read from Azure; needs npm, and brings its own Node.js
	@echo '==> Azurite in .venv/azurite'
	@npm install --silent --no-fund --no-audit --prefix $(VENV)/azurite azurite@3.37 node@22

.PHONY: check
check: $(STAMPS)/requirements check-prerequisites ## formatting and lints, warnings are errors
	@echo '==> rustfmt'
	@cargo fmt --all --check
	@echo '==> clippy'
	@cargo clippy --release --workspace --all-targets -- -D warnings
	@echo '==> clang-format'
	@$(BIN)/clang-format --dry-run -Werror cpp_shim/*.h cpp_shim/*.cc src/kernels/*.cu tests/nvtx/*.c tests/driver/*.c
	@echo '==> ruff'
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .

.PHONY: wheel
wheel: dist/.built ## build the Python wheel into dist/
	@ls dist/*.whl

# Another machine than this one: `make wheels MACHINE=aarch64`, with Debian's g++-aarch64-linux-gnu and
# `rustup target add aarch64-unknown-linux-gnu`.
MACHINE ?= $(shell uname -m)
TARGET := $(MACHINE)-unknown-linux-gnu
TARGET_NAME := $(subst -,_,$(TARGET))
CROSS := $(if $(filter-out $(shell uname -m),$(MACHINE)),ZARR_DALI_TARGET=$(TARGET) \
	CARGO_TARGET_$(shell echo $(TARGET_NAME) | tr a-z A-Z)_LINKER=$(MACHINE)-linux-gnu-gcc CC_$(TARGET_NAME)=$(MACHINE)-linux-gnu-gcc \
	CXX_$(TARGET_NAME)=$(MACHINE)-linux-gnu-g++ AR_$(TARGET_NAME)=$(MACHINE)-linux-gnu-ar \
	BINDGEN_EXTRA_CLANG_ARGS_$(TARGET_NAME)="--sysroot=/usr/$(MACHINE)-linux-gnu -I/usr/$(MACHINE)-linux-gnu/include")
WHEELS := dist/wheels$(if $(CROSS),-$(MACHINE))

.PHONY: wheels
wheels: $(WHEELS)/.built ## build the wheel of a release into dist/wheels/: a library for each DALI release since 2.0
	@ls -l $(WHEELS)/*.whl

# Interpreters, DALI releases and releases of CUDA: make wheels-test PYTHONS="python3.10 python3.13" DALI=2.4.0 CUDA=13
# "true": make drops what a command prints that ends with 127, as the last of a list of absent programs may.
PYTHONS ?= $(shell for minor in 10 11 12 13 14 15; do python3.$$minor -c '' 2>/dev/null && command -v python3.$$minor; done; true)
WHEELS_REPORT ?= benches/results/wheels-$(shell date +%F).md

.PHONY: wheels-test
wheels-test: wheels ## try the wheel of a release with releases of DALI and Python in fresh environments; long, needs the index
	@test -n "$(strip $(PYTHONS))" || { echo 'no python3.10 to python3.15 is on the PATH: make wheels-test PYTHONS="/path/to/python3.12 ..."' >&2; exit 1; }
	@$(BIN)/python tests/wheels.py dist/wheels/*.whl --python $(PYTHONS) --report $(WHEELS_REPORT) \
		$(if $(DALI),--dali $(DALI)) $(if $(CUDA),--cuda $(CUDA))

.PHONY: release
release: ## set VERSION=x.y.z, head the changelog with it, build and try the wheel, commit and tag; nothing is pushed
	@$(PYTHON) python/release.py $(VERSION)

.PHONY: clean
clean: ## remove .venv, dist and everything that was compiled
	@echo '==> removing .venv, dist, target and caches'
	@cargo clean --quiet
	@rm -rf $(VENV) dist .pytest_cache .ruff_cache

# One install for everything: pip then picks versions that fit together.
$(STAMPS)/requirements: pyproject.toml python/requirements.py | prerequisites
	@echo '==> Python environment in .venv: DALI, CUDA compiler, PyTorch, tools (minutes the first time)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@$(BIN)/python python/requirements.py $(EXTRAS) > $@.txt
	@$(BIN)/python -m pip install --quiet --requirement $@.txt
	@touch $@

dist/.built: $(SOURCES) $(STAMPS)/requirements
	@echo '==> building the plugin (minutes the first time)'
	@cargo build --release --package zarr-dali-core
	@echo '==> packing the wheel'
	@mkdir -p dist && rm -f dist/zarr_dali-*.whl
	@$(BIN)/python -m pip wheel . --quiet --no-deps --no-build-isolation --wheel-dir dist
	@touch $@

$(WHEELS)/.built: $(SOURCES) $(STAMPS)/requirements
	@$(get_dali_releases)
	@mkdir -p $(WHEELS) && rm -f $(WHEELS)/zarr_dali-*.whl
	@echo '==> building the core and the shims for $(MACHINE)'
	@$(CROSS) ZARR_DALI_SHIMS=$$(cat target/dali.txt) $(BIN)/python -m pip wheel . --quiet --no-deps --no-build-isolation \
		--wheel-dir $(WHEELS)
	@touch $@

$(STAMPS)/installed: dist/.built
	@echo '==> installing the wheel into .venv'
	@$(BIN)/python -m pip install --quiet --no-deps --force-reinstall dist/zarr_dali-*.whl
	@touch $@

.PHONY: prerequisites
prerequisites:
	@missing=0; need() { printf 'missing: %s\n' "$$1" >&2; missing=1; }; \
	older() { [ "$$(printf '%s\n' "$$1" "$$2" | sort -V | head -n 1)" != "$$2" ]; }; \
	if ! version=$$($(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null); then \
		need 'Python $(MINIMUM_PYTHON) or newer ($(PYTHON)): apt install python3 python3-venv'; \
	elif older "$$version" '$(MINIMUM_PYTHON)'; then \
		need "Python $(MINIMUM_PYTHON) or newer ($(PYTHON) is $$version): make PYTHON=python3.12 names another"; \
	elif ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
		need "Python's venv module: apt install python3-venv"; \
	fi; \
	if ! version=$$(cargo --version 2>/dev/null | cut -d ' ' -f 2); then \
		need 'cargo $(MINIMUM_RUST) or newer: https://rustup.rs'; \
	elif older "$$version" '$(MINIMUM_RUST)'; then \
		need "cargo $(MINIMUM_RUST) or newer (this is $$version): rustup update, or https://rustup.rs"; \
	fi; \
	command -v g++ >/dev/null || need 'g++: apt install g++'; \
	exit $$missing

.PHONY: check-prerequisites
check-prerequisites:
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || \
		{ echo 'missing: rustfmt and clippy: rustup component add rustfmt clippy' >&2; exit 1; }
