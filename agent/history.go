package agent

import (
	"context"
	"errors"
	"time"
	"unicode/utf8"
)

// ErrStale is returned to a turn whose session has seen a later turn begin: its
// writes are refused.
var ErrStale = errors.New("agent: a later turn of the session has begun")

// ErrNoSession is returned for a session that is not known, or not any more.
var ErrNoSession = errors.New("agent: no such session")

// ErrUnreadable marks what is wrong with one session, whose rows somebody else
// has written: the others are as good as ever.
var ErrUnreadable = errors.New("agent: the session was not written by a gateway")

// Role says whose words a row holds.
type Role string

// The roles.
const (
	User      Role = "user"
	Assistant Role = "assistant"
)

// Row is one thing said in a session.
type Row struct {
	Role   Role      `json:"role"`
	Text   string    `json:"text"`
	Prompt string    `json:"prompt,omitempty"` // as message.Message has it; empty: Text itself
	Key    string    `json:"key"`              // of the message that the row belongs to
	Cut    bool      `json:"cut,omitempty"`    // Text was longer than MaxRowText
	Time   time.Time `json:"time"`
}

// MaxRowText bounds the text of a row in bytes, and that of its prompt.
const MaxRowText = 64 << 10

// promptLeftOut stands for a prompt over MaxRowText. One without its end would
// have lost the mark that ends the data, and the sentence that explains it.
const promptLeftOut = "[a message too long to be kept]"

// Bounded returns the row with its text cut to MaxRowText, between two
// characters, and a longer prompt left out. Cut says that anything is missing.
func (r Row) Bounded() Row {
	if len(r.Prompt) > MaxRowText {
		r.Prompt, r.Cut = promptLeftOut, true
	}
	if len(r.Text) > MaxRowText {
		end := MaxRowText
		for end > 0 && !utf8.RuneStart(r.Text[end]) {
			end--
		}
		r.Text, r.Cut = r.Text[:end], true
	}
	return r
}

// CheckTurn refuses two rows that are not those of one turn: user and assistant
// about the message with one key, which is not empty. Every History needs it.
func CheckTurn(user, assistant Row) error {
	if user.Role != User || assistant.Role != Assistant || user.Key != assistant.Key || user.Key == "" {
		return errors.New("the rows are not those of a user and an assistant about one message")
	}
	return nil
}

// History keeps what was said in each session. It is safe for concurrent use,
// and what it has confirmed survives a restart of the gateway. Fences are below
// 2^53.
//
// A session is known from the first Begin until nothing was written to it for
// the configured time. It keeps the rows of its last turns, of which each has a
// user's and an assistant's row: never one without the other.
type History interface {
	// Begin starts a turn: it makes the session if there is none (of any number
	// of concurrent callers, all meet the same one), notes fence as its newest,
	// and returns the rows of earlier turns, oldest first. With a fence below
	// the newest it changes nothing and returns ErrStale.
	Begin(ctx context.Context, session string, fence uint64) ([]Row, error)

	// Append writes the two rows of a finished turn, user first, at once; both
	// have the key of their message, see CheckTurn. Of a
	// row whose key and role the session already has, the first stays: the same
	// call repeated changes nothing. With a fence below the newest it writes
	// nothing and returns ErrStale. An unknown session is made.
	Append(ctx context.Context, session string, fence uint64, user, assistant Row) error

	// Close gives up what the history holds. Nothing is called after it.
	Close() error
}

// Session is what is known of a session without its rows.
type Session struct {
	ID       string    `json:"session"`
	Turns    int       `json:"turns"` // that are kept
	Created  time.Time `json:"created"`
	LastUsed time.Time `json:"last_used"`
}

// Sessions is a look at all sessions, for people. Looking is no use of them.
type Sessions interface {
	// List returns the sessions used last, newest first, limit at most, and
	// whether there are more. Limit is at least 1.
	List(ctx context.Context, limit int) (sessions []Session, more bool, err error)
	// Show returns a session and its rows, oldest first; ErrNoSession.
	Show(ctx context.Context, session string) (Session, []Row, error)
	// Reset forgets the rows of a session and keeps its fence, so that a turn
	// under way can still write; ErrNoSession.
	Reset(ctx context.Context, session string) error
}
