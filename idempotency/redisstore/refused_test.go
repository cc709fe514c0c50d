package redisstore_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redisclient"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/internal/secret"
)

// B134: a server that refuses the connection has said nothing of any claim. The
// client leaves the commands of a pipeline without an error then.
func TestB134_ARefusedConnectionAnswersNoClaim(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--user", "gw", "on", ">right", "~*", "+@all")
	store := func(password string) interface {
		idempotency.Store
		idempotency.Lister
	} {
		return newStore(t, newClientOf(t, redisconf.Config{Host: server.Addr(), Username: "gw", Password: secret.New(password)}))
	}
	good, refused := store("right"), store("wrong")
	req := idempotency.Request{Token: "r.held", Lease: time.Minute, TTL: time.Minute}
	held, err := good.Reserve(t.Context(), "a:b:c:held", req)
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(ctx context.Context, n string) error{
		"reserve one key": func(ctx context.Context, n string) error {
			res, err := refused.Reserve(ctx, "a:b:c:new", idempotency.Request{Token: "r." + n, Lease: time.Minute, TTL: time.Minute})
			if res.State != 0 {
				t.Errorf("a reservation was answered: %+v", res)
			}
			return err
		},
		"record":  func(ctx context.Context, _ string) error { return refused.Record(ctx, held.Claim, nil) },
		"renew":   func(ctx context.Context, _ string) error { return refused.Renew(ctx, held.Claim) },
		"release": func(ctx context.Context, _ string) error { return refused.Release(ctx, held.Claim) },
		"ping":    func(ctx context.Context, _ string) error { return refused.Ping(ctx) },
		"get": func(ctx context.Context, _ string) error {
			_, err := refused.Get(ctx, "a:b:c:held")
			return err
		},
		"list": func(ctx context.Context, _ string) error {
			_, err := refused.List(ctx, idempotency.ListRequest{Limit: 1})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			var wg sync.WaitGroup
			for i := range 40 { // together, so that they share round trips
				wg.Go(func() {
					err := call(t.Context(), strconv.Itoa(i))
					if redisclient.Classify(err) != redisclient.Auth || errors.Is(err, idempotency.ErrNotOwner) || errors.Is(err, idempotency.ErrForeign) {
						t.Errorf("%v, want what the server said: WRONGPASS", err)
					}
				})
			}
			wg.Wait()
		})
	}
	if err := good.Record(t.Context(), held.Claim, nil); err != nil {
		t.Errorf("the claim was changed: %v", err)
	}
}
