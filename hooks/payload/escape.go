package payload

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// appendUnescaped appends the characters that the inside of a JSON string
// stands for. Half of a surrogate pair is written as the three bytes that
// UTF-8 would have for it: not valid text, but not equal to any other either.
func appendUnescaped(dst, inner []byte) []byte {
	for {
		i := bytes.IndexByte(inner, '\\')
		if i < 0 {
			return append(dst, inner...)
		}
		dst = append(dst, inner[:i]...)
		c := inner[i+1]
		inner = inner[i+2:]
		switch c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			dst, inner = appendHexRune(dst, inner)
		default: // " \ /
			dst = append(dst, c)
		}
	}
}

// appendHexRune appends the character whose four hex digits inner begins
// with, joined with the other half of a pair if that follows.
func appendHexRune(dst, inner []byte) (grown, rest []byte) {
	r, rest := hexRune(inner), inner[4:]
	if !utf16.IsSurrogate(r) {
		return utf8.AppendRune(dst, r), rest
	}
	if len(rest) >= 6 && rest[0] == '\\' && rest[1] == 'u' {
		if pair := utf16.DecodeRune(r, hexRune(rest[2:])); pair != utf8.RuneError {
			return utf8.AppendRune(dst, pair), rest[6:]
		}
	}
	return append(dst, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0x3F, 0x80|byte(r)&0x3F), rest
}

// hexRune reads the four hex digits that p begins with.
func hexRune(p []byte) rune {
	var r rune
	for _, c := range p[:4] {
		switch {
		case c >= 'a':
			c -= 'a' - 10
		case c >= 'A':
			c -= 'A' - 10
		default:
			c -= '0'
		}
		r = r<<4 | rune(c)
	}
	return r
}
