package health

import (
	"encoding/json"
	"net/http"
)

// The values of Report.Status.
const (
	StatusHealthy  = "healthy"
	StatusDegraded = "degraded"
	StatusDraining = "draining"
)

// Report is the body of /health. Without authorization it holds no more than
// the status and the owners' names.
type Report struct {
	Status   string            `json:"status"`
	Owners   []Owner           `json:"degraded_owners"`
	Backends map[string]string `json:"backends,omitempty"` // in effect now, not as configured
	Replica  string            `json:"replica,omitempty"`
	Version  string            `json:"version,omitempty"`
	Replicas []Sighting        `json:"replicas,omitzero"` // that live, this one among them
}

// snapshot returns the state of the whole process and what is degraded, as
// both were at one moment: a report never contradicts itself.
func (r *Registry) snapshot() (status string, owners []Owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	owners = append([]Owner{}, r.owners...) // never null on /health
	switch {
	case r.phase == Draining:
		return StatusDraining, owners
	case len(owners) > 0:
		return StatusDegraded, owners
	}
	return StatusHealthy, owners
}

// Handler answers /livez, /readyz and /health. Detail gives the report's
// fields beside status and owners; it is asked only when authorized says that
// the caller may see them.
func (r *Registry) Handler(authorized func(*http.Request) bool, detail func() Report) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		plain(w, http.StatusOK, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		switch r.Phase() {
		case Starting:
			plain(w, http.StatusServiceUnavailable, "starting")
		case Draining:
			plain(w, http.StatusServiceUnavailable, "draining")
		default:
			plain(w, http.StatusOK, "ok")
		}
	})
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, req *http.Request) {
		var report Report
		private := authorized(req)
		if private {
			report = detail()
		}
		report.Status, report.Owners = r.snapshot()
		if !private {
			for i, o := range report.Owners {
				report.Owners[i] = Owner{Kind: o.Kind, ID: o.ID}
			}
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(report) // a client that is gone needs no answer
	})
	return mux
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n")) // as above
}
