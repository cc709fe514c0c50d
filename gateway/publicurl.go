package gateway

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// checkPublicURL never quotes the URL: it may hold a password.
func checkPublicURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "":
		return errors.New("public_url: is not an http or https URL with a host, as in https://bot.example.com")
	case u.User != nil:
		return errors.New("public_url: holds a user or password")
	case strings.ContainsAny(text, "?#"):
		return errors.New("public_url: has a query or fragment; requests bring their own")
	}
	switch prefix := strings.TrimRight(u.EscapedPath(), "/"); {
	case strings.Contains(prefix, "%") || prefix != "" && path.Clean(prefix) != prefix:
		return errors.New("public_url: has a path that is not written plainly, as /api is: without %, // and dots alone")
	case under(strings.TrimSuffix(hooksPath, "/"), prefix):
		// The request could not tell whether a proxy has taken the path off.
		return errors.New("public_url: has the path of hooks; write only what comes before /hooks")
	}
	return nil
}

// publicParts returns the origin of public_url and the path under which the
// gateway is mounted there, both without a slash at the end.
func (c Config) publicParts() (origin, prefix string) {
	base := strings.TrimRight(c.PublicURL, "/")
	scheme, rest, _ := strings.Cut(base, "://")
	host, below, mounted := strings.Cut(rest, "/")
	if mounted {
		prefix = "/" + below
	}
	return scheme + "://" + host, prefix
}

// LocalURL is where the gateway listens, as its own machine sees it.
func (c Config) LocalURL() string {
	host := c.Host
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, strconv.Itoa(c.Port))
}

// SenderURL returns the URL that the sender of r called, "" without a
// public_url. Its path and query are the bytes that arrived, so that %2F stays
// %2F, behind the prefix that a proxy may have taken off. Nothing that a client
// can write, such as Host or a forwarded header, has a part in it.
func (c Config) SenderURL(r *http.Request) string {
	if c.PublicURL == "" {
		return ""
	}
	origin, prefix := c.publicParts()
	if under(prefix, r.RequestURI) {
		prefix = ""
	}
	return origin + prefix + r.RequestURI
}

// under reports whether uri lies under a prefix.
func under(prefix, uri string) bool {
	rest, ok := strings.CutPrefix(uri, prefix)
	return prefix != "" && ok && (rest == "" || rest[0] == '/' || rest[0] == '?')
}

// routes is a mux whose paths are also reached under the path of public_url,
// for a proxy that leaves it on. Both are patterns of one mux, which prefers the
// longer one: under https://bot.example/api, /api/prove is our own path and not
// a /prove below that prefix. r.RequestURI stays as it was received.
type routes struct {
	*http.ServeMux
	prefix string
}

func (c Config) newRoutes() routes {
	_, prefix := c.publicParts()
	return routes{http.NewServeMux(), prefix}
}

// add registers h for a path with or without a method.
func (rt routes) add(pattern string, h http.Handler) {
	rt.Handle(pattern, h)
	if rt.prefix != "" {
		rt.Handle(strings.Replace(pattern, "/", rt.prefix+"/", 1), http.StripPrefix(rt.prefix, h))
	}
}
