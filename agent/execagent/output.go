package execagent

import (
	"bytes"

	"github.com/oncegate/oncegate/agent"
)

// output keeps what a program prints, up to agent.MaxReply bytes.
type output struct {
	data []byte
	full func() // called once, with the first byte too many
	over bool
}

func (o *output) Write(p []byte) (int, error) {
	if len(o.data)+len(p) > agent.MaxReply {
		if !o.over {
			o.over = true
			o.full()
		}
		return 0, errTooLarge()
	}
	o.data = append(o.data, p...)
	return len(p), nil
}

// maxTail is how much of its standard error is kept of a program, in bytes.
const maxTail = 4 << 10

// tail keeps the end of what is written to it.
type tail struct {
	data []byte
	size int // of all that was written
}

func (t *tail) Write(p []byte) (int, error) {
	t.size += len(p)
	t.data = append(t.data, p[max(0, len(p)-maxTail):]...)
	t.data = t.data[max(0, len(t.data)-maxTail):]
	return len(p), nil
}

func (t *tail) String() string { return string(bytes.ToValidUTF8(t.data, []byte("\uFFFD"))) }
