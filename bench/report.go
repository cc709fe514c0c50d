package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// report prints one line per comparison. Both sides of a ratio were measured
// in this run, on this machine, taking turns.
type report struct{ out io.Writer }

func (r *report) section(title string) { fmt.Fprintf(r.out, "\n## %s\n\n", title) }

// atLeast prints ours/base, which ought to be want or more.
func (r *report) atLeast(name string, ours, base, want float64) {
	r.row(name, ours, base, "≥", want, ours/base >= want)
}

// atMost prints ours/base, which ought to be want or less.
func (r *report) atMost(name string, ours, base, want float64) {
	r.row(name, ours, base, "≤", want, ours/base <= want)
}

func (r *report) row(name string, ours, base float64, relation string, want float64, met bool) {
	mark := "met"
	if !met {
		mark = "missed"
	}
	fmt.Fprintf(r.out, "%-62s ours %12.4g   base %12.4g   ratio %6.2f   want %s %.2f   %s\n", name, ours, base, ours/base, relation, want, mark)
}

// note prints a figure that has nothing to be compared with.
func (r *report) note(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

// quantile returns the q-quantile (0..1) of latencies, which it sorts.
func quantile(latencies []time.Duration, q float64) time.Duration {
	if len(latencies) == 0 {
		return 0
	}
	slices.Sort(latencies)
	return latencies[min(int(q*float64(len(latencies))), len(latencies)-1)]
}

// median returns the middle one of the turns of one side.
func median(turns []float64) float64 {
	sorted := slices.Sorted(slices.Values(turns))
	return sorted[len(sorted)/2]
}
