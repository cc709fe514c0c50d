package sqlitehistory_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/agent"
)

// A turn is a Begin and an Append to a session that has all its turns already.
func BenchmarkTurn(b *testing.B) {
	for _, size := range []int{100, 4000} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			cfg := config(b, tempPath(b))
			cfg.MaxTurns = 50
			h := mustOpen(b, cfg)
			text := strings.Repeat("x", size)
			turn := func(n int) {
				key := fmt.Sprint(n)
				mustBegin(b, h, "s", uint64(n))
				if err := h.Append(b.Context(), "s", uint64(n),
					agent.Row{Role: agent.User, Text: text, Key: key}, agent.Row{Role: agent.Assistant, Text: text, Key: key}); err != nil {
					b.Fatal(err)
				}
			}
			n := 0
			for ; n < cfg.MaxTurns; n++ {
				turn(n)
			}
			b.ReportAllocs()
			for b.Loop() {
				turn(n)
				n++
			}
		})
	}
}
