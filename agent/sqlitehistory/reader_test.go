package sqlitehistory_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/sqlitehistory"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
)

// The jobs of a second process, see elsewhere.
const (
	job       = "ONCEGATE_TEST_JOB"
	lookAt    = "look" // at the sessions
	openBound = "open" // as a user who owns nothing
)

func TestMain(m *testing.M) {
	what, path, _ := strings.Cut(os.Getenv(job), " ")
	switch what {
	case lookAt:
		fmt.Print(describe(context.Background(), path))
	case openBound:
		fmt.Print(openAsNobody(context.Background(), path))
	default:
		os.Exit(m.Run())
	}
}

// elsewhere returns what another process says about the file at path.
func elsewhere(t *testing.T, what, path string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), job+"="+what+" "+path)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// describe looks at the file and says what is in it.
func describe(ctx context.Context, path string) string {
	r, err := sqlitehistory.OpenReadOnly(ctx, sqlitehistory.Config{Path: path, TTL: time.Hour})
	if err != nil {
		return err.Error()
	}
	list, more, err := r.List(ctx, 2)
	text := fmt.Sprint("more ", more)
	for _, s := range list {
		_, rows, err := r.Show(ctx, s.ID)
		text += fmt.Sprintf("; %s: %d turns", s.ID, s.Turns)
		for _, row := range rows {
			text += ", " + row.Text
		}
		if err != nil {
			text += err.Error()
		}
	}
	if err := errors.Join(err, r.Close()); err != nil {
		text += err.Error()
	}
	return text
}

// files lists a directory with sizes and times of change.
func files(t *testing.T, path string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprint(e.Name(), " ", info.Size(), " ", info.ModTime()))
	}
	return list
}

func TestLookBesideAnOpenWriter(t *testing.T) {
	t.Parallel()
	cfg := config(t, tempPath(t))
	h := mustOpen(t, cfg)
	mustBegin(t, h, "begun", 1)
	mustAppend(t, h, "one", 1, "m-1")
	mustAppend(t, h, "two", 1, "m-1", "m-2")
	before := files(t, cfg.Path)
	const want = "more true; two: 2 turns, asks m-1, answers m-1, asks m-2, answers m-2; one: 1 turns, asks m-1, answers m-1"
	if got := elsewhere(t, lookAt, cfg.Path); got != want {
		t.Errorf("another process sees %q, want %q", got, want)
	}
	if after := files(t, cfg.Path); !slices.Equal(after, before) {
		t.Errorf("files after = %q, before = %q", after, before)
	}
	mustAppend(t, h, "two", 1, "m-3")
	if got := elsewhere(t, lookAt, cfg.Path); !strings.Contains(got, "answers m-3") {
		t.Errorf("another process sees %q, want what was appended too", got)
	}
}

func TestLookAtAClosedFile(t *testing.T) {
	t.Parallel()
	clock := idempotencytest.NewClock()
	cfg := config(t, tempPath(t))
	cfg.Now = clock.Now
	h, err := sqlitehistory.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, h, "s", 1, "m-1")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	before := files(t, cfg.Path)
	r, err := sqlitehistory.OpenReadOnly(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if s, rows, err := r.Show(t.Context(), "s"); err != nil || s.Turns != 1 || len(rows) != 2 || rows[1].Text != "answers m-1" {
		t.Errorf("Show = %+v, %+v, %v", s, rows, err)
	}
	clock.Advance(cfg.TTL)
	if _, _, err := r.Show(t.Context(), "s"); !errors.Is(err, agent.ErrNoSession) {
		t.Errorf("Show of a session whose time is over = %v, want ErrNoSession", err)
	}
	if list, _, err := r.List(t.Context(), 1); len(list) != 0 || err != nil {
		t.Errorf("List = %+v, %v; want nothing", list, err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if after := files(t, cfg.Path); !slices.Equal(after, before) {
		t.Errorf("files after = %q, before = %q", after, before)
	}
}

func TestNothingToLookAt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.db")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, path, want string }{
		{"an absent file is not made", filepath.Join(dir, "absent.db"), "does not exist"},
		{"an empty file is not filled", empty, "no tables yet"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := files(t, empty)
			r, err := sqlitehistory.OpenReadOnly(t.Context(), config(t, test.path))
			if err == nil {
				_ = r.Close()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), test.path) {
				t.Errorf("OpenReadOnly = %v, want it to name the file and say %q", err, test.want)
			}
			if after := files(t, empty); !slices.Equal(after, before) {
				t.Errorf("files after = %q, before = %q", after, before)
			}
		})
	}
}
