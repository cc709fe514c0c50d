package signature_test

import (
	"encoding/base64"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hooks/signature"
)

// Nobody who does not know the secret gets in, and nothing panics.
func FuzzVerify(f *testing.F) {
	f.Add("sha256=00,v0=00", "1767225600", "msg_1", `{}`)
	f.Add("t=1767225600,v1="+strings.Repeat("0", 64), "", "", "")
	f.Add("v1,"+base64.StdEncoding.EncodeToString(make([]byte, 32))+" v1a,x", "99999999999", ".", "\xff")
	f.Add("HMAC "+strings.Repeat("é", 32), "-1", "", "a")
	f.Add("sha256="+strings.Repeat("00", 32)+", sha256="+strings.Repeat("FF", 32), "1767268800", "x", body)
	f.Add("v0="+strings.Repeat("0", 63), "1767268800,1767268800", "msg_1", body)
	f.Add("t=1767268800,t=1,v0=a,v1="+strings.Repeat("f", 64)+",v1=", " 1767268800", "a.1", body)
	f.Add(strings.Repeat("v1,"+strings.Repeat("A", 43)+"= ", 500), "+1", "", body)
	f.Add(strings.Repeat("A", 1<<16), strings.Repeat("9", 1<<10), "\x00", body)
	f.Add("sha256=zz, v1,, ,=,v1,"+strings.Repeat("A", 42)+"B=,", "٣", "é", body)
	var verifiers []*signature.Verifier
	for _, name := range slices.Sorted(maps.Keys(everyScheme)) {
		verifiers = append(verifiers, verifier(f, everyScheme[name].cfg, "a secret that no input knows", "and another"))
	}
	f.Fuzz(func(t *testing.T, sig, stamp, id, text string) {
		h := http.Header{}
		for _, name := range []string{"X-Hub-Signature-256", "X-Slack-Signature", "Stripe-Signature", "Webhook-Signature", "X-Sig", "Authorization"} {
			h[name] = []string{sig, id + sig}
		}
		h["X-Slack-Request-Timestamp"], h["Webhook-Timestamp"], h["Webhook-Id"] = []string{stamp}, []string{stamp}, []string{id}
		for _, v := range verifiers {
			if err := v.Verify(h, signature.Content{Body: []byte(text), URL: id}, now); !errors.Is(err, signature.ErrInvalid) {
				t.Fatalf("Verify = %v, want ErrInvalid", err)
			}
			other := maps.Clone(h)
			for _, part := range []string{"Id", "Timestamp", "Signature"} {
				other["Svix-"+part] = h["Webhook-"+part]
				delete(other, "Webhook-"+part)
			}
			if err := v.Verify(other, signature.Content{Body: []byte(text), URL: id}, now); !errors.Is(err, signature.ErrInvalid) {
				t.Fatalf("Verify under the names of Svix = %v, want ErrInvalid", err)
			}
			signed := maps.Clone(h)
			v.Sign(signed, signature.Content{Body: []byte(text), URL: id}, now)
			if err := v.Verify(signed, signature.Content{Body: []byte(text), URL: id}, now); err != nil {
				t.Fatalf("Verify of what Sign made = %v", err)
			}
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	kilobyte := signature.Content{Body: []byte(strings.Repeat("x", 1024))}
	for _, name := range slices.Sorted(maps.Keys(everyScheme)) {
		b.Run(name, func(b *testing.B) {
			v := verifier(b, everyScheme[name].cfg, "old-secret")
			h := make(http.Header)
			v.Sign(h, kilobyte, now)
			b.ReportAllocs()
			for b.Loop() {
				if err := v.Verify(h, kilobyte, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
