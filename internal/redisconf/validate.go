package redisconf

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Validate returns every problem, joined; each begins with the key's name. No
// message repeats an address, a URL or a password.
func (c Config) Validate() error {
	errs := append(c.server(), c.database()...)
	if c.Sentinel != nil {
		if c.Sentinel.Master == "" {
			errs = append(errs, errors.New("sentinel.master: is missing; it is the name after \"sentinel monitor\" in sentinel.conf"))
		}
		errs = append(errs, addresses("sentinel.addrs", c.Sentinel.Addrs, "s1:26379")...)
	}
	if c.Cluster != nil {
		errs = append(errs, addresses("cluster.addrs", c.Cluster.Addrs, "c1:6379")...)
	}
	return errors.Join(append(errs, c.prefix()...)...)
}

// server finds what is wrong with the way in which the server is named.
func (c Config) server() (errs []error) {
	byURL, byHost := !c.URL.IsEmpty(), c.Host != "" || c.Port != 0
	if byURL {
		if byHost || c.DB != 0 || c.Username != "" || !c.Password.IsEmpty() {
			errs = append(errs, errors.New("url: cannot be combined with host, port, db, username or password; use one or the other"))
		}
		if _, err := parseURL(c.URL.Reveal()); err != nil {
			errs = append(errs, fmt.Errorf("url: %w", err))
		}
	}
	if c.Sentinel != nil && (byURL || byHost) {
		errs = append(errs, errors.New("sentinel: cannot be combined with url, host or port; remove those, or this section"))
	}
	if c.Cluster != nil && (byURL || byHost || c.Sentinel != nil) {
		errs = append(errs, errors.New("cluster: cannot be combined with url, host, port or sentinel; remove those, or this section"))
	}
	if !c.Configured() && (c.Port != 0 || c.DB != 0 || c.Username != "" || !c.Password.IsEmpty()) {
		errs = append(errs, errors.New("host: is missing beside the other fields"))
	}
	if c.Port < 0 || c.Port > 65535 {
		errs = append(errs, fmt.Errorf("port: %d is not between 1 and 65535", c.Port))
	}
	return errs
}

func (c Config) database() (errs []error) {
	if c.DB < 0 {
		errs = append(errs, fmt.Errorf("db: %d is negative", c.DB))
	}
	if c.DB > 0 && c.Cluster != nil {
		errs = append(errs, errors.New("db: cannot be combined with cluster, which has one database; remove it, the prefix keeps environments apart"))
	}
	return errs
}

func (c Config) prefix() (errs []error) {
	switch {
	case c.Prefix == "":
		errs = append(errs, errors.New("prefix: must not be empty; it keeps environments on one server apart"))
	case strings.ContainsFunc(c.Prefix, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("*?[]\\", r) }):
		errs = append(errs, fmt.Errorf("prefix: %q must be printable ASCII without spaces and without * ? [ ] \\", c.Prefix))
	case c.Cluster != nil && !hasHashTag(c.Prefix):
		errs = append(errs, errors.New(`prefix: needs a hash tag with cluster, such as "{gateway}:", so that all keys are on one node`))
	}
	return errs
}

// hasHashTag reports whether a cluster places every key that begins with prefix
// by the same text: what is between the first { and the next }, unless empty.
func hasHashTag(prefix string) bool {
	_, rest, _ := strings.Cut(prefix, "{")
	tag, _, closed := strings.Cut(rest, "}")
	return closed && tag != ""
}

// addresses checks the list at key. What is no address is not repeated: it may
// be a URL with a password.
func addresses(key string, addrs []string, example string) (errs []error) {
	if len(addrs) == 0 {
		errs = append(errs, fmt.Errorf("%s: must name at least one server, as in [%q]", key, example))
	}
	for i, addr := range addrs {
		host, text, err := net.SplitHostPort(addr)
		port, perr := strconv.Atoi(text)
		if err != nil || perr != nil || host == "" || strings.ContainsAny(host, "/@") || port < 1 || port > 65535 {
			errs = append(errs, fmt.Errorf("%s[%d]: is not host:port, as in %s", key, i, example))
		}
	}
	return errs
}
