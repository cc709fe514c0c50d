# Every target works on a fresh Debian machine with Go; run `make help`.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# -p 2: most of the time goes into real servers and real disks.
GOTEST := go test -timeout 10m
PACKAGES = $(shell go list ./... | grep -v /e2e$$)
FUZZTIME ?= 10s

.PHONY: help deps run build test e2e race lint fuzz bench

help: ## list the targets
	@grep -E '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9]+):.*## /\1\t/' | expand -t 10

deps: ## install what the tests need: Go modules and redis-server
	go mod download
	@scripts/deps redis-server

run: build ## build and start the gateway on SQLite with the echo agent
	bin/gateway serve

build: ## build bin/gateway, a static binary
	CGO_ENABLED=0 go build -trimpath -o bin/gateway ./cmd/gateway

test: deps ## run every test but those of real processes (make e2e)
	$(GOTEST) $(PACKAGES)

e2e: deps ## run the tests with real gateway processes
	$(GOTEST) -count=1 ./e2e

race: deps ## run make test with the race detector
	$(GOTEST) -race $(PACKAGES)

lint: ## check format, vet, staticcheck and go.mod
	@out=$$(gofmt -l .); test -z "$$out" || { echo "not gofmt-ed:"; echo "$$out"; exit 1; }
	go vet ./...
	go tool staticcheck ./...
	go mod tidy -diff

fuzz: ## run every fuzz target for FUZZTIME (default 10s)
	@set -e; for pkg in $$(go list ./...); do \
	  for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "$$pkg $$target"; go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$pkg; \
	  done; \
	done

bench: deps ## measure ratios against plain baselines, side by side in one run
	go run ./bench
