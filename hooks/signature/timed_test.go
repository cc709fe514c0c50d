package signature_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hooks/signature"
)

// Each text is signed as it stands, so that nothing else is wrong with it.
func TestATimeIsPlainDigitsAndThereOnce(t *testing.T) {
	t.Parallel()
	mac := func(signed string) []byte {
		h := hmac.New(sha256.New, []byte("old-secret"))
		h.Write([]byte(signed))
		return h.Sum(nil)
	}
	seconds := fmt.Sprint(now.Unix())
	for scheme, sign := range map[string]func(text string, lines ...string) http.Header{
		signature.Slack: func(text string, lines ...string) http.Header {
			return http.Header{
				"X-Slack-Request-Timestamp": lines,
				"X-Slack-Signature":         {"v0=" + hex.EncodeToString(mac("v0:"+text+":"+body))},
			}
		},
		signature.Stripe: func(text string, lines ...string) http.Header {
			stamps := ""
			for _, line := range lines {
				stamps += "t=" + line + ","
			}
			return http.Header{"Stripe-Signature": {stamps + "v1=" + hex.EncodeToString(mac(text+"."+body))}}
		},
		signature.Standard: func(text string, lines ...string) http.Header {
			return http.Header{
				"Webhook-Id": {"msg_1"}, "Webhook-Timestamp": lines,
				"Webhook-Signature": {"v1," + base64.StdEncoding.EncodeToString(mac("msg_1."+text+"."+body))},
			}
		},
	} {
		v := verifier(t, signature.Config{Scheme: scheme}, "old-secret")
		if err := v.Verify(sign(seconds, seconds), content, now); err != nil {
			t.Errorf("%s: the right time: %v", scheme, err)
		}
		for _, text := range []string{
			"", "+" + seconds, " " + seconds, seconds + " ", seconds + ".0", seconds + "," + seconds, "-1", "0x1", "1e9", "1_0", "a", "١٢٣", "é",
			strings.Repeat("9", 12), "00" + seconds, strings.Repeat("9", 1<<16),
		} {
			if err := v.Verify(sign(text, text), content, now); !errors.Is(err, signature.ErrInvalid) {
				t.Errorf("%s: %.20q: Verify = %v, want ErrInvalid", scheme, text, err)
			}
		}
		for _, lines := range [][]string{nil, {seconds, seconds}, {seconds, "1"}, {"1", seconds}} {
			if err := v.Verify(sign(seconds, lines...), content, now); !errors.Is(err, signature.ErrInvalid) {
				t.Errorf("%s: the times %q: Verify = %v, want ErrInvalid", scheme, lines, err)
			}
		}
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

// A Duration holds 292 years, and the largest time is further away than that.
func TestB101_NoTimeIsTooFarAheadToBeRefused(t *testing.T) {
	t.Parallel()
	forEachScheme(t, func(t *testing.T, cfg signature.Config, timed bool, _ http.Header) {
		if !timed {
			return
		}
		v := verifier(t, cfg, "old-secret")
		for _, seconds := range []int64{0, 1, 9_999_999_999, 99_999_999_999} {
			h := make(http.Header)
			v.Sign(h, content, time.Unix(seconds, 0))
			if err := v.Verify(h, content, now); !errors.Is(err, signature.ErrStale) {
				t.Errorf("signed at %d: Verify = %v, want ErrStale", seconds, err)
			}
		}
	})
}

func TestB98_ALateRetryWithItsFirstSignaturePassesInALongerWindow(t *testing.T) {
	t.Parallel()
	forEachScheme(t, func(t *testing.T, cfg signature.Config, timed bool, signed http.Header) {
		if !timed {
			return
		}
		longer, age := cfg, 10*time.Minute
		longer.MaxAge = &age
		for _, late := range []time.Duration{6 * time.Minute, 7 * time.Minute} {
			if err := verifier(t, cfg, "old-secret").Verify(signed, content, now.Add(late)); !errors.Is(err, signature.ErrStale) {
				t.Errorf("%s later by default: Verify = %v, want ErrStale", late, err)
			}
			if err := verifier(t, longer, "old-secret").Verify(signed, content, now.Add(late)); err != nil {
				t.Errorf("%s later, with max_age %s: %v", late, age, err)
			}
		}
	})
}

func TestMaxFutureOfZeroBelievesNoTimeAhead(t *testing.T) {
	t.Parallel()
	var none time.Duration
	v := verifier(t, signature.Config{Scheme: signature.Slack, MaxFuture: &none}, "old-secret")
	for ahead, want := range map[time.Duration]error{0: nil, time.Second: signature.ErrStale} {
		h := make(http.Header)
		v.Sign(h, content, now.Add(ahead))
		if err := v.Verify(h, content, now); !errors.Is(err, want) {
			t.Errorf("signed %s ahead: Verify = %v, want %v", ahead, err, want)
		}
	}
}

func TestEachStripeLineHasATimeOfItsOwn(t *testing.T) {
	t.Parallel()
	v := verifier(t, signature.Config{Scheme: signature.Stripe}, "old-secret")
	line := func(signed time.Time) string {
		h := make(http.Header)
		v.Sign(h, content, signed)
		return h["Stripe-Signature"][0]
	}
	fresh, old := line(now), line(now.Add(-time.Hour))
	_, freshMAC, _ := strings.Cut(fresh, ",")
	oldTime, _, _ := strings.Cut(old, ",")
	for name, test := range map[string]struct {
		lines []string
		want  error
	}{
		"an old one first":          {[]string{old, fresh}, nil},
		"only old ones":             {[]string{old, old}, signature.ErrStale},
		"the MAC of another line":   {[]string{oldTime + "," + freshMAC}, signature.ErrInvalid},
		"time and MAC in two lines": {[]string{fresh[:strings.Index(fresh, ",")], freshMAC}, signature.ErrInvalid},
		"v0 and an unknown version": {[]string{"v0=abc,v9=def," + fresh}, nil},
		"its MAC as v0":             {[]string{strings.Replace(fresh, "v1=", "v0=", 1)}, signature.ErrInvalid},
	} {
		if err := v.Verify(http.Header{"Stripe-Signature": test.lines}, content, now); !errors.Is(err, test.want) {
			t.Errorf("%s: Verify = %v, want %v", name, err, test.want)
		}
	}
}
