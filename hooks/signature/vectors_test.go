package signature_test

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/internal/secret"
)

// vector is a request of a real sender, or one changed from it.
type vector struct {
	Name, Platform, Secret, Body string
	Headers                      map[string]string
	Valid                        bool
	MACValid                     bool  `json:"mac_valid"` // refused for its time alone
	VerifyAt                     int64 `json:"verify_at"`
}

// senders are the platforms whose signatures a scheme expresses.
var senders = map[string]signature.Config{
	"github":           {Scheme: signature.GitHub},
	"whatsapp":         {Scheme: signature.GitHub},
	"messenger":        {Scheme: signature.GitHub},
	"slack":            {Scheme: signature.Slack},
	"stripe":           {Scheme: signature.Stripe},
	"standardwebhooks": {Scheme: signature.Standard},
	"svix":             {Scheme: signature.Standard},
	"gitlab":           {Scheme: signature.Standard},
	"line":             {Scheme: signature.HMACBase64, Header: "x-line-signature"},
	"sentry":           {Scheme: signature.HMACHex, Header: "Sentry-Hook-Signature"},
	"linear":           {Scheme: signature.HMACHex, Header: "Linear-Signature"},
	"teams":            {Scheme: signature.HMACBase64, Header: "Authorization", Prefix: "HMAC ", SecretEncoding: signature.SecretBase64},
}

// inexpressible says why no scheme stands for a vector, by platform or name.
var inexpressible = map[string]string{
	"twilio":              "signs the sorted form fields",
	"discord":             "is asymmetric",
	"telegram":            "is a token without a signature",
	"matrix":              "is a token without a signature",
	"mattermost":          "is a token inside the body",
	"gitlab-token":        "is a token without a signature",
	"svix-asymmetric-v1a": "is asymmetric",
}

func mustReadVectors(t testing.TB) []vector {
	t.Helper()
	data, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []vector
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func (v vector) header() http.Header {
	h := make(http.Header)
	for name, value := range v.Headers {
		h.Set(name, value)
	}
	return h
}

func TestVectorsAreAcceptedOrRefusedAsMarked(t *testing.T) {
	t.Parallel()
	checked, reasons := 0, maps.Clone(inexpressible)
	for _, v := range mustReadVectors(t) {
		delete(reasons, v.Platform)
		delete(reasons, v.Name)
		if inexpressible[v.Platform] != "" || inexpressible[v.Name] != "" {
			continue
		}
		checked++
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			cfg, known := senders[v.Platform]
			if !known {
				t.Fatalf("no scheme is given for %s, and no reason why there is none", v.Platform)
			}
			cfg.Secrets = []secret.String{secret.New(v.Secret)}
			verifier, err := signature.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			want := signature.ErrInvalid
			switch {
			case v.Valid:
				want = nil
			case v.MACValid:
				want = signature.ErrStale
			}
			err = verifier.Verify(v.header(), signature.Content{Body: []byte(v.Body)}, time.Unix(v.VerifyAt, 0))
			if !errors.Is(err, want) {
				t.Errorf("Verify = %v, want %v", err, want)
			}
		})
	}
	if len(reasons) > 0 {
		t.Errorf("no vector is of %s; say no reason for it", slices.Sorted(maps.Keys(reasons)))
	}
	if checked != 27 {
		t.Errorf("%d vectors are checked, want 27", checked)
	}
}

func TestAnAsymmetricKeyIsRefusedWhenItIsConfigured(t *testing.T) {
	t.Parallel()
	for _, v := range mustReadVectors(t) {
		if v.Name != "svix-asymmetric-v1a" {
			continue
		}
		cfg := senders["svix"]
		cfg.Secrets = []secret.String{secret.New(v.Secret)}
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "asymmetric") || strings.Contains(err.Error(), v.Secret) {
			t.Errorf("Validate = %v, want it to say that the key is asymmetric", err)
		}
		return
	}
	t.Error("the vector is gone")
}
