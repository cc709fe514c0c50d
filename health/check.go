package health

// CheckStatus is the result of one check of `gateway doctor`.
type CheckStatus string

// The results of a check.
const (
	CheckOK      CheckStatus = "ok"
	CheckWarn    CheckStatus = "warn"
	CheckFail    CheckStatus = "fail"
	CheckSkipped CheckStatus = "skipped" // could not or need not be made; Detail says why
)

// Check is one finding. ID is stable: scripts compare it.
type Check struct {
	ID     string      `json:"id"`
	Status CheckStatus `json:"status"`
	Detail string      `json:"detail"`
	Hint   string      `json:"hint"`   // what to do next; empty when nothing
	Source string      `json:"source"` // where the finding comes from
}
