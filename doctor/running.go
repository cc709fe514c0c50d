package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/internal/secret"
)

// running is what the gateways that were asked have said.
type running struct {
	urls    []string
	chosen  bool // by the user
	reports []health.Report
	errs    []error
}

// ask asks the running gateways first: what they do counts for more than what
// a file says.
func (d *Doctor) ask(ctx context.Context, cfg config.Config) running {
	r := running{urls: d.URLs, chosen: len(d.URLs) > 0}
	if !r.chosen {
		r.urls = []string{cfg.Gateway.LocalURL()}
	}
	for _, url := range r.urls {
		report, err := d.Backends.Health(ctx, url, cfg.Gateway.AuthToken)
		r.reports, r.errs = append(r.reports, report), append(r.errs, err)
	}
	return r
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
	f := newFinding(CheckGateway, strings.Join(r.urls, " "))
	if !r.chosen && r.errs[0] != nil {
		return skipped(CheckGateway, r.urls[0], fmt.Sprintf("no gateway answers at %s: %v", r.urls[0], r.errs[0]))
	}
	for i, url := range r.urls {
		report := r.reports[i]
		describe(f, url, report, r.errs[i])
		configured := cfg.Hooks.Idempotency.StoreBackend
		if effective := report.Backends["idempotency"]; effective != "" && effective != configured && len(report.Owners) == 0 {
			f.warn("restart the gateway to apply the file", "%s claims in %s, the configuration says %s", url, effective, configured)
		}
	}
	return f.done("")
}

// lasting are the classes of trouble that do not heal by themselves.
var lasting = []string{"auth", "permission", "tls", "corrupt", "not_writable", "unusable", "other"}

func describe(f *finding, url string, report health.Report, err error) {
	switch {
	case err != nil:
		f.fail("start the gateway, or correct --url", "no gateway answers at %s: %v", url, err)
		return
	case report.Replica == "":
		f.warn("use the configuration and the environment that the gateway runs with", "%s does not take this configuration's gateway.auth_token, and tells only that it is %s", url, report.Status)
	default:
		f.note("%s is %s: replica %s, version %s, claims in %s, turn lock %s", url, report.Status, report.Replica, report.Version,
			report.Backends["idempotency"], report.Backends["turn_lock"])
	}
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
