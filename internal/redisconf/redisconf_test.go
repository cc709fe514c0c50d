package redisconf_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/secret"
)

func TestB69_URLAndFieldsSayTheSame(t *testing.T) {
	t.Parallel()
	for _, password := range []string{"", "p@ss", "a/b", "a#b?c", "a%zz", "a:b", `"`, "é 🙂"} {
		for _, user := range []string{"", "gw", "a:b@c"} {
			fields := redisconf.Config{Host: "redis.test", Port: 6380, DB: 3, Username: user, Password: secret.New(password), Prefix: "p:"}
			u := url.URL{Scheme: "redis", User: url.UserPassword(user, password), Host: "redis.test:6380", Path: "/3"}
			byURL := redisconf.Config{URL: secret.New(u.String()), Prefix: "p:"}
			for _, c := range []redisconf.Config{fields, byURL} {
				if err := c.Validate(); err != nil {
					t.Errorf("user %q, password %q: %v", user, password, err)
				}
			}
			a, err := fields.Address()
			b, berr := byURL.Address()
			if a != b || err != nil || berr != nil {
				t.Errorf("user %q, password %q: fields say %+v, %v; the URL says %+v, %v", user, password, a, err, b, berr)
			}
			if a.Password.Reveal() != password || a.Username != user {
				t.Errorf("fields changed user %q or password %q", user, password)
			}
		}
	}
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cfg  redisconf.Config
		want redisconf.Address
	}{
		{redisconf.Config{Host: "h"}, redisconf.Address{Host: "h", Port: 6379}},
		{redisconf.Config{Host: "/run/redis.sock", DB: 2}, redisconf.Address{Host: "/run/redis.sock", DB: 2}},
		{redisconf.Config{Host: "h", TLS: &redisconf.TLS{}}, redisconf.Address{Host: "h", Port: 6379, TLS: true}},
		{redisconf.Config{Sentinel: &redisconf.Sentinel{}, DB: 3, Username: "gw", TLS: &redisconf.TLS{}}, redisconf.Address{DB: 3, Username: "gw", TLS: true}},
		{redisconf.Config{Cluster: &redisconf.Cluster{}, Password: secret.New("pw")}, redisconf.Address{Password: secret.New("pw")}},
		{redisconf.Config{URL: secret.New("redis://localhost:6379")}, redisconf.Address{Host: "localhost", Port: 6379}},
		{redisconf.Config{URL: secret.New("redis://h")}, redisconf.Address{Host: "h", Port: 6379}},
		{redisconf.Config{URL: secret.New("redis://h/")}, redisconf.Address{Host: "h", Port: 6379}},
		{redisconf.Config{URL: secret.New("redis://h/3")}, redisconf.Address{Host: "h", Port: 6379, DB: 3}},
		{redisconf.Config{URL: secret.New("redis://h?db=3")}, redisconf.Address{Host: "h", Port: 6379, DB: 3}},
		{redisconf.Config{URL: secret.New("redis://[::1]:7000")}, redisconf.Address{Host: "::1", Port: 7000}},
		{redisconf.Config{URL: secret.New("rediss://h")}, redisconf.Address{Host: "h", Port: 6379, TLS: true}},
		{redisconf.Config{URL: secret.New("redis://h"), TLS: &redisconf.TLS{}}, redisconf.Address{Host: "h", Port: 6379, TLS: true}},
		{redisconf.Config{URL: secret.New("redis://gw:pw@h")}, redisconf.Address{Host: "h", Port: 6379, Username: "gw", Password: secret.New("pw")}},
		{redisconf.Config{URL: secret.New("unix:///run/redis.sock?db=2")}, redisconf.Address{Host: "/run/redis.sock", DB: 2}},
		{redisconf.Config{URL: secret.New("unix://gw:pw@/run/redis.sock")}, redisconf.Address{Host: "/run/redis.sock", Username: "gw", Password: secret.New("pw")}},
	} {
		if got, err := c.cfg.Address(); got != c.want || err != nil {
			t.Errorf("Address of %q %+v = %+v, %v; want %+v", c.cfg.URL.Reveal(), c.cfg, got, err, c.want)
		}
	}
}

func TestB69_ABadURLIsRefusedWithAdviceAndWithoutThePassword(t *testing.T) {
	t.Parallel()
	const password = "hunter2"
	for _, c := range []struct{ url, advice string }{
		{"redis://gw:" + password + "/x@h:6379", "percent-encode"},
		{"redis://gw:" + password + "#x@h", "percent-encode"},
		{"redis://gw:" + password + "?x@h", "percent-encode"},
		{"redis://gw:" + password + "%zz@h", "percent-encode"},
		{"redis://gw:" + password + "@h:6379/x", "percent-encode"},
		{"redis://gw:" + password + "@h:6379/-1", "database number"},
		{"redis://gw:" + password + "@h:6379/3?db=4&x=1", "percent-encode"},
		{"redis://gw:" + password + "@h:99999", "port"},
		{"redis://gw:" + password + "@", "host"},
		{"redis://gw:" + password + "@h#", "percent-encode"},
		{"http://gw:" + password + "@h", "redis://"},
		{"gw:" + password + "@h", "redis://"},
		{"unix://gw:" + password + "@run/redis.sock", "absolute path"},
		{" redis://gw:" + password + "@h", "URL"},
	} {
		cfg := redisconf.Config{URL: secret.New(c.url), Prefix: "p:"}
		_, err := cfg.Address()
		for what, err := range map[string]error{"Validate": cfg.Validate(), "Address": err} {
			if err == nil || !strings.Contains(err.Error(), c.advice) || strings.Contains(err.Error(), password) {
				t.Errorf("%s of %q = %v; want an error with %q and without the password", what, c.url, err, c.advice)
			}
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	sentinel := &redisconf.Sentinel{Master: "main", Addrs: []string{"s1:26379", "[::1]:26379"}}
	cluster := &redisconf.Cluster{Addrs: []string{"c1:6379"}}
	for _, c := range []struct {
		cfg  redisconf.Config
		want string // begins the error; empty: none
	}{
		{redisconf.DefaultConfig(), ""},
		{redisconf.Config{Host: "h", Prefix: "{gw}:"}, ""},
		{redisconf.Config{Host: "h", URL: secret.New("redis://h"), Prefix: "p:"}, "url: cannot be combined"},
		{redisconf.Config{Password: secret.New("pw"), URL: secret.New("redis://h"), Prefix: "p:"}, "url: cannot be combined"},
		{redisconf.Config{Port: 6379, Prefix: "p:"}, "host: is missing"},
		{redisconf.Config{Host: "h", Port: 65536, Prefix: "p:"}, "port: 65536"},
		{redisconf.Config{Host: "h", DB: -1, Prefix: "p:"}, "db: -1"},
		{redisconf.Config{Host: "h"}, "prefix: must not be empty"},
		{redisconf.Config{Host: "h", Prefix: "a b"}, "prefix: "},
		{redisconf.Config{Host: "h", Prefix: "a*"}, "prefix: "},
		{redisconf.Config{Host: "h", Prefix: "é"}, "prefix: "},
		{redisconf.Config{Sentinel: sentinel, DB: 3, Username: "gw", Password: secret.New("pw"), TLS: &redisconf.TLS{}, Prefix: "p:"}, ""},
		{redisconf.Config{Cluster: cluster, Username: "gw", Password: secret.New("pw"), TLS: &redisconf.TLS{}, Prefix: "{p}:"}, ""},
		{redisconf.Config{Sentinel: sentinel, URL: secret.New("redis://h"), Prefix: "p:"}, "sentinel: cannot be combined with url"},
		{redisconf.Config{Sentinel: sentinel, Host: "h", Prefix: "p:"}, "sentinel: cannot be combined with url, host"},
		{redisconf.Config{Sentinel: sentinel, Port: 6379, Prefix: "p:"}, "sentinel: cannot be combined with url, host or port"},
		{redisconf.Config{Cluster: cluster, URL: secret.New("redis://h"), Prefix: "{p}:"}, "cluster: cannot be combined with url"},
		{redisconf.Config{Cluster: cluster, Host: "h", Prefix: "{p}:"}, "cluster: cannot be combined with url, host"},
		{redisconf.Config{Cluster: cluster, Sentinel: sentinel, Prefix: "{p}:"}, "cluster: cannot be combined with url, host, port or sentinel"},
		{redisconf.Config{Cluster: cluster, DB: 3, Prefix: "{p}:"}, "db: cannot be combined with cluster"},
		{redisconf.Config{Sentinel: &redisconf.Sentinel{Addrs: sentinel.Addrs}, Prefix: "p:"}, "sentinel.master: is missing"},
		{redisconf.Config{Sentinel: &redisconf.Sentinel{Master: "main"}, Prefix: "p:"}, "sentinel.addrs: must name at least one"},
		{redisconf.Config{Cluster: &redisconf.Cluster{}, Prefix: "{p}:"}, "cluster.addrs: must name at least one"},
		{redisconf.Config{Cluster: cluster, Prefix: "p:"}, "prefix: needs a hash tag"},
		{redisconf.Config{Cluster: cluster, Prefix: "p}{:"}, "prefix: needs a hash tag"},
		{redisconf.Config{Cluster: cluster, Prefix: "{}{p}:"}, "prefix: needs a hash tag"},
		{redisconf.Config{Cluster: cluster, Prefix: "a}{{p}:"}, ""},
	} {
		err := c.cfg.Validate()
		if ok := err == nil && c.want == "" || err != nil && c.want != "" && strings.HasPrefix(err.Error(), c.want); !ok {
			t.Errorf("Validate(%+v) = %v, want %q", c.cfg, err, c.want)
		}
	}
	all := redisconf.Config{Port: -1, DB: -1}.Validate()
	for _, key := range []string{"host: ", "port: ", "db: ", "prefix: "} {
		if !strings.Contains(fmt.Sprint("\n", all), "\n"+key) {
			t.Errorf("Validate = %v, want every problem at once, %q too", all, key)
		}
	}
}

func TestAddrsAreHostAndPort(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"", "c1", "c1:", ":6379", "c1:0", "c1:65536", "c1:redis", "::1:6379", "redis://:hunter2@c1:6379", "gw:hunter2@c1:6379", "/run/redis.sock"} {
		addrs := []string{"c1:6379", addr}
		for key, c := range map[string]redisconf.Config{
			"cluster":  {Cluster: &redisconf.Cluster{Addrs: addrs}, Prefix: "{p}:"},
			"sentinel": {Sentinel: &redisconf.Sentinel{Master: "main", Addrs: addrs}, Prefix: "p:"},
		} {
			err := c.Validate()
			if err == nil || !strings.HasPrefix(err.Error(), key+".addrs[1]: is not host:port, as in ") || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s with %q: %v, want that it is not host:port, without it", key, addr, err)
			}
		}
	}
}

func TestConfigured(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cfg  redisconf.Config
		want bool
	}{
		{redisconf.DefaultConfig(), false},
		{redisconf.Config{Port: 6379}, false},
		{redisconf.Config{URL: secret.New("redis://h")}, true},
		{redisconf.Config{Host: "h"}, true},
		{redisconf.Config{Sentinel: &redisconf.Sentinel{}}, true},
		{redisconf.Config{Cluster: &redisconf.Cluster{}}, true},
	} {
		if got := c.cfg.Configured(); got != c.want {
			t.Errorf("Configured of %+v = %t", c.cfg, got)
		}
	}
}

func TestAConfigPrintsNoSecret(t *testing.T) {
	t.Parallel()
	c := redisconf.Config{URL: secret.New("redis://:hunter2@h"), Password: secret.New("hunter2")}
	a, err := redisconf.Config{Host: "h", Password: secret.New("hunter2")}.Address()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprintf("%v %+v %#v", c, c, c), fmt.Sprintf("%v %+v %#v", a, a, a)} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("printed %s", text)
		}
	}
}
