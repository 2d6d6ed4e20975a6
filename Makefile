# Gemel: everything a developer runs. `make` lists the targets.
SHELL := /bin/bash
GO ?= go
N ?= 20
SEED ?=
SEEDS ?= 200
DURATION ?= 60s

# Packages with concurrency are tested under the race detector; the pure ones (state machine, simulator, tools) are not: they
# would only be slower. Suites that run real processes come last and one at a time, so that they do not starve: a
# target that does not run for a second is right to drop its connections.
KIT := ./internal/testkit/envtest/... ./internal/testkit/flakyapi/... ./internal/testkit/freeport/... ./internal/testkit/loopdev/... ./internal/testkit/slowdisk/...
SUITES := $$($(GO) list ./internal/testkit/... | grep -v -E '/testkit/(envtest|flakyapi|freeport|loopdev|slowdisk)(/|$$)') ./test/... ./e2e/... ./hack/demo/... ./hack/bench/...
PURE := ./dataplane/pair/... ./dataplane/balance/... ./dataplane/sim/... ./dataplane/nodesim/... ./dataplane/balancesim/... ./dataplane/tieringsim/... ./hack/conformance/... ./hack/testsum/... ./hack/sim/... ./hack/mutants/... ./hack/chaos/... ./hack/storagesuite/... ./hack/localtarget/... ./hack/benchkernel/... ./hack/benchtiers/... ./hack/reference/... ./hack/manifests/... ./api/... ./charts/...
RACE := $$($(GO) list ./... | grep -v -E '/dataplane/(pair|balance|sim|nodesim|balancesim|tieringsim)(/|$$)|/testkit/|/test/|/e2e/|/hack/|/api/|/charts') $(KIT)
# Unit tests alone: no API server, no suites of processes, no simulators (whose fixed seeds take minutes). They wait more than they
# compute, so four packages run at a time, and the one that takes longest begins first.
FAST := ./dataplane/node $$($(GO) list ./... | grep -v -E '/dataplane/(sim|nodesim|balancesim|tieringsim)(/|$$)|/testkit/|/test/|/e2e/|/hack/(demo|bench)(/|$$)')

.PHONY: help deps build build-all test-fast test lint generate check-generate demo demo-kill test-groups test-databases test-scale chaos soak bench bench-quick bench-groups bench-docs bench-tiers bench-kernel conformance sim sim-node sim-extents sim-balance sim-tiers sim-bugs sim-node-bugs mutants model fuzz kind-up kind-down e2e e2e-storage-suite e2e-kernel clean

help: ## print this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

deps: ## install the Debian packages that are missing, once
	@hack/deps.sh

build: ## build the binaries into bin/
	$(GO) build -o bin/ ./cmd/...

build-all: ## compile every binary for amd64 and arm64, without keeping them
	@for arch in amd64 arm64; do echo "== linux/$$arch"; CGO_ENABLED=0 GOOS=linux GOARCH=$$arch $(GO) build ./cmd/... || exit 1; done

test-fast: ## unit tests without the race detector and without suites of processes: three minutes at most, with a warm build cache
	@set -o pipefail; KUBEBUILDER_ASSETS= $(GO) test -short -p 4 -json -timeout 5m $(FAST) 2>&1 | $(GO) run ./hack/testsum

test: deps ## unit, simulation, conformance, csi-sanity and process tests; ends with the count
	@$(GO) vet ./...
	@set -o pipefail; KUBEBUILDER_ASSETS=$$(hack/envtest.sh) || exit 1; export KUBEBUILDER_ASSETS; \
	  GEMEL_SIDECARS=$$(hack/sidecars.sh) || exit 1; export GEMEL_SIDECARS; \
	  ( $(GO) test -json -timeout 30m $(PURE) 2>&1; $(GO) test -race -json -timeout 15m $(RACE) 2>&1; \
	  $(GO) test -count=1 -json -timeout 5m -run '^TestNoAllocationsPerCommand$$' ./dataplane/node 2>&1; \
	  $(GO) test -count=1 -p 1 -json -timeout 20m $(SUITES) 2>&1 ) | $(GO) run ./hack/testsum -show /conformance,/dataplane/sim,/sim/bugs,/internal/testkit/chaos,/internal/testkit/scale

lint: ## run gofmt, go vet, staticcheck, and the word list of hack/vale
	@hack/lint.sh

generate: ## generate protobuf code, deep copies, CRDs, manifests of config/, the reference of CRDs and flags
	@hack/gen-proto.sh
	@hack/gen-crds.sh
	@hack/gen-manifests.sh
	@hack/gen-reference.sh

check-generate: ## fail if committed generated code differs from the output of the pinned tools
	@hack/check-generate.sh

demo: deps ## a CSI volume on a pair: written while its owner is killed, resynced, expanded, cloned
	@$(GO) run ./hack/demo

demo-kill: deps ## N=20 SEED=…: kill either node at N random moments under load
	@$(GO) run ./hack/demo kill -n $(N) $(if $(SEED),--seed $(SEED))

test-groups: deps ## ROUNDS=40 SEED=1: group snapshots in the simulated pair and through two pairs of processes while nodes, coordinators and links fail, and how long writes are held; out/groups.json
	@$(GO) run ./hack/sim -seeds 2000 -plain -with "cut through two LUNs" -out out/groups-sim.json
	@$(GO) test -v -count=1 -timeout 60m ./test/integration/groups -args -groups.rounds $(or $(ROUNDS),40) -groups.freeze 20 -groups.seed $(or $(SEED),1) -groups.sim $(CURDIR)/out/groups-sim.json -groups.out $(CURDIR)/out/groups.json

test-scale: deps ## LUNS=10000 WORKERS=1000 PAIRS=50: the real operator and CSI controller over a real API server with many objects, at rest, under load and beside a dead pair; 30 minutes; out/scale.json
	@assets=$$(hack/envtest.sh | tail -1) && KUBEBUILDER_ASSETS=$$assets $(GO) run ./hack/scale -luns $(or $(LUNS),10000) -workers $(or $(WORKERS),1000) -pairs $(or $(PAIRS),50)

test-databases: deps ## CUTS=20 SEED=1: PostgreSQL and SQLite on two LUNs of a group, restored from group snapshots under load and checked by their own tools; out/databases.json
	@hack/databases.sh
	@$(GO) test -v -count=1 -timeout 3h ./test/integration/database -args -database.cuts $(or $(CUTS),20) -database.seed $(or $(SEED),1) -database.out $(CURDIR)/out/databases.json

chaos: deps ## DURATION=60s SEED=… MEMBERS=1 (extents move between places all the time): kill -9, stops, partitions, full disks and other faults on a pair in namespaces; out/chaos.json
	@$(GO) run ./hack/chaos -duration $(DURATION) $(if $(SEED),-seed $(SEED)) $(if $(MEMBERS),-members)

soak: deps ## DURATION=8h: chaos for hours, with checks of the memory, goroutines and open files of long-lived processes; out/soak.json
	@$(GO) run ./hack/chaos -soak -duration $(if $(filter command line environment,$(origin DURATION)),$(DURATION),8h) -out out/soak.json $(if $(SEED),-seed $(SEED))

bench: deps ## benchmarks of Gemel beside peers in the same run: ONLY=case BASE=commit AGE=1h; half an hour; out/bench.json
	@$(GO) run ./hack/bench $(if $(ONLY),-only "$(ONLY)") $(if $(BASE),-base "$(BASE)") $(if $(AGE),-age "$(AGE)")

bench-quick: deps ## the short part of make bench: BASE=commit; 5 minutes; out/bench.json
	@$(GO) run ./hack/bench -quick $(if $(ONLY),-only "$(ONLY)") $(if $(BASE),-base "$(BASE)")

bench-groups: deps ## 1 to 16 LUNs of one node and of both, over 1 to 4 backing volumes, with limited processors: PROFILE=file; 6 minutes; out/bench-groups.json
	@$(GO) run ./hack/bench -only group_ -out out/bench-groups.json $(if $(PROFILE),-profile "$(PROFILE)")

bench-docs: ## write tables and plots of out/bench.json into docs/benchmarks.md: FROM=out/bench-groups.json MERGE=1 (the file has some cases only, the other rows stay)
	@$(GO) run ./hack/bench -docs docs $(if $(FROM),-out "$(FROM)") $(if $(MERGE),-merge)

bench-tiers: deps ## ONLY=hot: members with 8 ms and 0.1 ms for a read under loads that fit into the fast one, do not, and swing; 50 minutes; out/tiers.json
	@$(GO) run ./hack/benchtiers $(if $(ONLY),-only "$(ONLY)")

bench-kernel: deps ## benchmarks of Gemel beside LIO and DRBD in guests of an emulator: ROUNDS=6 TIME=2s; out/bench-kernel.json
	@hack/vm/run.sh $(GO) run ./hack/benchkernel $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(TIME),-time $(TIME))

conformance: deps ## libiscsi's suite in full against a pair, one URL per node
	@$(GO) test -v -count=1 ./test/integration/conformance

sim: ## SEEDS=200: new histories of the simulated pair, or with BASE=n the same histories each time; out/sim.json
	@$(GO) run ./hack/sim -seeds $(SEEDS) $(if $(BASE),-base $(BASE))

sim-node: ## SEEDS=200 MEMBERS=1 (extents move between members all the time): new histories of two whole nodes and their hosts under fake time; out/sim-node.json
	@$(GO) test -count=1 -timeout 0 ./dataplane/nodesim -run TestFreshSeeds -v -nodesim.seeds $(SEEDS) -nodesim.out $(CURDIR)/out/sim-node.json $(if $(MEMBERS),-nodesim.members)

sim-extents: ## SEEDS=20000 BASE=n: new histories of extents that move beside hosts, full volumes, sweeps and crashes at every step
	@$(GO) test -count=1 -timeout 0 ./dataplane/extents -run TestMovesAndCrashes -v -args -extents.seeds $(if $(filter command line environment,$(origin SEEDS)),$(SEEDS),20000) -extents.base $(or $(BASE),$$(date +%s%N))

sim-balance: ## HISTORIES=2400 BASE=n: compare the policy that moves ownership with simpler policies and the optimum; out/balance.json
	@$(GO) run ./hack/sim/balance -histories $(or $(HISTORIES),2400) $(if $(BASE),-base $(BASE))

sim-tiers: ## SEEDS=1 BASE=n: compare the policy that arranges tiers with simpler policies and one that knows the load; out/tiers-sim.json
	@$(GO) run ./hack/sim/tiers -seeds $(or $(SEEDS),1) $(if $(BASE),-base $(BASE))

sim-node-bugs: ## the layers around the pair with one mistake at a time: how many histories of whole nodes catch each
	@$(GO) run ./hack/sim/bugs -player node

sim-bugs: ## the pair with one mistake at a time: how many seeds the simulator needs to catch each
	@$(GO) run ./hack/sim/bugs

mutants: ## ONLY=text: remove the guards against hazards on workers, one at a time: the test of each guard has to catch it; out/mutants.json
	@$(GO) run ./hack/mutants $(if $(ONLY),-only "$(ONLY)",-out out/mutants.json)

fuzz: ## every fuzz target for FUZZTIME=10s, or only targets that match FUZZ=regexp; FUZZTIME=10000000x counts inputs
	@hack/fuzz.sh

model: ## check docs/tla with TLC, and with every rule removed once: TLC has to catch each; CASES=large for the larger bounds
	@hack/model.sh

kind-up: ## a kind cluster (control plane, three workers) built from source; KIND_IMAGE=… pulls one instead
	@hack/kind/up.sh

kind-down: ## remove the cluster, its filesystems and its Docker daemon; built files stay in the cache
	@hack/kind/down.sh

e2e: ## end-to-end specs on the cluster of kind-up: LABELS=smoke for the short part, LABELS=upgrade from the last release and back; out/e2e.json
	@hack/kind/gemel-image.sh
	@$(if $(filter upgrade,$(LABELS)),hack/kind/release-image.sh,:)
	@GEMEL_E2E=1 hack/kind/run.sh $(GO) test -count=1 -timeout 60m -v ./e2e/kind -args -ginkgo.v $(if $(LABELS),-ginkgo.label-filter="$(LABELS)") $(if $(FOCUS),-ginkgo.focus="$(FOCUS)")

e2e-storage-suite: ## Kubernetes' own storage tests on the cluster of kind-up: FOCUS=regexp PROCS=3 LUNS=4; out/storage-suite.json
	@FOCUS="$(FOCUS)" LUNS="$(LUNS)" hack/kind/storage-suite.sh

e2e-kernel: ## end-to-end specs on workers with a real kernel, multipathd and iscsid, in an emulator: LABELS=smoke for the short part, FOCUS=regexp; out/e2e-kernel.json
	@$(if $(LABELS)$(FOCUS),:,$(MAKE) mutants)
	@hack/vm/run.sh $(GO) test -count=1 -timeout 45m -v ./e2e/kernel -args -ginkgo.v $(if $(LABELS),-ginkgo.label-filter="$(LABELS)") $(if $(FOCUS),-ginkgo.focus="$(FOCUS)")

clean: ## remove the files of builds and runs, except the cache
	rm -rf bin out
