package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Problem is one thing that is wrong with a configuration. It holds no secret.
type Problem struct {
	File   string `json:"file"`
	Line   int    `json:"line,omitempty"` // 0: no place in the file
	Path   string `json:"path,omitempty"` // of keys, such as hooks.hooks[2].ttl; empty: the file as a whole
	Reason string `json:"reason"`
}

// String returns "file:line: path: reason".
func (p Problem) String() string {
	text := p.File
	if p.Line > 0 {
		text += ":" + strconv.Itoa(p.Line)
	}
	if p.Path != "" {
		text += ": " + p.Path
	}
	return text + ": " + p.Reason
}

// Error is everything that is wrong with a configuration, in the order of the file.
type Error struct {
	Problems []Problem
}

// Error returns one line for each problem.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// report collects the problems of one file.
type report struct {
	file     string
	lines    map[string]int // path to the line of its key, for every path in the file
	nodes    int            // in the file, before aliases are followed
	problems []Problem
}

// add reports a problem on the line of path or, if the file does not mention
// it, of the nearest section around it.
func (r *report) add(path, format string, args ...any) {
	r.addAt(r.line(path), path, format, args...)
}

func (r *report) addAt(line int, path, format string, args ...any) {
	r.problems = append(r.problems, Problem{r.file, line, path, fmt.Sprintf(format, args...)})
}

func (r *report) line(path string) int {
	for path != "" {
		if line, ok := r.lines[path]; ok {
			return line
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return 0
}

func (r *report) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	return &Error{Problems: r.problems}
}

// join appends a key to a path. A key that is no plain word is quoted, so that
// it cannot be mistaken for a path or break the line.
func join(path, key string) string {
	plain := key != "" && !strings.ContainsFunc(key, func(c rune) bool {
		return c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	})
	if !plain {
		key = strconv.Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func item(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// within reports whether path is outer or something inside it.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (outer == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
}
