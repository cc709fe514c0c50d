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
}

// Status returns the state of the whole process.
func (r *Registry) Status() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.phase == Draining:
		return StatusDraining
	case len(r.owners) > 0:
		return StatusDegraded
	}
	return StatusHealthy
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
		if authorized(req) {
			report = detail()
			report.Owners = r.Owners()
		} else {
			for _, o := range r.Owners() {
				report.Owners = append(report.Owners, Owner{Kind: o.Kind, ID: o.ID})
			}
		}
		if report.Owners == nil {
			report.Owners = []Owner{}
		}
		report.Status = r.Status()
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
