package config

import (
	"errors"
	"fmt"
	"strings"
)

// expand replaces the references in text and reports whether there was one.
// It reads from left to right and never looks at what it has put in.
func expand(text string, env Env) (out string, expanded bool, err error) {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(text, "${")
		body, after, closed := strings.Cut(rest, "}")
		switch {
		case !ok:
			b.WriteString(text)
			return b.String(), expanded, nil
		case strings.HasSuffix(before, "$"): // $${
			b.WriteString(before + "{")
			text = rest
			continue
		case !closed || body == "":
			b.WriteString(before + "${")
			text = rest
			continue
		}
		value, err := lookup(body, env)
		if err != nil {
			return "", false, err
		}
		b.WriteString(before + value)
		text, expanded = after, true
	}
}

// lookup returns the value of NAME or NAME:-default. Its errors show no more
// than the name: what looks like a reference may be part of a password.
func lookup(body string, env Env) (string, error) {
	name, fallback, optional := strings.Cut(body, ":-")
	if !isName(name) || strings.Contains(fallback, "${") {
		return "", errors.New("has a ${…} that is neither ${NAME} nor ${NAME:-default}; write $${ for a literal ${")
	}
	value, ok := env(name)
	switch {
	case optional && value == "":
		return fallback, nil
	case !ok:
		return "", fmt.Errorf("environment variable %s is not set; set it, or write ${%[1]s:-default}", name)
	}
	return value, nil
}

func isName(s string) bool {
	for i, c := range s {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
