package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// ProveLease is how long the key of a proof stays taken, so that nobody can win
// it once more in the same round.
const ProveLease = 10 * time.Second

// ProveRequest asks for one claim of a throw-away key.
type ProveRequest struct {
	Key string `json:"key"` // 1 to 64 letters, digits, "-" and "_"
}

// ProveAnswer says what became of it.
type ProveAnswer struct {
	Won     bool   `json:"won"`
	Replica string `json:"replica"`
	Backend string `json:"backend"` // the store that was asked
}

// maxProveBody is far more than a ProveRequest needs.
const maxProveBody = 1 << 10

// prove makes one claim through the store that messages are claimed in.
// `gateway doctor --prove` calls it many times at once, on all replicas, and
// wants one winner.
//
// A claim that is won is recorded at once instead of being left to its lease:
// claims in flight are followed through an outage, and by the memory store kept,
// until somebody settles them.
func (s *Server) prove(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		refuse(w, http.StatusMethodNotAllowed, "method not allowed")
		return
	}
	var req ProveRequest
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxProveBody))
	body.DisallowUnknownFields()
	if err := body.Decode(&req); err != nil || body.Decode(&struct{}{}) != io.EOF || !isProveKey(req.Key) {
		refuse(w, http.StatusBadRequest, `send {"key": "..."} with 1 to 64 letters, digits, - and _`)
		return
	}
	if s.cfg.Health.Phase() == health.Starting {
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, "starting")
		return
	}
	// Like a delivery, a proof holds up the drain, after which the store closes.
	if !s.cfg.Pipeline.intake.enter() {
		w.Header().Set("Retry-After", "5")
		refuse(w, http.StatusServiceUnavailable, "draining")
		return
	}
	defer s.cfg.Pipeline.intake.leave()
	key := idempotency.EncodeKey(message.Key{Platform: "doctor", Channel: "prove", ID: req.Key})
	res, err := s.cfg.Store.Reserve(r.Context(), key, idempotency.Request{
		Token: idempotency.NewToken(s.cfg.Replica), Lease: ProveLease, TTL: ProveLease,
	})
	if err != nil {
		if !errors.Is(err, idempotency.ErrUnavailable) {
			s.log.Error("claim of a proof failed", "error", err)
		}
		w.Header().Set("Retry-After", "5")
		refuse(w, http.StatusServiceUnavailable, "IDEMPOTENCY_UNAVAILABLE")
		return
	}
	answer := ProveAnswer{Won: res.State == idempotency.Won, Replica: s.cfg.Replica, Backend: s.cfg.Backends()["idempotency"]}
	if answer.Won {
		answer.Backend = res.Claim.Backend
		_ = s.cfg.Store.Record(context.WithoutCancel(r.Context()), res.Claim, nil) // else it ends with its lease
	}
	setJSON(w.Header())
	_ = json.NewEncoder(w).Encode(answer) // errors of the connection are the client's to notice
}

func isProveKey(key string) bool {
	return key != "" && len(key) <= 64 && !strings.ContainsFunc(key, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-' && r != '_'
	})
}
