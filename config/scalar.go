package config

import (
	"errors"
	"math"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/oncegate/oncegate/internal/bytesize"
	"github.com/oncegate/oncegate/internal/secret"
)

// isScalar reports whether a setting of type t is a single value.
func isScalar(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		return t == reflect.TypeFor[secret.String]() || t == reflect.TypeFor[netip.Prefix]()
	case reflect.Map, reflect.Slice, reflect.Pointer:
		return false
	}
	return true
}

// bindScalar sets a single value from the text of n. A problem with it quotes
// the file but never what the environment put in, which may be a secret.
func (b *binder) bindScalar(path string, n *yaml.Node, out reflect.Value) {
	switch {
	case n.Kind != yaml.ScalarNode:
		b.add(path, "is %s; must be a single value", kindName(n))
		return
	case isNull(n):
		b.add(path, "has no value; give it one, or leave it out")
		return
	}
	text, expanded, err := expand(n.Value, b.env)
	if err != nil {
		b.add(path, "%s", err)
		return
	}
	if err := set(out, text, isPlain(n) || expanded); err != nil {
		subject := strconv.Quote(n.Value)
		if expanded {
			subject = "the value of " + subject
		}
		b.add(path, "%s %s", subject, err)
	}
}

// set stores text in out, whose type says how to read it. Quotes make a text
// of a number or a boolean; durations and sizes are texts anyway. An error
// continues a sentence about the value.
func set(out reflect.Value, text string, plain bool) error {
	var err error
	switch p := out.Addr().Interface().(type) {
	case *secret.String:
		*p = secret.New(text)
		return nil
	case *time.Duration:
		*p, err = parseDuration(text)
		return err
	case *netip.Prefix:
		*p, err = parsePrefix(text)
		return err
	case *bytesize.Size:
		if *p, err = bytesize.Parse(text); err != nil {
			return errors.New("is not a size; write 64KiB, 1MiB or plain bytes")
		}
		return nil
	}
	switch out.Kind() {
	case reflect.String:
		out.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return errors.New("is not true or false")
		}
		if !plain {
			return errors.New("is quoted, which makes it a text; write it without quotes")
		}
		out.SetBool(text == "true")
	case reflect.Int:
		i, err := strconv.Atoi(text)
		// Other spellings mean different numbers to different readers: 0123, 0x1F, 1_000.
		if err != nil || strconv.Itoa(i) != text {
			return errors.New("is not a whole number in decimal digits")
		}
		if !plain {
			return errors.New("is quoted, which makes it a text; write it without quotes")
		}
		out.SetInt(int64(i))
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) || strings.ContainsAny(text, "_xXpP") {
			return errors.New("is not a number, as in 0.7")
		}
		if !plain {
			return errors.New("is quoted, which makes it a text; write it without quotes")
		}
		out.SetFloat(f)
	default:
		panic("config: no way to read a " + out.Type().String())
	}
	return nil
}

// parsePrefix reads a CIDR, or an address that stands for itself.
func parsePrefix(text string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(text); err == nil {
		return address.Unmap().Prefix(address.Unmap().BitLen())
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return p, errors.New("is neither an address nor a CIDR; write 10.0.0.0/8 or 192.0.2.7")
	case p.Addr().Is4In6():
		return p, errors.New("is an IPv4 network written as IPv6; write 10.0.0.0/8")
	case p != p.Masked():
		return p, errors.New("is an address inside a network; write the network, as in 10.0.0.0/8, or the address alone")
	}
	return p, nil
}

// isPlain reports whether a scalar is written without quotes.
func isPlain(n *yaml.Node) bool { return n.Style == 0 }

// looksRounded reports whether an id is written like a floating-point number:
// some program has passed it through one, and its last digits are gone.
func looksRounded(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && isPlain(n) && n.ShortTag() == "!!float" && strings.ContainsAny(n.Value, ".eE")
}

// parseDuration reads 900s, 15m, 1h30m, 7d, or plain seconds.
func parseDuration(text string) (time.Duration, error) {
	malformed := errors.New("is not a duration; write 900s, 15m, 24h, 7d or whole seconds")
	if rest, ok := strings.CutPrefix(text, "-"); ok {
		if _, err := parseDuration(rest); err == nil {
			return 0, errors.New("is a negative duration")
		}
		return 0, malformed
	}
	if seconds, err := strconv.ParseUint(text, 10, 64); err == nil {
		return multiply(seconds, time.Second)
	}
	var days time.Duration
	if number, rest, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return 0, malformed
		}
		if days, err = multiply(n, 24*time.Hour); err != nil || rest == "" {
			return days, err
		}
		text = rest
	}
	d, err := time.ParseDuration(text)
	if err != nil || strings.HasPrefix(text, "+") || strings.HasPrefix(text, "-") {
		return 0, malformed
	}
	if d > math.MaxInt64-days {
		return 0, errors.New("is too long")
	}
	return days + d, nil
}

func multiply(n uint64, unit time.Duration) (time.Duration, error) {
	if n > uint64(math.MaxInt64/unit) {
		return 0, errors.New("is too long")
	}
	return time.Duration(n) * unit, nil
}

// formatDuration is the inverse: the text without the zero minutes and seconds
// that Duration.String adds.
func formatDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
