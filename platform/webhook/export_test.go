package webhook

// NewWith is New with another network.
var NewWith = newSender

// The bounds of a request.
const (
	MaxBody = maxBody
	Timeout = timeout
)
