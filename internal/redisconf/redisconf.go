// Package redisconf is the section gateway.push.redis of gateway.yaml: plain
// data without a driver, so that reading a configuration links none.
package redisconf

import (
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/internal/secret"
)

// DefaultPrefix begins every key unless the configuration says otherwise.
const DefaultPrefix = "gateway:"

// Config says how to reach Redis, in exactly one way: by URL, which says all,
// or by Host, Sentinel or Cluster. TLS and Prefix go with each.
type Config struct {
	URL      secret.String `yaml:"url,omitempty"` // redis:// or rediss://; a secret, since it can carry a password
	Host     string        `yaml:"host,omitempty"`
	Port     int           `yaml:"port,omitempty"` // of Host
	Sentinel *Sentinel     `yaml:"sentinel,omitempty"`
	Cluster  *Cluster      `yaml:"cluster,omitempty"`
	DB       int           `yaml:"db,omitempty"`
	Username string        `yaml:"username,omitempty"`
	Password secret.String `yaml:"password,omitempty"` // taken literally, nothing needs escaping
	TLS      *TLS          `yaml:"tls,omitempty"`
	Prefix   string        `yaml:"prefix"` // names the environment; begins every key
}

// Sentinel names a primary by those who watch it and know where it is.
type Sentinel struct {
	Master string   `yaml:"master,omitempty"` // what the Sentinels call the primary
	Addrs  []string `yaml:"addrs,omitempty"`  // host:port of the Sentinels; one that answers is enough
}

// Cluster names a Redis Cluster by some of its nodes.
type Cluster struct {
	Addrs []string `yaml:"addrs,omitempty"` // host:port; one that answers is enough to learn of the others
}

// TLS turns on an encrypted connection, as rediss:// does.
type TLS struct {
	CAFile     string `yaml:"ca_file,omitempty"`     // PEM; default: the system's authorities
	ServerName string `yaml:"server_name,omitempty"` // default: the host that is dialled
}

// DefaultConfig returns a section without a server.
func DefaultConfig() Config { return Config{Prefix: DefaultPrefix} }

// Configured reports whether a server is named.
func (c Config) Configured() bool {
	return !c.URL.IsEmpty() || c.Host != "" || c.Sentinel != nil || c.Cluster != nil
}

// Address is where and as whom to connect.
type Address struct {
	Host     string // host name, IP address, or the absolute path of a unix socket; empty with Sentinel and Cluster
	Port     int    // 0 for a unix socket
	DB       int
	Username string
	Password secret.String
	TLS      bool
}

// Address returns what a valid, configured section says, the same for the URL
// and for the fields. Where Sentinel or Cluster is set, the servers are there.
func (c Config) Address() (Address, error) {
	if !c.URL.IsEmpty() {
		a, err := parseURL(c.URL.Reveal())
		a.TLS = a.TLS || c.TLS != nil
		return a, err
	}
	a := Address{Host: c.Host, Port: c.Port, DB: c.DB, Username: c.Username, Password: c.Password, TLS: c.TLS != nil}
	if a.Port == 0 && a.Host != "" && !strings.HasPrefix(a.Host, "/") {
		a.Port = 6379
	}
	return a, nil
}

const encodingHint = "; percent-encode special characters in its user and password (@ is %40, / is %2F, : is %3A, # is %23, ? is %3F, % is %25), or use the fields host, username, password, which are taken literally"

// parseURL reads redis://, rediss:// and unix:// URLs. Its errors never repeat
// the text, which may hold a password.
func parseURL(text string) (Address, error) {
	u, err := url.Parse(text)
	if err != nil {
		return Address{}, errors.New("cannot be read as a URL" + encodingHint)
	}
	if !slices.Contains([]string{"redis", "rediss", "unix"}, u.Scheme) {
		return Address{}, errors.New("must begin with redis://, rediss:// or unix://")
	}
	a := Address{TLS: u.Scheme == "rediss", Username: u.User.Username()}
	if pw, ok := u.User.Password(); ok {
		a.Password = secret.New(pw)
	}
	if u.Fragment != "" || strings.HasSuffix(text, "#") {
		return Address{}, errors.New("has a # part" + encodingHint)
	}
	if u.Scheme == "unix" {
		if u.Host != "" || !strings.HasPrefix(u.Path, "/") {
			return Address{}, errors.New("with unix:// must name an absolute path, as in unix:///run/redis.sock")
		}
		a.Host = u.Path
		err := queryDB(u, &a)
		return a, err
	}
	if u.Hostname() == "" {
		return Address{}, errors.New("names no host" + encodingHint)
	}
	a.Host, a.Port = u.Hostname(), 6379
	if p := u.Port(); p != "" {
		n, err := strconv.Atoi(p)
		if err != nil || n < 1 || n > 65535 {
			return Address{}, errors.New("has a port that is not between 1 and 65535")
		}
		a.Port = n
	}
	if path := strings.Trim(u.Path, "/"); path != "" {
		n, err := strconv.Atoi(path)
		if err != nil || n < 0 {
			return Address{}, errors.New("has a path that is no database number, as in redis://host:6379/3" + encodingHint)
		}
		a.DB = n
	}
	err = queryDB(u, &a)
	return a, err
}

// queryDB takes the database number from ?db=, the only parameter there is.
func queryDB(u *url.URL, a *Address) error {
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return errors.New("has an unreadable ? part" + encodingHint)
	}
	for name, v := range values {
		n, err := strconv.Atoi(v[0])
		if name != "db" || len(v) > 1 || err != nil || n < 0 {
			return errors.New("has a ? part; the only parameter is db, a database number" + encodingHint)
		}
		a.DB = n
	}
	return nil
}
