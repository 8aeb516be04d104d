# `make help` lists what there is. Each recipe is one script in scripts/.
MAKEFLAGS += --no-print-directory
PREFIX ?= /usr/local
DESTDIR ?=
DEPTH ?= default
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: all install uninstall header demo test vm bench rooms clean help

## make                    fill dist/: libraries, headers, pkg-config and CMake files, the tool
all:
	@scripts/dist

## make install            copy dist/ to PREFIX (/usr/local), under DESTDIR when that is given
install:
	@scripts/install "$(DESTDIR)" "$(PREFIX)"

## make uninstall          remove from PREFIX what install wrote there, and nothing else
uninstall:
	@scripts/uninstall "$(DESTDIR)" "$(PREFIX)"

## make demo               two processes exchange verified data over shared memory, then TCP
demo:
	@scripts/demo

## make test [DEPTH=ci]    the tests; `ci` adds loom, miri, sanitizers, fuzzing, deep simulation
test:
	@scripts/test --depth "$(DEPTH)"

## make vm                 the tests that want RDMA devices, in a QEMU guest that has soft-RoCE
vm:
	@scripts/test vm

## make bench              measure against other libraries, as doc/benchmarks.md describes
bench:
	@scripts/bench

## make header             write c-api/include/crosstie.h from the Rust sources
header:
	@scripts/header

## make rooms              draw doc/rooms.svg from doc/rooms.dot, with graphviz
rooms:
	@scripts/rooms

## make clean              remove everything that was built
clean:
	@rm -rf dist "$(TARGET)"

help:
	@sed -n 's/^## //p' Makefile
