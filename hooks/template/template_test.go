package template_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hooks/payload"
	"github.com/oncegate/oncegate/hooks/template"
)

func inputs(t testing.TB, body string) *template.Inputs {
	t.Helper()
	v, err := payload.Parse("text/plain", []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "http://host.example/hooks/x?q=a%20b&hub.mode=on", nil)
	r.Header.Set("X-One", "1")
	r.Header.Add("X-One", "2")
	return &template.Inputs{Payload: v, Request: r}
}

func TestRender(t *testing.T) {
	t.Parallel()
	const body = `{"a":{"b":[{"c":1},{"c":"two"}]},"k.e y":"dots","null":null,"empty":"","{{":"braces"}`
	for _, test := range []struct {
		text, want string
		missing    []string
	}{
		{"plain", "plain", nil},
		{"{{payload.a.b[1].c}}/{{ payload.a.b[0].c }}", "two/1", nil},
		{`{{ payload["a"]["b"][0] }}`, `{"c":1}`, nil},
		{`{{ payload["k.e y"] }}{{ payload["{{"] }}`, "dotsbraces", nil},
		{"{{ header.x-one }} {{ header.Host }} {{ query.q }} {{ query.hub.mode }}", "1 host.example a b on", nil},
		{"{{ payload.null }}{{ payload.empty }}{{ payload.a.b[2] }}", "", []string{"payload.null", "payload.empty", "payload.a.b[2]"}},
		{"{{ header.x-none }}{{ query.none }}", "", []string{"header.X-None", "query.none"}},
	} {
		compiled, err := template.Compile(test.text)
		if err != nil {
			t.Errorf("Compile(%q) = %v", test.text, err)
			continue
		}
		if got, missing := compiled.Render(inputs(t, body)); got != test.want || !slices.Equal(missing, test.missing) {
			t.Errorf("%q = %q, missing %q, want %q, %q", test.text, got, missing, test.want, test.missing)
		}
	}
}

func TestWhatATemplateReads(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][3]bool{ // constant, reads the payload, indexes it
		"":                                 {true, false, false},
		"text":                             {true, false, false},
		"{{ header.A }}{{ query.b }}":      {false, false, false},
		"{{ payload }}":                    {false, true, false},
		"{{ payload.a[0] }}":               {false, true, false},
		"{{ header.A }}{{ payload[0].a }}": {false, true, true},
	} {
		c, err := template.Compile(text)
		if got := [3]bool{c.IsConstant(), c.ReadsPayload(), c.IndexesPayload()}; err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
}

// Every text either has an error that names its place or renders, and one
// without references comes out as it went in.
func FuzzCompile(f *testing.F) {
	f.Add("{{ payload.a.b[1].c }} {{ header.X }}", `{"a":{"b":[]}}`)
	f.Add(`{{payload["\u00e9 }}"]["\\"][0]}}`, `{"é }}":{"\\":[1]}}`)
	f.Add("{{ payload[99999999999999999999] }}", `[1]`)
	f.Add("}} {{ {{", ``)
	f.Add(`{{ payload["`, `"`)
	f.Fuzz(func(t *testing.T, text, body string) {
		c, err := template.Compile(text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "at character ") {
				t.Errorf("Compile(%q) = %v, want the place first", text, err)
			}
			return
		}
		got, _ := c.Render(inputs(t, body))
		if !strings.Contains(text, "{{") && (got != text || !c.IsConstant()) {
			t.Errorf("%q became %q", text, got)
		}
	})
}
