package payload_test

import (
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hooks/payload"
)

func TestParse(t *testing.T) {
	t.Parallel()
	const form = "application/x-www-form-urlencoded"
	for _, test := range []struct {
		contentType, body, want string
		err                     error
	}{
		{"application/json", ` {"a":1} `, `{"a":1}`, nil},
		{"application/json", "\uFEFF[1]", `[1]`, nil},
		{"application/problem+json; x=\"", `1`, `1`, nil},
		{"", `"text"`, `"text"`, nil},
		{"text/plain; charset=utf-16", `{"a":1}`, `{"a":1}`, nil},
		{"text/plain", "two \"lines\"\n\\", `"two \"lines\"\u000a\\"`, nil},
		{"application/json", " \n ", ``, nil},
		{"image/png", "", ``, nil},
		{form, "", ``, nil},
		{form, "b=2&a=1&a=+x%22y&c", `{"a":["1"," x\"y"],"b":"2","c":""}`, nil},
		{"Application/X-WWW-Form-Urlencoded; charset=UTF-8", "a=1", `{"a":"1"}`, nil},
		{form, "payload=+%7B%22a%22%3A1%7D&token=t", `{"a":1}`, nil},
		{form, "payload=%5B1%2C2%5D", `[1,2]`, nil},
		{form, "payload=words&x=1", `{"payload":"words","x":"1"}`, nil},
		{form, "payload=%7B%7D&payload=%7B%7D", `{"payload":["{}","{}"]}`, nil},
		{form, "payload=%7Bsecret", ``, payload.ErrMalformed},
		{form, "secret=%zz", ``, payload.ErrMalformed},
		{form, "a=1;secret=2", ``, payload.ErrMalformed},
		{"application/json", `{"secret`, ``, payload.ErrMalformed},
		{"", `secret`, ``, payload.ErrMalformed},
		{"application/xml", `<secret/>`, ``, payload.ErrType},
		{"application/jsonp", `1`, ``, payload.ErrType},
	} {
		got, err := payload.Parse(test.contentType, []byte(test.body))
		if string(got) != test.want || !errors.Is(err, test.err) || (err == nil) != (test.err == nil) {
			t.Errorf("Parse(%q, %q) = %s, %v, want %s, %v", test.contentType, test.body, got, err, test.want, test.err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error quotes the body: %v", err)
		}
	}
}

// Whatever comes in, what comes out is one JSON value or one of the errors, and
// no field of a form is lost or changed.
func FuzzParse(f *testing.F) {
	f.Add("application/json", `{"a":[1,"\ud83d",{"b":null}]}`)
	f.Add("text/plain; charset", "\x00\xff\\\"")
	f.Add("application/x-www-form-urlencoded", "payload=%7B%22a%22%3A1%7D")
	f.Add("application/x-www-form-urlencoded", "a=%ff&a=\"&b[]=%00&=x")
	f.Add("application/vnd.api+json", "\uFEFF{")
	f.Add("application/x-www-form-urlencoded0", "=0") // another type, which is no form
	f.Add("application/x-www-form-urlencoded;", "a;b=%zz&&==")
	f.Fuzz(func(t *testing.T, contentType, body string) {
		v, err := payload.Parse(contentType, []byte(body))
		switch {
		case err != nil:
			if v != nil || !errors.Is(err, payload.ErrType) && !errors.Is(err, payload.ErrMalformed) {
				t.Fatalf("Parse = %q, %v", v, err)
			}
		case v == nil:
			if strings.TrimSpace(strings.TrimPrefix(body, "\uFEFF")) != "" {
				t.Fatalf("%q says nothing", body)
			}
		case !json.Valid(v):
			t.Fatalf("Parse = %q, which is no JSON", v)
		}
		v.AppendCanonical(v.AppendText(nil))
		fields, err := url.ParseQuery(body)
		mediaType, _, _ := strings.Cut(contentType, ";")
		if mediaType != "application/x-www-form-urlencoded" || err != nil || len(fields["payload"]) > 0 {
			return
		}
		for name, texts := range fields {
			got := v.Member(name)
			for i, text := range texts {
				if len(texts) > 1 {
					got = v.Member(name).Element(i)
				}
				if strings.HasPrefix(body, "\uFEFF") {
					return
				}
				if string(got.AppendText(nil)) != text {
					t.Fatalf("field %q = %q, want %q", name, got, text)
				}
			}
		}
	})
}
