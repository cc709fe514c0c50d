package bytesize_test

import (
	"math"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/oncegate/oncegate/internal/bytesize"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bytesize.Size{
		"0": 0, "512": 512, "512B": 512, "1KiB": 1024, "64KiB": 64 << 10, "1MiB": 1 << 20, "3GiB": 3 << 30, "0MiB": 0,
		"9223372036854775807": math.MaxInt64, "8589934591GiB": 8589934591 << 30,
	} {
		if got, err := bytesize.Parse(text); err != nil || got != want {
			t.Errorf("Parse(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "B", "KiB", "-1", "-1KiB", "1.5MiB", "1e3", "0x10", "1_000", "64KB", "64kib", "64K", "64 KiB", " 64KiB", "1TiB", "1KiBB",
		"9223372036854775808", "8589934592GiB",
	} {
		if got, err := bytesize.Parse(text); err == nil {
			t.Errorf("Parse(%q) = %d, want an error", text, got)
		}
	}
}

func TestStringIsExact(t *testing.T) {
	t.Parallel()
	for size, want := range map[bytesize.Size]string{
		0: "0", 1: "1", 1023: "1023", 1024: "1KiB", 1025: "1025", 1536: "1536", 64 * bytesize.KiB: "64KiB", bytesize.MiB: "1MiB",
		1536 * bytesize.KiB: "1536KiB", bytesize.GiB: "1GiB", 2048 * bytesize.GiB: "2048GiB", math.MaxInt64: "9223372036854775807",
	} {
		if got := size.String(); got != want {
			t.Errorf("Size(%d).String() = %q, want %q", size, got, want)
		}
		if got, err := bytesize.Parse(want); err != nil || got != size {
			t.Errorf("Parse(%q) = %d, %v; want %d", want, got, err, size)
		}
	}
}

func TestMarshalYAML(t *testing.T) {
	t.Parallel()
	got, err := yaml.Marshal(map[string]bytesize.Size{"size": bytesize.MiB})
	if err != nil || string(got) != "size: 1MiB\n" {
		t.Errorf("Marshal = %q, %v; want size: 1MiB", got, err)
	}
}
