package httpagent

// NewWith is New with another network.
var NewWith = newAgent

// MaxBody is the bound of an answer in bytes.
const MaxBody = maxBody
