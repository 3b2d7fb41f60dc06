# Penstock: see README.md for the two commands that matter (make demo, make test).

GO      ?= go
TOOLS   := $(GO) tool -modfile=tools/go.mod
BIN     := bin/penstock
.PHONY: quick demo test tests plain checked guests dpdk nightly nights check bench soak generate build build-dpdk capi wheel cross-wheel deps fuzz gpu-test gpu-bench clean

# For the loop of somebody who changes one package: no root, no guests, no network. PKG=./transfer/... restricts the tests, which run again only where something
# changed (the cache of go test). Packages whose tests need rights or other programs, or take long, are left to make test.
PKG ?= $(shell $(GO) list ./... | grep -vE '/penstock/(bindings/c|bench|cli|engine/xdp|gpu/opencl|internal/(accel|kernels|lab))(/|$$)')
quick:
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi
	$(GO) vet $(PKG)
	CGO_ENABLED=0 $(GO) test -vet=off -short -skip Guest -p 3 ./internal/laws $(PKG)

# The main job: two processes move real tensors over every path of this machine and check each byte.
demo: build
	$(BIN) demo

build:
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN) ./cmd/penstock

# The program with DPDK: it is linked with libdpdk, which pkg-config finds. From DPDK 23.11 on pkg-config has a flag that cgo does not know.
export CGO_CFLAGS_ALLOW := -mrtm
build-dpdk:
	CGO_ENABLED=1 $(GO) build -trimpath -tags dpdk -o $(BIN) ./cmd/penstock

# The libraries for C, with a Go runtime and without one, the header and a file for pkg-config, in dist/ (docs/c.md). PREFIX is where they will be installed.
PREFIX  ?= /usr/local
CLIENT_FLAGS   := -std=c11 -O2 -fPIC -shared -Wall -Wextra -Wl,-z,defs -pthread -s -Wl,-soname,libpenstock-agent.so.1
CLIENT_SOURCES := bindings/c/client/*.c bindings/c/python.c bindings/c/cuda.c bindings/c/loads.c -ldl
CLIENT         := $(or $(CC),cc) $(CLIENT_FLAGS)
VERSION ?= 0.1.0
DIST    ?= dist
LIBRARY := $(GO) build -trimpath -buildmode=c-shared -ldflags '-s -w -extldflags=-Wl,-soname,libpenstock.so.1'
capi:
	CGO_ENABLED=1 $(LIBRARY) -o $(DIST)/libpenstock.so.1 ./bindings/c
	ln -sf libpenstock.so.1 $(DIST)/libpenstock.so
	rm -f $(DIST)/libpenstock.so.h
	$(CLIENT) -o $(DIST)/libpenstock-agent.so.1 $(CLIENT_SOURCES)
	ln -sf libpenstock-agent.so.1 $(DIST)/libpenstock-agent.so
	cp bindings/c/penstock.h $(DIST)/
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' bindings/c/penstock.pc.in > $(DIST)/penstock.pc

# The wheels for Python, which have both libraries and the command line (docs/python.md): for this machine, and for the other one of amd64 and
# arm64 where there is a cross compiler for it.
OTHER := $(if $(filter arm64,$(shell $(GO) env GOHOSTARCH)),amd64,arm64)
CROSS := $(if $(filter arm64,$(OTHER)),aarch64,x86_64)-linux-gnu-gcc
wheel: capi build
	python3 bindings/python/wheel.py $(DIST)/libpenstock.so.1 $(DIST)/libpenstock-agent.so.1 $(BIN) $(VERSION) $(DIST)
	@if command -v $(CROSS) >/dev/null; then $(MAKE) cross-wheel; else echo "no wheel for $(OTHER): there is no $(CROSS)"; fi

cross-wheel:
	GOARCH=$(OTHER) CGO_ENABLED=1 CC=$(CROSS) $(LIBRARY) -o $(DIST)/$(OTHER)/libpenstock.so.1 ./bindings/c
	$(CROSS) $(CLIENT_FLAGS) -o $(DIST)/$(OTHER)/libpenstock-agent.so.1 $(CLIENT_SOURCES)
	GOARCH=$(OTHER) CGO_ENABLED=0 $(GO) build -trimpath -o $(DIST)/$(OTHER)/penstock ./cmd/penstock
	python3 bindings/python/wheel.py $(DIST)/$(OTHER)/libpenstock.so.1 $(DIST)/$(OTHER)/libpenstock-agent.so.1 $(DIST)/$(OTHER)/penstock $(VERSION) $(DIST)

# Everything that CI runs. It installs what it needs, and watches that nothing is left behind. In CI every part of the lab that
# LAB names must have been used by a test that passed.
LAB := guest:net,guest:rdma,guest:nics,guest:numa,netns:pair,netns:bridge,fake:verbs,fake:cuda,peer:iperf3,peer:ucx,peer:fi,peer:openssl,$\
	peer:perftest,peer:rping,peer:testpmd,peer:xdpref,peer:tcpreplay,peer:tshark,peer:numpy,peer:torch,peer:pocl,peer:etcd,peer:chromium,peer:versitygw
test: deps
	$(GO) run ./internal/lab run -require $(LAB) -- $(MAKE) tests

# The plain and the checked build run at the same time: tests of the one have the processors while those of the other wait. The guests, whose processors are
# emulated, and what follows them have the machine alone.
tests: check build
	$(MAKE) -j2 plain checked
	$(MAKE) guests
	$(MAKE) dpdk
	FUZZTIME=10000x ./scripts/fuzz.sh $(BASE)
	$(MAKE) soak DURATION=10s
	$(BIN) demo --small

# A change fuzzes the packages that differ from BASE: from the commit that was the newest a day ago, where nobody says.
BASE ?= $(shell git rev-list -1 --before='1 day ago' HEAD)

# Every test but those in guests, in the build that users have. What explores draws a tenth (-short, testenv.Rounds). Several packages run at a time, and several
# tests of one that may: most of what tests do is to wait. The packages that take longest come first.
GOTEST := $(GO) test -count=1 -vet=off -timeout 30m -parallel 4
FIRST  := ./transfer ./cli ./bindings/c ./transfer/path/verbs ./engine/xdp ./transfer/path/tcp ./share ./engine/rdma
SHORT  := -short
plain:
	CGO_ENABLED=0 $(GOTEST) -p 2 $(SHORT) -skip Guest $(FIRST) ./...

# The packages with goroutines, unsafe code or books that verify, once more with the race detector and invariants.
checked:
	$(GOTEST) -p 2 -race -tags invariants -short -skip Guest ./transfer ./transfer/path/verbs ./transfer/path/tcp ./share $(addprefix ./,$(shell grep -v '^\#' scripts/checked.txt))

# The tests in guests, whose names say so, in the build that users have, and those in a build with DPDK.
guests:
	CGO_ENABLED=0 $(GOTEST) -p 1 $(SHORT) -run Guest $(shell git grep -lE '^func Test\w*Guest' -- '*_test.go' | xargs -n1 dirname | sort -u | sed 's|^|./|')
	CGO_ENABLED=1 $(GOTEST) $(SHORT) -tags dpdk -run Guest ./engine/dpdk

# The packages that differ in a build with DPDK, over virtual devices: all that has cgo is in them. DAQIRI's files run over them.
DPDK := ./internal/cdpdk/... ./engine/dpdk/...
dpdk:
	CGO_ENABLED=1 $(GO) vet -tags dpdk $(DPDK) ./bench/sections ./cmd/penstock
	CGO_ENABLED=1 $(TOOLS) staticcheck -tags dpdk $(DPDK)
	CGO_ENABLED=1 $(GO) test -count=1 -vet=off -timeout 10m -tags dpdk -skip Guest $(DPDK)
	CGO_ENABLED=1 $(GO) test -count=1 -vet=off -timeout 10m -tags dpdk -run DPDK ./bench/sections
	CGO_ENABLED=1 $(GO) test -count=1 -vet=off -timeout 10m -tags dpdk,invariants -race $(DPDK)
	CGO_ENABLED=1 $(GO) test -count=1 -vet=off -timeout 10m -tags dpdk -asan ./internal/cdpdk
	CGO_ENABLED=1 ASAN_OPTIONS=detect_leaks=0 $(GO) test -count=1 -vet=off -timeout 10m -tags dpdk -asan -short -skip Guest ./engine/dpdk # libxdp leaks

# Everything in every build, and every fuzz target: before a large change is said to be done.
nightly: deps
	./scripts/deps.sh scripts/nightly.txt
	$(GO) run ./internal/lab run -require $(LAB) -- $(MAKE) nights
nights: check build
	$(MAKE) plain guests dpdk SHORT=
	$(GO) vet -tags invariants ./...
	GOARCH=arm64 $(GO) vet ./...
	$(GOTEST) -p 3 -tags invariants -skip Guest ./...
	$(GOTEST) -p 3 -race -skip Guest ./...
	./scripts/fuzz.sh
	$(MAKE) soak
	$(BIN) demo

# Laws that are not tests: format, vet, static analysis, generated files.
check:
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi
	$(GO) mod tidy -diff
	$(GO) vet ./...
	$(TOOLS) staticcheck ./...
	$(GO) test -count=1 ./internal/laws

# Each fuzz target for a while; a finding fails the run and leaves its input in testdata.
fuzz:
	./scripts/fuzz.sh

# The benchmark of transfers: every size, the copy ceiling, and the peers' own tools as interleaved pairs.
bench: build deps
	$(BIN) bench transfer --against ucx,fi,iperf3
	$(BIN) bench mem
	$(BIN) bench ring
	$(BIN) bench vec

# Every test of ours that needs an NVIDIA card, as one program that needs nothing but the driver, and one result file (docs/gpu-test.md). Without a card it says what
# is missing, and ends with status 2.
gpu-test:
	CGO_ENABLED=0 $(GO) test -c -trimpath -ldflags "-X github.com/penstock-io/penstock/internal/lab/gpucard.revision=$$(git describe --always --dirty)" -o bin/gpu-test ./internal/lab/gpucard
	bin/gpu-test -result bin/gpu-test.json

# What the card does: copies, pipelines, launches, as one result file. The program is Penstock's own, which needs nothing but the driver (docs/gpu-test.md).
gpu-bench: build
	$(BIN) bench gpu --gpu-runtime cuda --output bin/gpu-bench.json
	$(BIN) bench feed --gpu-runtime cuda --output bin/gpu-feed.json

# Real processes, random transfers, random faults, exact accounting. DURATION and SEED are the lab's options.
DURATION ?= 10m
SEED     ?= 0
soak:
	$(GO) run ./internal/lab soak -duration $(DURATION) -seed $(SEED)

# Writes generated files anew; a test fails when they are not current.
generate:
	$(GO) generate ./...

# What the tests need besides Go and a C compiler. Without root or apt the tests that need it say so.
deps:
	./scripts/deps.sh

clean:
	rm -rf bin dist
