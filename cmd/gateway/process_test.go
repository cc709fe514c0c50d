package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/doctor"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/internal/sqlitedb"
	"github.com/oncegate/oncegate/message"
)

// pause is a run of a given length.
type pause time.Duration

func (d pause) Run(ctx context.Context, _ message.Turn) (message.Outcome, error) {
	select {
	case <-time.After(time.Duration(d)):
		return message.Outcome{Reply: "done"}, nil
	case <-ctx.Done():
		return message.Outcome{}, ctx.Err()
	}
}

func (d pause) policy(lease time.Duration) message.Policy {
	return message.Policy{Route: "test", Runner: d, Lease: lease, TTL: time.Hour, OnDuplicate: message.Conflict}
}

func inSession(id string) message.Message {
	return message.Message{Key: message.Key{Platform: "test", ID: id}, Session: "s"}
}

const memoryStore = "hooks: {idempotency: {store_backend: memory}}\n"

func TestALockIsWaitedForLongerThanATurnMayTake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, stop := running(t, mustParse(t, "gateway: {turn_timeout: 1h}\n"+memoryStore), func(ctx context.Context, _ *process) error {
			<-ctx.Done()
			return nil
		})
		turn := pause(50 * time.Minute)
		go func() { _, _ = p.pipeline.Process(t.Context(), inSession("first"), turn.policy(time.Hour)) }()
		synctest.Wait()
		start := time.Now()
		got, err := p.pipeline.Process(t.Context(), inSession("second"), turn.policy(time.Hour))
		if took := time.Since(start); err != nil || got.State != message.New || took != 100*time.Minute {
			t.Errorf("the session's second turn: %s, %v after %s; want it run after the first", got.State, err, took)
		}
		if err := stop(); err != nil {
			t.Errorf("run = %v", err)
		}
	})
}

func TestClaimsAreRenewedDuringTheDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, stop := running(t, mustParse(t, memoryStore), func(ctx context.Context, p *process) error {
			<-ctx.Done()
			drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Hour)
			defer cancel()
			return p.pipeline.Drain(drain)
		})
		m := inSession("m")
		const lease = 10 * time.Second
		var receipt message.Receipt
		var err error
		go func() { receipt, err = p.pipeline.Process(t.Context(), m, pause(10*lease).policy(lease)) }()
		synctest.Wait()
		ended := make(chan error, 1)
		go func() { ended <- stop() }()
		time.Sleep(5 * lease)
		res, other := p.store.Reserve(t.Context(), idempotency.EncodeKey(m.Key), idempotency.Request{Token: "other.replica", Lease: lease, TTL: lease})
		if other != nil || res.State != idempotency.InFlight {
			t.Errorf("five leases into the drain the claim is in state %d, %v; want it held", res.State, other)
		}
		if err := <-ended; err != nil {
			t.Errorf("run = %v", err)
		}
		synctest.Wait()
		if err != nil || receipt.State != message.New || receipt.Outcome.Reply != "done" {
			t.Errorf("the delivery got %+v, %v; want its answer", receipt, err)
		}
	})
}

func TestTheStoreIsClosedAfterTheRun(t *testing.T) {
	t.Parallel()
	cfg := mustParse(t, "hooks: {idempotency: {store_backend: sqlite}}\n")
	p, stop := running(t, cfg, func(ctx context.Context, _ *process) error {
		<-ctx.Done()
		return nil
	})
	if _, err := p.pipeline.Process(t.Context(), inSession("m"), pause(0).policy(time.Minute)); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(cfg.Gateway.StateDir, doctor.DatabaseName+"-wal")
	if _, err := os.Stat(log); err != nil {
		t.Fatalf("no log beside the open file: %v", err)
	}
	if err := stop(); err != nil {
		t.Errorf("run = %v", err)
	}
	if _, err := os.Stat(log); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the log is still there (%v): the file was not closed", err)
	}
}

func TestABackendThatDoesNotOpenIsNil(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	cfg := mustParse(t, "{}\n")
	cfg.Gateway.StateDir = os.DevNull
	p := &process{cfg: cfg, log: log, replica: "test", health: health.NewRegistry(log)}
	if store, err := p.tiers()[0].Open(t.Context()); err == nil || store != nil {
		t.Errorf("opened %#v, %v; want nil and an error", store, err)
	}
	looks := backends(log)
	if store, err := looks.Store(t.Context(), cfg); err == nil || store != nil {
		t.Errorf("doctor's file: %#v, %v; want nil and an error", store, err)
	}
	bad := redisconf.Config{URL: secret.New("redis://host:port")}
	if server, err := looks.Redis(t.Context(), bad); err == nil || server != nil {
		t.Errorf("doctor's Redis: %#v, %v; want nil and an error", server, err)
	}
}

func TestCheckDatabaseNamesTheClass(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), doctor.DatabaseName)
	db, err := sqlitedb.Open(t.Context(), sqlitedb.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if class, err := checkDatabase(t.Context(), path); class != "" || err != nil {
		t.Errorf("a sound file: %q, %v", class, err)
	}
	if err := os.WriteFile(path, bytes.Repeat([]byte("junk "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	if class, err := checkDatabase(t.Context(), path); class != "corrupt" || err == nil {
		t.Errorf("a damaged file: %q, %v; want corrupt", class, err)
	}
}

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"sreve"}, `unknown command "sreve" for "gateway"; did you mean serve?`},
		{[]string{"xyzzy"}, `unknown command "xyzzy" for "gateway"`},
		{[]string{"hooks", "sned"}, `unknown command "sned" for "gateway hooks"; did you mean send?`},
		{[]string{"serve", "extra"}, `unknown command "extra"`},
		{[]string{"serve", "--prot", "1"}, "unknown flag: --prot"},
		{[]string{"hooks", "send"}, "accepts 1 arg(s), received 0"},
		{[]string{"hooks", "send", "a", "--timeout", "soon"}, `invalid argument "soon"`},
		{[]string{"completion", "bash", "extra"}, `unknown command "extra"`},
		{[]string{"doctor", "--prove", "1"}, "--prove 1: it takes at least 2 claims to race"},
		{[]string{"doctor", "--prove", "0"}, "--prove 0: it takes at least 2 claims to race"},
		{[]string{"doctor", "--prove", "-1"}, "--prove -1: it takes at least 2 claims to race"},
	} {
		got := runIn(t, "", nil, c.args...)
		if got.code != exitUsage || got.out != "" || !strings.Contains(got.err, c.want) || !strings.Contains(got.err, "--help' for usage") {
			t.Errorf("gateway %s: %+v, want exit 2 with %q", strings.Join(c.args, " "), got, c.want)
		}
	}
}

func TestAFailedCommandIsNoUsageError(t *testing.T) {
	t.Parallel()
	if got := runIn(t, "", nil, "hooks", "send", "nothere"); got.code != exitError || strings.Contains(got.err, "for usage") {
		t.Errorf("a hook that does not exist: %+v, want exit 1", got)
	}
}

func TestProgressIsPerRound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		a := &app{streams: streams{out: io.Discard, err: &log}}
		tell := a.progress("prove: round")
		tell(1, 10)
		time.Sleep(time.Second)
		tell(2, 10)
		tell(3, 10)
		if got, want := log.String(), "prove: round 2 of 10\n"; got != want {
			t.Errorf("progress printed %q, want %q", got, want)
		}
	})
}
