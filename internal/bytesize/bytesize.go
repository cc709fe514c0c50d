// Package bytesize reads and prints sizes as people write them: "64KiB", "1MiB", "512".
package bytesize

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes.
type Size int64

// The binary units.
const (
	KiB Size = 1 << (10 * (iota + 1))
	MiB
	GiB
)

var units = []struct {
	suffix string
	size   Size
}{{"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"B", 1}}

// Parse reads a whole number with a unit of B, KiB, MiB or GiB, or without one
// for plain bytes.
func Parse(text string) (Size, error) {
	number, unit := text, Size(1)
	for _, u := range units {
		if n, ok := strings.CutSuffix(text, u.suffix); ok {
			number, unit = n, u.size
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a size; write plain bytes or a whole number with KiB, MiB or GiB", text)
	}
	if n > math.MaxInt64/int64(unit) {
		return 0, fmt.Errorf("%q is too large", text)
	}
	return Size(n) * unit, nil
}

// String returns the shortest exact form, which Parse reads back.
func (s Size) String() string {
	for _, u := range units {
		if s >= u.size && s%u.size == 0 && u.size > 1 {
			return strconv.FormatInt(int64(s/u.size), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalYAML prints the size as String does.
func (s Size) MarshalYAML() (any, error) { return s.String(), nil }
