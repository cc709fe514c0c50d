package hooks

import "github.com/prometheus/client_golang/prometheus"

// metrics counts without ids or paths as labels; every label value exists
// from the start, so that rates do too.
type metrics struct {
	requests [len(results)]prometheus.Counter
	unkeyed  prometheus.Counter
	missing  map[string]prometheus.Counter
}

// The texts of a hook that may miss a part.
const (
	inKey     = "key"
	inSession = "session"
	inMessage = "message"
	inEvent   = "event"
)

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gateway_hook_requests_total",
		Help: "Requests to /hooks/, and each message of a batch, by what became of them.",
	}, []string{"result"})
	unkeyed := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "gateway_unkeyed_messages_total",
		Help: "Messages of hooks that ran without deduplication because they had no key.",
	})
	missing := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gateway_template_missing_total",
		Help: "Template parts that were absent, null or empty, by the text they belong to.",
	}, []string{"template"})
	for _, c := range []prometheus.Collector{requests, unkeyed, missing} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	m := &metrics{unkeyed: unkeyed, missing: make(map[string]prometheus.Counter)}
	for i, r := range results {
		m.requests[i] = requests.WithLabelValues(r.label)
	}
	for _, name := range []string{inKey, inSession, inMessage, inEvent} {
		m.missing[name] = missing.WithLabelValues(name)
	}
	return m, nil
}
