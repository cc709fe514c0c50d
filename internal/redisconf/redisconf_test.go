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
