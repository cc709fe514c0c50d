package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/oncegate/oncegate/internal/sqlitedb"
)

// presence shows to other processes that this one lives, by a lock on a file
// of its own, and sees by theirs who does. The kernel drops the lock when the
// process ends, however that happens.
//
// A replica is taken for dead only where that is certain. A look takes the lock
// of a dead one for a moment, so that another look beside it may still find it
// alive.
type presence struct {
	dir     string // of the files, which are named by the ids
	replica string // of this process; empty: it shows nothing and finds nobody dead
	trusted bool   // a lock is seen on every machine that can open the file

	mu   sync.Mutex
	file *os.File // this replica's, locked; nil: it shows none
	left bool     // for good: a heartbeat that comes late shows nothing any more
}

// enter shows that a replica lives, until it leaves.
func enter(ctx context.Context, db *sqlitedb.DB, replica string) (*presence, error) {
	p := &presence{dir: db.Real + "-replicas", replica: replica, trusted: db.Journal == sqlitedb.WAL}
	if replica == "" {
		return p, nil
	}
	if !validReplica(replica) {
		return nil, fmt.Errorf("replica id %q: only a-z, 0-9, - and _ may be in it", replica)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.take(ctx); err != nil {
		return nil, fmt.Errorf("show that replica %s lives: %w", replica, err)
	}
	return p, nil
}

// validReplica reports whether an id can be the name of a file. A dot cannot be
// in it: it ends the id in a token.
func validReplica(id string) bool {
	return id != "" && len(id) <= 128 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-_") == ""
}

func (p *presence) path(replica string) string { return filepath.Join(p.dir, replica) }

// take makes and locks the file of this replica. The caller holds mu.
func (p *presence) take(ctx context.Context) error {
	const pause = 10 * time.Millisecond // somebody may be looking at the file
	for giveUp := time.Now().Add(sqlitedb.BusyTimeout); ; {
		taken, err := p.tryTake()
		if taken || err != nil {
			return err
		}
		if time.Now().After(giveUp) {
			return fmt.Errorf("%s is held by another store that is open; close that one first", p.path(p.replica))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (p *presence) tryTake() (bool, error) {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return false, err
	}
	file, err := os.OpenFile(p.path(p.replica), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, err
	}
	locked, err := lock(file)
	if err != nil && !p.trusted {
		locked, err = true, nil // no locks here; its age says that the replica lives
	}
	// Before it was locked it looked like a dead one's, and may be gone again.
	if !locked || !p.at(file) {
		return false, errors.Join(err, file.Close())
	}
	p.file = file
	return true, nil
}

// at reports whether file is still what stands at the path of its name.
func (p *presence) at(file *os.File) bool {
	open, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(file.Name())
	return err == nil && os.SameFile(open, there)
}

// lock reports whether the file could be locked, without waiting.
func lock(file *os.File) (bool, error) {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// leave takes the file of this replica back.
func (p *presence) leave() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = true
	if p.file == nil {
		return nil
	}
	var err error
	if p.at(p.file) {
		err = os.Remove(p.file.Name())
	}
	err = errors.Join(err, p.file.Close())
	p.file = nil
	return err
}

// dead reports whether the process that runs under a replica id has ended.
func (p *presence) dead(replica string) bool {
	return p.replica != "" && p.trusted && replica != p.replica && validReplica(replica) && !p.lives(replica, 0)
}

// lives reports whether a replica shows itself, and removes the file of one
// that does no more. Where locks cannot be trusted, so does one whose file was
// written within ttl.
func (p *presence) lives(replica string, ttl time.Duration) bool {
	file, err := os.OpenFile(p.path(replica), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		return true // nobody knows
	}
	defer func() { _ = file.Close() }() // nothing was written
	if !p.trusted {
		if info, err := file.Stat(); err != nil || time.Since(info.ModTime()) < ttl {
			return true
		}
	}
	locked, err := lock(file)
	// A locked file that is at its path no more tells nothing of the one that is.
	if err != nil && p.trusted || err == nil && !locked || !p.at(file) {
		return true
	}
	_ = os.Remove(file.Name()) // the next look tries again
	return false
}
