package openai

// NewWith returns an agent with connections of the test's own, for what needs a
// false clock or another host.
var NewWith = newAgent
