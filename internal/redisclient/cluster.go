package redisclient

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// cluster is a client of the one slot of a cluster in which all keys are, since
// their prefix carries a hash tag. Questions about the server and its keys go
// to the node of that slot.
type cluster struct {
	*redis.ClusterClient
	prefix string
	guard  *breaker
	own    redis.ProcessHook // carries a command out on the node of the prefix
}

var _ redis.UniversalClient = (*cluster)(nil)

func newCluster(opt *redis.ClusterOptions, prefix string, guard *breaker, replies answers) *cluster {
	// Here an attempt at a node and a redirection to another count alike.
	opt.MaxRedirects, opt.MaxRetries = opt.MaxRetries+1, 0
	// What a command does is known. To learn it from the server costs a
	// permission, and a wait that no deadline bounds.
	opt.DisableRoutingPolicies = true
	opt.NewClient = func(opt *redis.Options) *redis.Client { return hooked(redis.NewClient(opt), replies) }
	c := &cluster{ClusterClient: redis.NewClusterClient(opt), prefix: prefix, guard: guard}
	c.AddHook(guard)
	c.own = guard.ProcessHook(c.onOwnNode)
	return c
}

func (c *cluster) onOwnNode(ctx context.Context, cmd redis.Cmder) error {
	node, err := c.MasterForKey(ctx, c.prefix)
	if err != nil {
		return err
	}
	return node.Process(ctx, cmd)
}

func (c *cluster) ask(ctx context.Context, cmd redis.Cmder) error {
	err := c.own(ctx, cmd)
	cmd.SetErr(err)
	return err
}

// Info implements redis.UniversalClient.
func (c *cluster) Info(ctx context.Context, sections ...string) *redis.StringCmd {
	args := []any{"info"}
	for _, s := range sections {
		args = append(args, s)
	}
	cmd := redis.NewStringCmd(ctx, args...)
	_ = c.ask(ctx, cmd) // the command has the error
	return cmd
}

// Time implements redis.UniversalClient.
func (c *cluster) Time(ctx context.Context) *redis.TimeCmd {
	cmd := redis.NewTimeCmd(ctx, "time")
	_ = c.ask(ctx, cmd) // the command has the error
	return cmd
}

// Scan implements redis.UniversalClient.
func (c *cluster) Scan(ctx context.Context, cursor uint64, match string, count int64) *redis.ScanCmd {
	args := []any{"scan", cursor}
	if match != "" {
		args = append(args, "match", match)
	}
	if count > 0 {
		args = append(args, "count", count)
	}
	cmd := redis.NewScanCmd(ctx, c.ask, args...)
	_ = c.ask(ctx, cmd) // the command has the error
	return cmd
}

// Watch implements redis.UniversalClient. A cluster's own hooks do not see the
// commands of a transaction: they go to a node.
func (c *cluster) Watch(ctx context.Context, fn func(*redis.Tx) error, keys ...string) error {
	done, err := c.guard.enter(ctx)
	if err != nil {
		return err
	}
	answered := false
	err = c.ClusterClient.Watch(ctx, func(tx *redis.Tx) error {
		if !answered {
			answered = true
			done(nil) // what follows counts for itself
		}
		tx.AddHook(c.guard)
		return fn(tx)
	}, keys...)
	if !answered {
		done(err)
	}
	return err
}
