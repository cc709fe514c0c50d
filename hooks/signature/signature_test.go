package signature_test

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/internal/secret"
)

const body = `{"t":"caf\u00e9 \u2028","n": 1.0 ,"t2":"é"}` + "\n"

var now = time.Date(2026, 1, 1, 12, 0, 0, 900_000_000, time.UTC)

// everyScheme has a configuration of each scheme, without secrets, by a name
// for the test and whether it signs a time.
var everyScheme = map[string]struct {
	cfg   signature.Config
	timed bool
}{
	"github":                {signature.Config{Scheme: signature.GitHub}, false},
	"slack":                 {signature.Config{Scheme: signature.Slack}, true},
	"stripe":                {signature.Config{Scheme: signature.Stripe}, true},
	"standard":              {signature.Config{Scheme: signature.Standard}, true},
	"standard, raw":         {signature.Config{Scheme: signature.Standard, SecretEncoding: signature.SecretRaw}, true},
	"hmac-hex":              {signature.Config{Scheme: signature.HMACHex, Header: "X-Sig"}, false},
	"hmac-hex, sha1":        {signature.Config{Scheme: signature.HMACHex, Header: "X-Sig", Algo: "sha1"}, false},
	"hmac-hex, sha512":      {signature.Config{Scheme: signature.HMACHex, Header: "x-sig", Prefix: "sha512=", Algo: "sha512"}, false},
	"hmac-base64, a URL":    {signature.Config{Scheme: signature.HMACBase64, Header: "X-Sig", SignedURL: signature.URLBefore}, false},
	"hmac-base64, behind":   {signature.Config{Scheme: signature.HMACBase64, Header: "X-Sig", SignedURL: signature.URLAfter, Algo: "sha1"}, false},
	"hmac-base64, a scheme": {signature.Config{Scheme: signature.HMACBase64, Header: "Authorization", Prefix: "HMAC ", SecretEncoding: signature.SecretBase64}, false},
}

// inForm writes a key's text as the configuration wants it.
func inForm(cfg signature.Config, text string) secret.String {
	if cfg.SecretEncoding == signature.SecretBase64 || cfg.Scheme == signature.Standard && cfg.SecretEncoding == "" {
		return secret.New(base64.StdEncoding.EncodeToString([]byte(text)))
	}
	return secret.New(text)
}

func verifier(t testing.TB, cfg signature.Config, texts ...string) *signature.Verifier {
	t.Helper()
	cfg.Secrets = nil
	for _, text := range texts {
		cfg.Secrets = append(cfg.Secrets, inForm(cfg, text))
	}
	v, err := signature.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// forEachScheme runs test for every scheme with the header that a sender with
// the secret "old-secret" would send.
func forEachScheme(t *testing.T, test func(t *testing.T, cfg signature.Config, timed bool, signed http.Header)) {
	t.Helper()
	for name, s := range everyScheme {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			header := make(http.Header)
			verifier(t, s.cfg, "old-secret").Sign(header, content, now)
			test(t, s.cfg, s.timed, header)
		})
	}
}

var content = signature.Content{Body: []byte(body), URL: "https://bot.example/hooks/x?y=a%2Fb"}

func TestWhatIsSignedIsAccepted(t *testing.T) {
	t.Parallel()
	forEachScheme(t, func(t *testing.T, cfg signature.Config, _ bool, signed http.Header) {
		for _, texts := range [][]string{{"old-secret"}, {"new-secret", "old-secret"}, {"old-secret", "new-secret"}} {
			if err := verifier(t, cfg, texts...).Verify(signed, content, now); err != nil {
				t.Errorf("with %q: %v", texts, err)
			}
		}
	})
}

func TestB84_EveryOtherByteIsRefused(t *testing.T) {
	t.Parallel()
	forEachScheme(t, func(t *testing.T, cfg signature.Config, _ bool, signed http.Header) {
		v := verifier(t, cfg, "old-secret")
		for i := range content.Body {
			other := slices.Clone(content.Body)
			other[i] ^= 1
			if err := v.Verify(signed, signature.Content{Body: other, URL: content.URL}, now); !errors.Is(err, signature.ErrInvalid) {
				t.Fatalf("with byte %d changed: %v", i, err)
			}
		}
		for _, other := range [][]byte{nil, content.Body[1:], append(slices.Clone(content.Body), ' ')} {
			if err := v.Verify(signed, signature.Content{Body: other, URL: content.URL}, now); !errors.Is(err, signature.ErrInvalid) {
				t.Errorf("with %q: %v", other, err)
			}
		}
		if err := verifier(t, cfg, "new-secret").Verify(signed, content, now); !errors.Is(err, signature.ErrInvalid) {
			t.Errorf("under another secret: %v", err)
		}
	})
}

// The MACs are made here, so that Sign and Verify cannot be wrong in the same way.
func TestWhatASenderSigns(t *testing.T) {
	t.Parallel()
	const text = "old-secret"
	seconds := fmt.Sprint(now.Unix())
	sum := func(newHash func() hash.Hash, signed string) []byte {
		h := hmac.New(newHash, []byte(text))
		h.Write([]byte(signed))
		return h.Sum(nil)
	}
	inHex := func(newHash func() hash.Hash, signed string) string { return hex.EncodeToString(sum(newHash, signed)) }
	inBase64 := func(newHash func() hash.Hash, signed string) string {
		return base64.StdEncoding.EncodeToString(sum(newHash, signed))
	}
	standard := inBase64(sha256.New, "msg_1."+seconds+"."+body)
	for name, header := range map[string]http.Header{
		"github":           {"X-Hub-Signature-256": {"sha256=" + inHex(sha256.New, body)}},
		"slack":            {"X-Slack-Request-Timestamp": {seconds}, "X-Slack-Signature": {"v0=" + inHex(sha256.New, "v0:"+seconds+":"+body)}},
		"stripe":           {"Stripe-Signature": {"t=" + seconds + ",v1=" + inHex(sha256.New, seconds+"."+body)}},
		"standard":         {"Webhook-Id": {"msg_1"}, "Webhook-Timestamp": {seconds}, "Webhook-Signature": {"v1," + standard}},
		"standard, raw":    {"Svix-Id": {"msg_1"}, "Svix-Timestamp": {seconds}, "Svix-Signature": {"v1," + standard}},
		"hmac-hex":         {"X-Sig": {inHex(sha256.New, body)}},
		"hmac-hex, sha1":   {"X-Sig": {inHex(sha1.New, body)}},
		"hmac-hex, sha512": {"X-Sig": {"sha512=" + inHex(sha512.New, body)}},
		// As Square and Trello do.
		"hmac-base64, a URL":    {"X-Sig": {inBase64(sha256.New, content.URL+body)}},
		"hmac-base64, behind":   {"X-Sig": {inBase64(sha1.New, body+content.URL)}},
		"hmac-base64, a scheme": {"Authorization": {"HMAC " + inBase64(sha256.New, body)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, known := everyScheme[name]
			if !known {
				t.Fatal("no such scheme")
			}
			if err := verifier(t, s.cfg, text).Verify(header, content, now); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestB94_ASignedURLIsComparedByteByByte(t *testing.T) {
	t.Parallel()
	forEachScheme(t, func(t *testing.T, cfg signature.Config, _ bool, signed http.Header) {
		other := signature.Content{Body: content.Body, URL: "https://bot.example/hooks/x?y=a/b"}
		err := verifier(t, cfg, "old-secret").Verify(signed, other, now)
		if covers := cfg.SignedURL != ""; covers != errors.Is(err, signature.ErrInvalid) {
			t.Errorf("with the URL unescaped: %v, while it is covered: %t", err, covers)
		}
	})
}

// signatureHeader returns the name of the header with the signature.
func signatureHeader(cfg signature.Config) string {
	switch cfg.Scheme {
	case signature.GitHub:
		return "X-Hub-Signature-256"
	case signature.Slack:
		return "X-Slack-Signature"
	case signature.Stripe:
		return "Stripe-Signature"
	case signature.Standard:
		return "Webhook-Signature"
	}
	return http.CanonicalHeaderKey(cfg.Header)
}

func TestB85_SeveralSignaturesAreTried(t *testing.T) {
	t.Parallel()
	forEachScheme(t, func(t *testing.T, cfg signature.Config, _ bool, signed http.Header) {
		wrong := maps.Clone(signed)
		verifier(t, cfg, "new-secret").Sign(wrong, content, now)
		name := signatureHeader(cfg)
		good, bad := signed[name][0], wrong[name][0]
		separator := ","
		if cfg.Scheme == signature.Standard {
			separator = " "
			// Sign kept the id, so that only the MAC differs.
			if wrong["Webhook-Id"][0] != signed["Webhook-Id"][0] {
				t.Fatal("the two are not of one message")
			}
		}
		bad1 := bad
		if cfg.Scheme == signature.Stripe { // the time stands in the line once
			_, bad1, _ = strings.Cut(bad, ",")
			good, bad1 = bad1+","+good, good[:strings.Index(good, ",")]+","+bad1
		} else {
			good = bad1 + separator + good
		}
		v := verifier(t, cfg, "old-secret")
		for _, test := range []struct {
			what  string
			lines []string
			err   error
		}{
			{"a list", []string{good}, nil},
			{"a list with spaces", []string{strings.ReplaceAll(good, separator, separator+" ")}, nil},
			{"two lines", []string{bad1, signed[name][0]}, nil},
			{"a line twice", []string{signed[name][0], signed[name][0]}, nil},
			{"only wrong ones", []string{bad1, bad1}, signature.ErrInvalid},
			{"500", []string{strings.Repeat(bad+separator, 500) + signed[name][0]}, signature.ErrInvalid},
			{"500 lines", append(slices.Repeat([]string{bad}, 500), signed[name][0]), signature.ErrInvalid},
			{"none", nil, signature.ErrInvalid},
		} {
			h := maps.Clone(signed)
			h[name] = test.lines
			if err := v.Verify(h, content, now); !errors.Is(err, test.err) {
				t.Errorf("%s: Verify = %v, want %v", test.what, err, test.err)
			}
		}
	})
}

func TestB85_TheLastOf32SignaturesCountsAndThe33rdIsTooMany(t *testing.T) {
	t.Parallel()
	forEachScheme(t, func(t *testing.T, cfg signature.Config, _ bool, signed http.Header) {
		v, name, separator, most := verifier(t, cfg, "old-secret"), signatureHeader(cfg), ",", 32
		good := signed[name][0]
		wrong := good[:len(good)-4] + "0000"
		switch cfg.Scheme {
		case signature.Standard:
			separator = " "
		case signature.Stripe: // the time takes the place of one
			var stamp string
			stamp, good, _ = strings.Cut(good, ",")
			wrong, most = "v1="+strings.Repeat("0", 64), 31
			good = stamp + separator + good
		}
		for count, want := range map[int]error{most: nil, most + 1: signature.ErrInvalid} {
			many := strings.Repeat(wrong+separator, count-1)
			h := maps.Clone(signed)
			h[name] = []string{many + good}
			if err := v.Verify(h, content, now); !errors.Is(err, want) {
				t.Errorf("the last of %d: Verify = %v, want %v", count, err, want)
			}
		}
		lines := map[int]error{32: nil, 33: signature.ErrInvalid}
		if cfg.Scheme == signature.Stripe { // each line has a time that is hashed with the body
			lines = map[int]error{4: nil, 5: signature.ErrInvalid}
		}
		for count, want := range lines {
			h := maps.Clone(signed)
			h[name] = append(slices.Repeat([]string{wrong}, count-1), signed[name][0])
			if err := v.Verify(h, content, now); !errors.Is(err, want) {
				t.Errorf("the last of %d lines: Verify = %v, want %v", count, err, want)
			}
		}
	})
}

func TestAVerifierIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	forEachScheme(t, func(t *testing.T, cfg signature.Config, _ bool, _ http.Header) {
		v := verifier(t, cfg, "new-secret", "old-secret")
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				own := signature.Content{Body: fmt.Appendf(nil, "body %d", i), URL: content.URL}
				for range 20 {
					h := make(http.Header)
					v.Sign(h, own, now)
					if err := v.Verify(h, own, now); err != nil {
						t.Errorf("body %d: %v", i, err)
					}
					if err := v.Verify(h, content, now); !errors.Is(err, signature.ErrInvalid) {
						t.Errorf("the signature of body %d under another: %v", i, err)
					}
				}
			})
		}
		wg.Wait()
	})
}

func TestB85_ManySignaturesCostNoMoreThanOne(t *testing.T) { // alone: it counts allocations
	v := verifier(t, signature.Config{Scheme: signature.GitHub}, "old-secret")
	for _, count := range []int{33, 500, 50_000} {
		h := http.Header{"X-Hub-Signature-256": {strings.Repeat("sha256="+strings.Repeat("0", 64)+",", count)}}
		if got := testing.AllocsPerRun(10, func() { _ = v.Verify(h, content, now) }); got > 2 {
			t.Errorf("%d signatures make %g allocations; they ought to be refused unread", count, got)
		}
	}
}

func TestB97_MalformedIsLikeWrong(t *testing.T) {
	t.Parallel()
	forEachScheme(t, func(t *testing.T, cfg signature.Config, timed bool, signed http.Header) {
		v := verifier(t, cfg, "old-secret")
		name := signatureHeader(cfg)
		values := []string{
			"", ",", " ", "=", "sha256=", "sha256=zz", "v0=", "v1,", "v1=", "t=", "t=1", "t=,v1=", "HMAC ", "HMAC", "sha512=",
			strings.Repeat("a", 1<<20), strings.Repeat("é", 32), "\x00", signed[name][0][:len(signed[name][0])-1], signed[name][0] + "0", "x" + signed[name][0],
		}
		for _, value := range values {
			h := maps.Clone(signed)
			h[name] = []string{value}
			if err := v.Verify(h, content, now); !errors.Is(err, signature.ErrInvalid) {
				t.Errorf("%.40q: Verify = %v, want ErrInvalid", value, err)
			}
		}
		if cfg.Scheme != signature.HMACBase64 && cfg.Scheme != signature.Standard {
			h := maps.Clone(signed)
			prefix, digits, _ := strings.Cut(h[name][0], "v1=")
			if digits == "" {
				i := strings.LastIndex(h[name][0], "=") + 1
				prefix, digits = h[name][0][:i], h[name][0][i:]
			} else {
				prefix += "v1="
			}
			h[name] = []string{prefix + strings.ToUpper(digits)}
			if err := v.Verify(h, content, now); err != nil {
				t.Errorf("upper-case hex: %v", err)
			}
		}
		if err := v.Verify(http.Header{}, content, now); !errors.Is(err, signature.ErrInvalid) {
			t.Errorf("no header: %v", err)
		}
	})
}
