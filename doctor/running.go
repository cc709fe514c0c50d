package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/internal/secret"
)

// running is what the gateways that were asked have said.
type running struct {
	chosen  bool // by the user
	answers []answer
}

// answer is what one of them has said.
type answer struct {
	url    string
	asked  time.Time
	took   time.Duration
	report health.Report
	err    error
}

// ask asks the running gateways first: what they do counts for more than what
// a file says.
func (d *Doctor) ask(ctx context.Context, cfg config.Config) running {
	r, urls := running{chosen: len(d.URLs) > 0}, d.URLs
	if !r.chosen {
		urls = []string{cfg.Gateway.LocalURL()}
	}
	for _, url := range urls {
		a := answer{url: url, asked: d.Now()}
		a.report, a.err = d.Backends.Health(ctx, url, cfg.Gateway.AuthToken)
		a.took = d.Now().Sub(a.asked)
		r.answers = append(r.answers, a)
	}
	return r
}

// urls returns where a list of answers comes from.
func urls(answers []answer) string {
	var all []string
	for _, a := range answers {
		all = append(all, a.url)
	}
	return strings.Join(all, " ")
}

// checkFromOutside makes what checks it can where the file lacks nothing but
// variables that are set in the gateway's own environment alone, as a service
// manager does it, and that gateway answers. Nil: it is not so.
func (d *Doctor) checkFromOutside(ctx context.Context, refusal error) []health.Check {
	var absent []string
	cfg, err := config.Load(d.Path, func(name string) (string, bool) {
		value, ok := d.Env(name)
		if ok || !strings.Contains(refusal.Error(), "variable "+name+" is not set") {
			return value, ok
		}
		if !slices.Contains(absent, name) {
			absent = append(absent, name)
		}
		return "not-set-in-this-environment", true
	})
	if err != nil || len(absent) == 0 {
		return nil
	}
	cfg.Gateway.AuthToken = secret.String{} // or a stand-in would count as a failed authentication
	r := d.ask(ctx, cfg)
	f := newFinding(CheckGateway, urls(r.answers))
	for _, a := range r.answers {
		if a.err != nil {
			return nil
		}
		f.note("%s is %s; more can be said where the variables of its environment are set", a.url, a.report.Status)
		describeState(f, a.url, a.report)
	}
	why := "needs " + strings.Join(absent, ", ") + ", not set here; the running gateway has what it needs"
	checks := []health.Check{f.done(""), skipped(CheckConfig, d.source(), why)}
	for _, id := range afterConfig {
		checks = append(checks, skipped(id, d.source(), why))
	}
	return checks
}

// unconfigured asks without a configuration, and so without a token.
func (d *Doctor) unconfigured(ctx context.Context) health.Check {
	if len(d.URLs) == 0 {
		return skipped(CheckGateway, d.source(), "the configuration cannot be loaded")
	}
	f := newFinding(CheckGateway, strings.Join(d.URLs, " "))
	for _, url := range d.URLs {
		report, err := d.Backends.Health(ctx, url, secret.String{})
		describe(f, url, report, err)
	}
	return f.done("")
}

func (r running) check(cfg config.Config) health.Check {
	f := newFinding(CheckGateway, urls(r.answers))
	if first := r.answers[0]; !r.chosen && first.err != nil {
		return skipped(CheckGateway, first.url, fmt.Sprintf("no gateway answers at %s: %v", first.url, first.err))
	}
	for _, a := range r.answers {
		describe(f, a.url, a.report, a.err)
		for _, b := range []struct{ name, does, configured string }{
			{"idempotency", "claims in", cfg.Hooks.Idempotency.StoreBackend},
			{"turn_lock", "has the turn lock", cfg.Gateway.TurnLock.Backend},
			{"sessions", "keeps sessions in", cfg.Sessions.Backend},
		} {
			if effective := a.report.Backends[b.name]; effective != "" && effective != b.configured && len(a.report.Owners) == 0 {
				f.warn("restart the gateway to apply the file", "%s %s %s, the configuration says %s", a.url, b.does, effective, b.configured)
			}
		}
	}
	return f.done("")
}

// lasting are the classes of trouble that do not heal by themselves.
var lasting = []string{"auth", "permission", "tls", "corrupt", "not_writable", "io", "unusable", "other", "unshared", "key_format"}

func describe(f *finding, url string, report health.Report, err error) {
	switch {
	case err != nil:
		f.fail("start the gateway, or correct --url", "no gateway answers at %s: %v", url, err)
		return
	case report.Replica == "":
		f.warn("use the configuration and the environment that the gateway runs with", "%s does not take this configuration's gateway.auth_token, and tells only that it is %s", url, report.Status)
	default:
		f.note("%s is %s: replica %s, version %s, claims in %s, turn lock %s, sessions in %s", url, report.Status, report.Replica, report.Version,
			report.Backends["idempotency"], report.Backends["turn_lock"], report.Backends["sessions"])
	}
	describeState(f, url, report)
}

// describeState adds what is wrong with a gateway that answers.
func describeState(f *finding, url string, report health.Report) {
	if report.Status == health.StatusDraining {
		f.warn("wait until it has stopped, or look at the other replicas", "%s is stopping", url)
	}
	for _, o := range report.Owners {
		add := f.warn
		if slices.Contains(lasting, o.Class) {
			add = f.fail
		}
		hint := o.RetryHint
		if hint == "" {
			hint = "ask with the gateway's token for the reason"
		}
		add(hint, "%s / %s is %s: %s", o.Kind, o.ID, strings.TrimSpace(string(o.State)+" "+o.Class), o.Reason)
	}
}
