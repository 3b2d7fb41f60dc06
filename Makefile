# Penstock: see README.md for the two commands that matter (make demo, make test).

GO      ?= go
TOOLS   := $(GO) tool -modfile=tools/go.mod
BIN     := bin/penstock
SHORT   := $(GO) run ./internal/lab again -- $(GO) test -count=1 -timeout 30m

.PHONY: demo test tests check bench soak generate build deps fuzz gpu-test gpu-bench clean

# The main job: two processes move real tensors over every path of this machine and check each byte.
demo: build
	$(BIN) demo

build:
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN) ./cmd/penstock

# Everything that CI runs. It installs what it needs, and watches that nothing is left behind. In CI every part of the lab that
# LAB names must have been used by a test that passed.
LAB := guest:net,guest:rdma,guest:nics,guest:numa,netns:pair,netns:bridge,fake:verbs,fake:cuda,peer:iperf3,peer:ucx,peer:fi,peer:openssl,$\
	peer:perftest,peer:rping,peer:testpmd,peer:xdpref,peer:tcpreplay,peer:tshark,peer:numpy,peer:torch,peer:pocl,peer:etcd,peer:chromium
test: deps
	$(GO) run ./internal/lab run -require $(LAB) -- $(MAKE) tests

# A test that fails is run once more, alone (go doc -u ./internal/lab again): one that passes then is named at the end, and is a fault to mend all the same.
tests: check
	CGO_ENABLED=0 $(SHORT) ./...
	$(SHORT) -tags invariants ./...
	$(SHORT) -race ./...
	$(MAKE) build fuzz
	$(MAKE) soak DURATION=10s
	$(BIN) demo --small

# Laws that are not tests: format, vet, static analysis, generated files, and that other architectures still compile.
check:
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi
	$(GO) mod tidy -diff
	$(GO) vet ./...
	$(GO) vet -tags invariants ./...
	GOARCH=arm64 $(GO) vet ./...
	$(TOOLS) staticcheck ./...
	$(GO) test -count=1 ./internal/laws

# Each fuzz target for a while; a finding fails the run and leaves its input in testdata. The budget is a count of executions:
# with a duration Go's coordinator can end a good run as "context deadline exceeded" (go.dev/issue/75804, mended in Go 1.27).
FUZZTIME ?= 30000x
fuzz:
	@set -e; log=$$(mktemp); trap 'rm -f '$$log EXIT; for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "fuzz $$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$pkg >$$log 2>&1 || { cat $$log; exit 1; }; \
	    tail -1 $$log; \
	  done; done

# The benchmark of the issue: every size, the copy ceiling, and the peers' own tools as interleaved pairs.
bench: build deps
	$(BIN) bench transfer --against ucx,fi,iperf3
	$(BIN) bench mem
	$(BIN) bench ring
	$(BIN) bench vec

# Every test of ours that needs an NVIDIA card, as one program that needs nothing but the driver, and one result file (docs/gpu-test.md). Without a card it says what
# is missing, and ends with status 2.
gpu-test:
	CGO_ENABLED=0 $(GO) test -c -trimpath -ldflags "-X github.com/penstock-io/penstock/internal/gpucard.revision=$$(git describe --always --dirty)" -o bin/gpu-test ./internal/gpucard
	bin/gpu-test -result bin/gpu-test.json

# What the card does: copies, pipelines, launches, as one result file. The program is Penstock's own, which needs nothing but the driver (docs/gpu-test.md).
gpu-bench: build
	$(BIN) bench gpu --runtime cuda --json bin/gpu-bench.json

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
	rm -rf bin
