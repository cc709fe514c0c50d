package sqlitestore

import (
	"context"
	"fmt"
)

// LimitPages lets the writer find no room past so many pages.
func (s *Store) LimitPages(ctx context.Context, pages int) error {
	o := s.op(func(w *writer, _ *op) error {
		_, err := w.conn.ExecContext(ctx, fmt.Sprintf("PRAGMA max_page_count = %d", pages), nil)
		return err
	}, "", [16]byte{})
	defer s.free(o)
	return s.do(ctx, o)
}
