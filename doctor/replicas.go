package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
)

// views returns the answers that tell who lives in the store of cfg, with
// nobody else in them. An answer about another store, or whose store has long
// been away, does not.
func (r running) views(cfg config.Config) []answer {
	settings := cfg.Hooks.Idempotency
	var views []answer
	for _, a := range r.answers {
		a.report.Replicas = slices.DeleteFunc(slices.Clone(a.report.Replicas), func(r health.Sighting) bool { return r.Beside })
		if own, ok := a.own(); ok && own.Store == settings.StoreBackend && own.Age <= settings.TakeoverAfter.Seconds() {
			views = append(views, a)
		}
	}
	return views
}

// own returns what the gateway that answers has seen of itself.
func (a answer) own() (health.Sighting, bool) {
	i := slices.IndexFunc(a.report.Replicas, func(r health.Sighting) bool { return r.ID == a.report.Replica })
	if i < 0 {
		return health.Sighting{}, false
	}
	return a.report.Replicas[i], true
}

// sharing counts the replicas that the answer shows in a store.
func (a answer) sharing(store string) int {
	n := 0
	for _, r := range a.report.Replicas {
		if r.Store == store || r.Silent() {
			n++
		}
	}
	return n
}

// shareHint is the remedy for replicas that each claim for themselves.
const shareHint = "set hooks.idempotency.store_backend: redis with the same gateway.push.redis on every replica"

// replicas compares those that live with those that are configured, and with
// each other.
func (r running) replicas(cfg config.Config, source string) health.Check {
	want, store, views := cfg.Gateway.Replicas, cfg.Hooks.Idempotency.StoreBackend, r.views(cfg)
	if len(views) > 0 {
		source += " " + urls(views)
	}
	f := newFinding(CheckReplicas, source)
	switch {
	case want > 1 && store == idempotency.BackendMemory:
		f.fail(shareHint, "gateway.replicas is %d, and with store_backend: memory each of them claims for itself", want)
	case len(views) > 0:
		for _, v := range views {
			count(f, v, want, store)
		}
		strangers(f, views)
		compare(f, views)
	case want > 1 && store == idempotency.BackendSQLite:
		f.fail(shareHint, "gateway.replicas is %d, and no running gateway tells that so many use the file of this one", want)
	default:
		return skipped(CheckReplicas, source, "no running gateway tells which replicas live in this store")
	}
	return f.done("")
}

// count compares the number of replicas that an answer shows.
func count(f *finding, v answer, want int, store string) {
	switch n := v.sharing(store); {
	case n < want && store == idempotency.BackendSQLite:
		f.fail(shareHint+", or start all on one machine with one gateway.state_dir", "%s sees %s on its file, gateway.replicas says %d", v.url, plural(n, "replica"), want)
	case n < want:
		f.warn("start those that are missing, or see why they do not reach this store, or correct gateway.replicas", "%s sees %s, gateway.replicas says %d", v.url, plural(n, "live replica"), want)
	case n > want && want == 1 && store == idempotency.BackendRedis:
		f.note("%s sees %s; with gateway.replicas: %d doctor would miss one that is away", v.url, plural(n, "live replica"), n)
	case n > want:
		f.warn(fmt.Sprintf("set gateway.replicas: %d", n), "%s sees %s, gateway.replicas says %d", v.url, plural(n, "live replica"), want)
	default:
		f.note("%s sees %s, as configured", v.url, plural(n, "live replica"))
	}
}

// strangers finds gateways that were asked and do not see each other.
func strangers(f *finding, views []answer) {
	for _, v := range views {
		for _, other := range views {
			sees := slices.ContainsFunc(v.report.Replicas, func(r health.Sighting) bool { return r.ID == other.report.Replica })
			if !sees {
				f.fail(shareHint, "%s does not see the replica %s of %s: they share no store", v.url, other.report.Replica, other.url)
			}
		}
	}
}

// distinct returns every replica that the answers show, once.
func distinct(answers []answer) []health.Sighting {
	var all []health.Sighting
	for _, a := range answers {
		for _, r := range a.report.Replicas {
			if !slices.ContainsFunc(all, func(known health.Sighting) bool { return known.ID == r.ID }) {
				all = append(all, r)
			}
		}
	}
	return all
}

// compare looks for replicas of one version with different configurations.
// Between two versions the settings that exist may differ, which a rollout
// ends.
func compare(f *finding, views []answer) {
	versions, configs := make(map[string][]string), make(map[string]map[string][]string) // ids by version, and by configuration in it
	for _, r := range distinct(views) {
		if r.Silent() {
			continue
		}
		versions[r.Version] = append(versions[r.Version], r.ID)
		if configs[r.Version] == nil {
			configs[r.Version] = make(map[string][]string)
		}
		configs[r.Version][r.Config] = append(configs[r.Version][r.Config], r.ID)
	}
	if len(versions) > 1 {
		f.note("several versions run: %s", groups(versions))
	}
	for _, version := range slices.Sorted(maps.Keys(configs)) {
		if len(configs[version]) > 1 {
			f.warn("give all the same gateway.yaml and environment and restart those that differ", "replicas run with different configurations: %s", groups(configs[version]))
		}
	}
}

// groups tells the ids under each name.
func groups(ids map[string][]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(ids)) {
		all = append(all, name+": "+strings.Join(ids[name], ", "))
	}
	return strings.Join(all, "; ")
}

// clocks compares the clocks of the replicas: that of the one that answers with
// this machine's, and the others', by their heartbeats, with its own. All
// heartbeats of an answer were read at the moment at which it wrote its own.
func (r running) clocks(cfg config.Config) health.Check {
	views := r.views(cfg)
	if len(views) == 0 {
		return skipped(CheckClocks, urls(r.answers), "no running gateway tells of heartbeats in this store")
	}
	f := newFinding(CheckClocks, urls(views))
	const hint = "set the clocks of all machines by NTP; signed requests are refused, or accepted for too long, by a clock that is wrong"
	for _, v := range views {
		own, _ := v.own()
		age := time.Duration(own.Age * float64(time.Second))
		if skew := v.asked.Add(v.took / 2).Add(-age).Sub(own.Seen); skew.Abs() > clockSkew+v.took/2 {
			f.warn(hint, "the clock of replica %s is %s %s this machine's", own.ID, skew.Abs().Round(time.Second), direction(skew))
		}
		beat := cfg.Hooks.Idempotency.TakeoverAfter / 6 // between two heartbeats of one that is well
		for _, other := range v.report.Replicas {
			switch skew := own.Seen.Sub(other.Seen); {
			case other.Silent():
			case skew < -clockSkew:
				f.warn(hint, "the clock of replica %s is %s ahead of that of replica %s", other.ID, skew.Abs().Round(time.Second), own.ID)
			case skew > clockSkew+beat:
				f.warn(hint, "the last heartbeat of replica %s was %s old by the clock of replica %s: its clock is behind, or it has stopped", other.ID, skew.Round(time.Second), own.ID)
			}
		}
	}
	return f.done("the clocks of the replicas and of this machine agree within " + clockSkew.String())
}

// direction says on which side of another a clock is that lacks skew.
func direction(skew time.Duration) string {
	if skew < 0 {
		return "ahead of"
	}
	return "behind"
}

// failover tells what happens while Redis is away, and whether the file that
// serves then can be used; dir and database are the checks of it.
func (r running) failover(cfg config.Config, dir, database health.Check) health.Check {
	settings := cfg.Hooks.Idempotency
	if settings.StoreBackend != idempotency.BackendRedis {
		return skipped(CheckFailover, database.Source, "claims are not in Redis: store_backend is "+settings.StoreBackend)
	}
	f := newFinding(CheckFailover, database.Source+" "+urls(r.answers))
	policies := onUnavailable(cfg)
	if paths, ok := policies[idempotency.Closed]; ok {
		f.note("on_unavailable is closed for %s: while Redis is away their messages get 503", paths)
	}
	if paths, ok := policies[idempotency.Open]; ok {
		f.note("on_unavailable is open for %s: while Redis is away each replica claims in its own %s", paths, DatabaseName)
		for _, c := range []health.Check{dir, database} {
			if c.Status == health.CheckFail {
				f.warn("see the check "+c.ID+" above", "here that file cannot be used, so that claims would go to memory")
				break
			}
		}
	}
	for _, other := range distinct(r.answers) {
		if other.Unsettled > 0 {
			f.warn("leave it running until Redis has them; what it lacks is in that replica's state directory", "replica %s has %s of an outage that Redis lacks", other.ID, plural(other.Unsettled, "message"))
		}
	}
	return f.done("")
}

// onUnavailable names the hooks under each policy that is in force.
func onUnavailable(cfg config.Config) map[string]string {
	paths := make(map[string][]string)
	for _, h := range cfg.Hooks.Hooks {
		policy := cmp.Or(h.OnUnavailable, cfg.Hooks.Idempotency.OnUnavailable)
		paths[policy] = append(paths[policy], h.Path)
	}
	if len(paths) < 2 { // also where there are no hooks
		for policy := range paths {
			return map[string]string{policy: "every hook"}
		}
		return map[string]string{cfg.Hooks.Idempotency.OnUnavailable: "every hook"}
	}
	return map[string]string{
		idempotency.Open:   "hooks " + strings.Join(paths[idempotency.Open], ", "),
		idempotency.Closed: "hooks " + strings.Join(paths[idempotency.Closed], ", "),
	}
}
