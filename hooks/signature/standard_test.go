package signature_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/internal/secret"
)

func TestB87_VersionsAndHeaderNames(t *testing.T) {
	t.Parallel()
	cfg := signature.Config{Scheme: signature.Standard}
	v := verifier(t, cfg, "old-secret")
	signed := make(http.Header)
	v.Sign(signed, content, now)
	good := signed["Webhook-Signature"][0]
	other := "v1," + base64.StdEncoding.EncodeToString(make([]byte, 32))
	asymmetric := "v1a," + base64.StdEncoding.EncodeToString(make([]byte, 64))
	for list, want := range map[string]error{
		other + " " + good + " " + asymmetric:                    nil,
		asymmetric + " " + good:                                  nil,
		other + ", " + good:                                      nil, // two lines that a proxy has joined
		good + ", " + other:                                      nil,
		asymmetric:                                               signature.ErrInvalid,
		"v1a" + strings.TrimPrefix(good, "v1"):                   signature.ErrInvalid,
		strings.TrimPrefix(good, "v1,"):                          signature.ErrInvalid,
		"v1," + good:                                             signature.ErrInvalid,
		strings.TrimSuffix(good, "="):                            signature.ErrInvalid,
		good[:len(good)-2] + string(good[len(good)-2]+1) + "=":   signature.ErrInvalid, // stray bits behind the last byte
		"v1," + strings.ToLower(strings.TrimPrefix(good, "v1,")): signature.ErrInvalid,
	} {
		h := maps.Clone(signed)
		h["Webhook-Signature"] = []string{list}
		if err := v.Verify(h, content, now); !errors.Is(err, want) {
			t.Errorf("%s: Verify = %v, want %v", list, err, want)
		}
	}
	withPrefix := cfg
	withPrefix.Secrets = []secret.String{secret.New("whsec_" + base64.StdEncoding.EncodeToString([]byte("old-secret")))}
	prefixed, err := signature.New(withPrefix)
	if err != nil {
		t.Fatal(err)
	}
	if err := prefixed.Verify(signed, content, now); err != nil {
		t.Errorf("with the secret behind whsec_: %v", err)
	}
}

func TestB87_OneSetOfHeadersIsUsedAndNoPartsOfTwo(t *testing.T) {
	t.Parallel()
	v := verifier(t, signature.Config{Scheme: signature.Standard}, "old-secret")
	webhook, svix := make(http.Header), make(http.Header)
	v.Sign(webhook, content, now)
	for name, values := range webhook {
		svix["Svix-"+strings.TrimPrefix(name, "Webhook-")] = values
	}
	only := func(from http.Header, names ...string) http.Header {
		h := make(http.Header)
		for _, name := range names {
			h[name] = from[name]
		}
		return h
	}
	wrong := "v1," + base64.StdEncoding.EncodeToString(make([]byte, 32))
	for name, test := range map[string]struct {
		header []http.Header // each over those before it
		want   error
	}{
		"webhook":                      {[]http.Header{webhook}, nil},
		"svix":                         {[]http.Header{svix}, nil},
		"both":                         {[]http.Header{webhook, svix}, nil},
		"both, svix wrong":             {[]http.Header{webhook, svix, {"Svix-Signature": {wrong}}}, nil},
		"both, webhook wrong":          {[]http.Header{webhook, svix, {"Webhook-Signature": {wrong}}}, signature.ErrInvalid},
		"both, webhook of two ids":     {[]http.Header{webhook, svix, {"Webhook-Id": {webhook["Webhook-Id"][0], "another"}}}, signature.ErrInvalid},
		"svix, a foreign signature":    {[]http.Header{svix, {"Webhook-Signature": {wrong}}}, nil},
		"svix, its signature only":     {[]http.Header{only(webhook, "Webhook-Id", "Webhook-Timestamp"), only(svix, "Svix-Signature")}, signature.ErrInvalid},
		"svix, its id only":            {[]http.Header{only(webhook, "Webhook-Signature", "Webhook-Timestamp"), only(svix, "Svix-Id")}, signature.ErrInvalid},
		"svix, its time only":          {[]http.Header{only(webhook, "Webhook-Id", "Webhook-Signature"), only(svix, "Svix-Timestamp")}, signature.ErrInvalid},
		"webhook, another svix-id":     {[]http.Header{webhook, {"Svix-Id": {"another"}}}, signature.ErrInvalid},
		"webhook, a second svix-id":    {[]http.Header{webhook, {"Svix-Id": {webhook["Webhook-Id"][0], "another"}}}, signature.ErrInvalid},
		"both, another svix-id":        {[]http.Header{webhook, svix, {"Svix-Id": {"another"}}}, signature.ErrInvalid},
		"svix, another webhook-id":     {[]http.Header{svix, {"Webhook-Id": {"another"}}}, signature.ErrInvalid},
		"svix, an empty webhook-id":    {[]http.Header{svix, {"Webhook-Id": {""}}}, signature.ErrInvalid},
		"neither":                      {nil, signature.ErrInvalid},
		"an id twice, though the same": {[]http.Header{webhook, {"Webhook-Id": {webhook["Webhook-Id"][0], webhook["Webhook-Id"][0]}}}, signature.ErrInvalid},
	} {
		h := make(http.Header)
		for _, part := range test.header {
			maps.Copy(h, part)
		}
		if err := v.Verify(h, content, now); !errors.Is(err, test.want) {
			t.Errorf("%s: Verify = %v, want %v", name, err, test.want)
		}
	}
}

func TestAnEmptyIDIsNone(t *testing.T) {
	t.Parallel()
	v := verifier(t, signature.Config{Scheme: signature.Standard, SecretEncoding: signature.SecretRaw}, "old-secret")
	mac := hmac.New(sha256.New, []byte("old-secret"))
	seconds := fmt.Sprint(now.Unix())
	fmt.Fprintf(mac, ".%s.%s", seconds, body)
	h := http.Header{
		"Webhook-Id": {""}, "Webhook-Timestamp": {seconds}, "Webhook-Signature": {"v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))},
	}
	if err := v.Verify(h, content, now); !errors.Is(err, signature.ErrInvalid) {
		t.Errorf("Verify = %v, want ErrInvalid", err)
	}
}

func TestSignKeepsAnIDThatIsThere(t *testing.T) {
	t.Parallel()
	v := verifier(t, signature.Config{Scheme: signature.Standard}, "old-secret")
	for name, test := range map[string]struct {
		given http.Header
		want  string // empty: a new one
	}{
		"none":                {http.Header{}, ""},
		"an empty one":        {http.Header{"Webhook-Id": {""}, "Svix-Id": {""}}, ""},
		"webhook-id":          {http.Header{"Webhook-Id": {"a"}}, "a"},
		"svix-id":             {http.Header{"Svix-Id": {"b"}}, "b"},
		"two that contradict": {http.Header{"Webhook-Id": {"a"}, "Svix-Id": {"b"}}, "a"},
		"a line for each":     {http.Header{"Webhook-Id": {"a", "c"}}, "a"},
	} {
		h, again := test.given.Clone(), test.given.Clone()
		v.Sign(h, content, now)
		v.Sign(again, content, now)
		id := h.Get("Webhook-Id")
		if test.want != "" && id != test.want {
			t.Errorf("%s: the id is %q, want %q", name, id, test.want)
		}
		if test.want == "" && (!strings.HasPrefix(id, "msg_") || id == again.Get("Webhook-Id")) {
			t.Errorf("%s: the ids are %q and %q, want two new ones", name, id, again.Get("Webhook-Id"))
		}
		if err := v.Verify(h, content, now); err != nil {
			t.Errorf("%s: Verify of what Sign made = %v", name, err)
		}
	}
}
