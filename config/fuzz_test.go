package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/oncegate/oncegate/config"
)

// FuzzParse: no input makes the loader panic or answer differently the second
// time, and what it accepts can be printed and read again.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/*/*.yaml", "*.yaml", "../gateway.example.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("Glob(%q) = %v, %v; want files", pattern, files, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	env := environ("EMPTY=", "WORD=a${WORD}: b\n", "FIVE=5")
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := config.Parse("f.yaml", data, env)
		second, again := config.Parse("f.yaml", data, env)
		if !reflect.DeepEqual(first, second) || !reflect.DeepEqual(err, again) {
			t.Fatalf("Parse = %+v, %v, then %+v, %v", first, err, second, again)
		}
		if err != nil {
			return
		}
		printed, err := first.YAML()
		if err != nil {
			t.Fatalf("YAML: %v", err)
		}
		if bytes.Contains(printed, []byte("***")) {
			return // a secret cannot be read again
		}
		read, err := config.Parse("printed.yaml", printed, env)
		if err != nil {
			t.Fatalf("Parse(YAML()): %v\n%s", err, printed)
		}
		if reprinted, err := read.YAML(); err != nil || !bytes.Equal(reprinted, printed) {
			t.Fatalf("YAML after Parse = %s, %v, want %s", reprinted, err, printed)
		}
	})
}
