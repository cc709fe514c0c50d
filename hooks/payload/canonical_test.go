package payload_test

import (
	"testing"

	"github.com/oncegate/oncegate/hooks/payload"
)

func TestANumberDoesNotRunIntoTheNextName(t *testing.T) {
	t.Parallel()
	canonical := func(text string) string {
		v, err := payload.Parse("application/json", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return string(v.AppendCanonical(nil))
	}
	a, b := `{"a":1,"bb521\"cccccc":"ssssssssssss7"}`, `{"a":11,"bb":5,"cccccc13\"ssssssssssss":7}`
	if canonical(a) == canonical(b) {
		t.Errorf("%s and %s have one form", a, b)
	}
}
