package redisclient

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// answers reads what a server refuses, before anybody else does.
type answers struct {
	password string
	single   bool // one server is configured, not a cluster
	conns    *connections
}

var _ redis.Hook = answers{}

func (a answers) ofOneServer() answers {
	a.single = true
	return a
}

func (a answers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a answers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		age := a.conns.age()
		return a.read(next(ctx, cmd), age)
	}
}

func (a answers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		age := a.conns.age()
		err := next(ctx, cmds)
		if err == nil {
			return nil
		}
		for _, cmd := range cmds {
			if e := cmd.Err(); e != nil {
				cmd.SetErr(a.read(e, age))
			}
		}
		return a.read(err, age)
	}
}

// read looks at answers of a server only: nothing else has seen the password,
// and the type of a network error says what it is. The call began when
// connections were of age.
func (a answers) read(err error, age uint64) error {
	if err == nil || err == redis.Nil {
		return err
	}
	answer, ok := errors.AsType[redis.Error](err)
	if !ok {
		return err
	}
	text := answer.Error()
	if strings.Contains(text, "READONLY") {
		a.conns.giveUp(age)
	}
	if word, _, _ := strings.Cut(text, " "); a.single && (word == "MOVED" || word == "ASK" || word == "CROSSSLOT") {
		// The rest names the address of a node.
		return reply(word + " the server is part of a cluster; name it in gateway.push.redis.cluster")
	}
	if a.password != "" && strings.Contains(text, a.password) {
		// A server that does not know AUTH or HELLO repeats the arguments.
		return reply(strings.ReplaceAll(err.Error(), a.password, "***"))
	}
	return err
}

// reply is a server's error answer in words of our own.
type reply string

var _ redis.Error = reply("")

func (r reply) Error() string { return string(r) }

// RedisError marks the answer of a server.
func (reply) RedisError() {}
