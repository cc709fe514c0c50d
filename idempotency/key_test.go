package idempotency_test

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

func TestEncodeKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key  message.Key
		want idempotency.Key
	}{
		{message.Key{Platform: "telegram", Account: "7001", Channel: "-100", ID: "42"}, "telegram:7001:-100:42"},
		{message.Key{}, ":::"},
		{message.Key{Platform: "hook", Channel: "a:b", ID: "c d"}, "hook::a%3Ab:c%20d"},
		{message.Key{ID: "%é{}|\x00"}, ":::%25%C3%A9%7B%7D%7C%00"},
	} {
		if got := idempotency.EncodeKey(c.key); got != c.want {
			t.Errorf("EncodeKey(%q) = %q, want %q", c.key, got, c.want)
		}
	}
}

func TestEncodeKeyLength(t *testing.T) {
	t.Parallel()
	fits := idempotency.EncodeKey(message.Key{ID: strings.Repeat("a", idempotency.MaxKeyLen-3)})
	if len(fits) != idempotency.MaxKeyLen || !strings.HasPrefix(string(fits), ":::a") {
		t.Errorf("a key of exactly %d bytes was changed to %d bytes", idempotency.MaxKeyLen, len(fits))
	}
	a := idempotency.EncodeKey(message.Key{ID: strings.Repeat("a", 600)})
	b := idempotency.EncodeKey(message.Key{ID: strings.Repeat("a", 601)})
	if !strings.HasPrefix(string(a), "sha256:") || len(a) != len("sha256:")+64 || a == b {
		t.Errorf("long keys became %q and %q, want two hashes", a, b)
	}
}

func TestB51KeysWithSeparatorsStayApart(t *testing.T) {
	t.Parallel()
	seen := map[idempotency.Key]message.Key{}
	for _, k := range []message.Key{
		{Channel: "a:b", ID: "c"},
		{Channel: "a", ID: "b:c"},
		{Channel: "a", ID: ""},
		{Channel: "", ID: "a"},
		{Account: "a", Channel: ""},
		{Channel: "a|b", ID: "c"},
		{Channel: "a", ID: "b|c"},
		{Channel: "a%3Ab", ID: "c"},
		{Channel: "a\x00b", ID: "c"},
		{Channel: "a", ID: "\x00b"},
		{Channel: "{}", ID: "c"},
		{Channel: "{", ID: "}c"},
	} {
		enc := idempotency.EncodeKey(k)
		if other, taken := seen[enc]; taken {
			t.Errorf("%q and %q share the key %q", k, other, enc)
		}
		seen[enc] = k
	}
}

// FuzzEncodeKey decodes what EncodeKey made: if the parts come back, no two
// keys share an encoding.
func FuzzEncodeKey(f *testing.F) {
	f.Add("hook", "", "a:b", "c")
	f.Add("", "%", "{}", "\x00|é")
	f.Fuzz(func(t *testing.T, platform, account, channel, id string) {
		k := message.Key{Platform: platform, Account: account, Channel: channel, ID: id}
		enc := string(idempotency.EncodeKey(k))
		if len(enc) > idempotency.MaxKeyLen {
			t.Fatalf("%d bytes, want at most %d", len(enc), idempotency.MaxKeyLen)
		}
		if strings.ContainsFunc(enc, func(r rune) bool { return r <= ' ' || r > '~' || r == '{' || r == '}' }) {
			t.Fatalf("%q holds more than printable ASCII without braces", enc)
		}
		if strings.HasPrefix(enc, "sha256:") && strings.Count(enc, ":") == 1 {
			return
		}
		parts := strings.Split(enc, ":")
		if len(parts) != 4 {
			t.Fatalf("%q has %d parts", enc, len(parts))
		}
		for i, want := range []string{platform, account, channel, id} {
			if got := unescape(t, parts[i]); got != want {
				t.Fatalf("part %d of %q reads %q, want %q", i, enc, got, want)
			}
		}
	})
}

func unescape(t *testing.T, part string) string {
	t.Helper()
	var out []byte
	for i := 0; i < len(part); i++ {
		if part[i] != '%' {
			out = append(out, part[i])
			continue
		}
		const digits = "0123456789ABCDEF"
		hi, lo := strings.IndexByte(digits, part[i+1]), strings.IndexByte(digits, part[i+2])
		if hi < 0 || lo < 0 {
			t.Fatalf("%q has a bad escape", part)
		}
		out = append(out, byte(hi<<4|lo))
		i += 2
	}
	return string(out)
}

func TestNewTokenIsNewForEveryAttempt(t *testing.T) {
	t.Parallel()
	replica := idempotency.NewReplicaID()
	if replica == idempotency.NewReplicaID() {
		t.Error("two process starts share a replica id")
	}
	a, b := idempotency.NewToken(replica), idempotency.NewToken(replica)
	if a == b || !strings.HasPrefix(a, replica+".") {
		t.Errorf("tokens %q and %q of replica %q", a, b, replica)
	}
}
