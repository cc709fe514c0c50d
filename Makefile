# Every target works on a fresh Debian machine with Go; run `make help`.
SHELL := /bin/bash
# Debian's nginx is in /usr/sbin, where only root looks.
export PATH := $(PATH):/usr/sbin
.DEFAULT_GOAL := help

GOTEST := go test -timeout 10m
PACKAGES = $(shell go list ./... | grep -vE '/(e2e|interop)$$')
FUZZTIME ?= 10s

.PHONY: help deps run build test e2e interop race lint fuzz bench

help: ## list the targets
	@grep -E '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9]+):.*## /\1\t/' | expand -t 10

deps: ## install what the tests need: Go modules, redis-server, nginx, npm
	go mod download
	@scripts/deps redis-server nginx npm

run: build ## build and start the gateway on SQLite with the echo agent
	bin/gateway serve

build: ## build bin/gateway, a static binary
	CGO_ENABLED=0 go build -trimpath -o bin/gateway ./cmd/gateway

test: ## run every test but those of e2e and interop
	@scripts/deps redis-server
	$(GOTEST) $(PACKAGES)

e2e: ## run the tests with real gateway processes, some behind nginx
	@scripts/deps redis-server nginx
	$(GOTEST) -count=1 ./e2e

interop: ## send the gateway what the senders' own npm packages sign
	@scripts/deps npm
	npm ci --prefix interop --prefer-offline --no-audit --no-fund --ignore-scripts --loglevel=error
	$(GOTEST) -count=1 ./interop

race: ## run make test with the race detector
	@scripts/deps redis-server
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

bench: ## measure ratios against plain baselines, side by side in one run
	@scripts/deps redis-server
	go run ./bench
