package signature_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
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
	"hmac-hex, sha1":        {signature.Config{Scheme: signature.HMACHex, Header: "X-Sig", Algo: "sha1"}, false},
	"hmac-hex, sha512":      {signature.Config{Scheme: signature.HMACHex, Header: "x-sig", Prefix: "sha512=", Algo: "sha512"}, false},
	"hmac-base64, a URL":    {signature.Config{Scheme: signature.HMACBase64, Header: "X-Sig", SignedURL: signature.URLBefore}, false},
	"hmac-base64, behind":   {signature.Config{Scheme: signature.HMACBase64, Header: "X-Sig", SignedURL: signature.URLAfter}, false},
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

func TestB85_ManySignaturesCostNoMoreThanOne(t *testing.T) { // alone: it counts allocations
	v := verifier(t, signature.Config{Scheme: signature.GitHub}, "old-secret")
	for _, count := range []int{33, 500, 50_000} {
		h := http.Header{"X-Hub-Signature-256": {strings.Repeat("sha256="+strings.Repeat("0", 64)+",", count)}}
		if got := testing.AllocsPerRun(10, func() { _ = v.Verify(h, content, now) }); got > 2 {
			t.Errorf("%d signatures make %g allocations; they ought to be refused unread", count, got)
		}
	}
}

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
	svix := make(http.Header)
	for name, values := range signed {
		svix["Svix-"+strings.TrimPrefix(name, "Webhook-")] = values
	}
	if err := v.Verify(svix, content, now); err != nil {
		t.Errorf("under the names of Svix: %v", err)
	}
	mixed := maps.Clone(svix)
	mixed["Webhook-Id"] = []string{"another"}
	if err := v.Verify(mixed, content, now); !errors.Is(err, signature.ErrInvalid) {
		t.Errorf("with parts of two sets: %v", err)
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

func TestATimeIsPlainDigitsAndThereOnce(t *testing.T) {
	t.Parallel()
	seconds := fmt.Sprint(now.Unix())
	for scheme, name := range map[string]string{signature.Slack: "X-Slack-Request-Timestamp", signature.Standard: "Webhook-Timestamp"} {
		v := verifier(t, signature.Config{Scheme: scheme}, "old-secret")
		for _, values := range [][]string{
			nil, {""}, {"+" + seconds}, {" " + seconds}, {seconds + ".0"}, {"-1"}, {"0x1"}, {"1e9"}, {strings.Repeat("9", 12)}, {strings.Repeat("9", 1<<16)},
			{seconds, seconds}, {seconds + "," + seconds}, {"١٢٣"},
		} {
			h := make(http.Header)
			v.Sign(h, content, now)
			h[name] = values
			if err := v.Verify(h, content, now); !errors.Is(err, signature.ErrInvalid) {
				t.Errorf("%s %.20q: Verify = %v, want ErrInvalid", name, values, err)
			}
		}
	}
	h := make(http.Header)
	v := verifier(t, signature.Config{Scheme: signature.Stripe}, "old-secret")
	v.Sign(h, content, now)
	h["Stripe-Signature"][0] = "t=1," + h["Stripe-Signature"][0]
	if err := v.Verify(h, content, now); !errors.Is(err, signature.ErrInvalid) {
		t.Errorf("two times in a line: %v", err)
	}
}

func TestB101_TheWindowHasTwoEnds(t *testing.T) {
	t.Parallel()
	forEachScheme(t, func(t *testing.T, cfg signature.Config, timed bool, signed http.Header) {
		age, future := 10*time.Minute, 30*time.Second
		if timed {
			cfg.MaxAge, cfg.MaxFuture = &age, &future
		}
		v := verifier(t, cfg, "old-secret")
		for _, test := range []struct {
			later time.Duration // than the signing
			fresh bool
		}{
			{0, true}, {age - time.Second, true}, {age, true}, {age + time.Second, false}, {365 * 24 * time.Hour, false},
			{-10 * time.Second, true}, {-future, true}, {-future - time.Second, false}, {-10 * time.Minute, false},
		} {
			var want error
			if timed && !test.fresh {
				want = signature.ErrStale
			}
			if err := v.Verify(signed, content, now.Add(test.later)); !errors.Is(err, want) {
				t.Errorf("%s after the signing: %v, want %v", test.later, err, want)
			}
			if err := v.Verify(signed, signature.Content{Body: []byte("other")}, now.Add(test.later)); !errors.Is(err, signature.ErrInvalid) {
				t.Errorf("a forgery %s after the signing: %v, want ErrInvalid", test.later, err)
			}
		}
	})
}

// Nobody who does not know the secret gets in, and nothing panics.
func FuzzVerify(f *testing.F) {
	f.Add("sha256=00,v0=00", "1767225600", "msg_1", `{}`)
	f.Add("t=1767225600,v1="+strings.Repeat("0", 64), "", "", "")
	f.Add("v1,"+base64.StdEncoding.EncodeToString(make([]byte, 32))+" v1a,x", "99999999999", ".", "\xff")
	f.Add("HMAC "+strings.Repeat("é", 32), "-1", "", "a")
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
