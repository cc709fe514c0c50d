package execagent

import (
	"maps"
	"os"
	"slices"
	"strconv"

	"github.com/oncegate/oncegate/agent"
)

// passed are the variables of the gateway that a program gets.
var passed = []string{"PATH", "HOME", "LANG"}

// environ returns the whole environment of the program. Of a name that is in it
// twice, the last counts: the configuration goes before the gateway, and the
// turn before both. Each ONCEGATE variable is always there.
func (a *Agent) environ(turn agent.Turn) []string {
	var env []string
	for _, name := range passed {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(a.config.Env)) {
		env = append(env, name+"="+a.config.Env[name].Reveal())
	}
	return append(env,
		"ONCEGATE_KEY="+turn.Key,
		"ONCEGATE_SESSION="+turn.Message.Session,
		"ONCEGATE_FENCE="+strconv.FormatUint(turn.Fence, 10),
		"ONCEGATE_ATTEMPT="+strconv.Itoa(turn.Attempt),
	)
}
