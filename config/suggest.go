package config

import (
	"reflect"
	"strings"
)

// suggest says what the unknown key of a section may have meant: the nearest
// of the section's own keys, else those from elsewhere beside the list of the own.
func suggest(key string, section reflect.Type) string {
	if near := nearest(key, keyPaths("", section, false)); near != nil {
		return "did you mean " + strings.Join(near, " or ") + "?"
	}
	valid := "valid here: " + contents(section)
	if near := nearest(key, keyPaths("", reflect.TypeFor[Config](), true)); near != nil {
		return "did you mean " + strings.Join(near, " or ") + "? " + valid
	}
	return valid
}

// nearest returns the paths whose last key is closest to key, at most three.
// A key is close if it differs in no more than every third letter, or if one
// of the two is a part of the other.
func nearest(key string, paths []string) []string {
	var best []string
	limit := max(1, len(key)/3)
	for _, path := range paths {
		valid := path[strings.LastIndexByte(path, '.')+1:]
		d := distance(key, valid)
		if len(key) > 3 && (strings.Contains(valid, key) || strings.Contains(key, valid)) {
			d = min(d, max(1, len(key)/3))
		}
		if d < limit {
			best, limit = nil, d
		}
		if d == limit && len(best) < 3 {
			best = append(best, path)
		}
	}
	return best
}

// keyPaths lists the keys of a section, with deep also those of the sections inside.
func keyPaths(prefix string, t reflect.Type, deep bool) []string {
	switch t.Kind() {
	case reflect.Pointer:
		return keyPaths(prefix, t.Elem(), deep)
	case reflect.Slice:
		return keyPaths(prefix+"[]", t.Elem(), deep)
	case reflect.Map:
		return keyPaths(join(prefix, "NAME"), t.Elem(), deep)
	}
	if isScalar(t) {
		return nil
	}
	var paths []string
	for key, f := range fields(t) {
		path := join("", key)
		if prefix != "" {
			path = prefix + "." + key
		}
		paths = append(paths, path)
		if deep {
			paths = append(paths, keyPaths(path, f.Type, deep)...)
		}
	}
	return paths
}

// distance is the least number of letters to insert, delete, replace or swap
// with their neighbour in order to turn a into b.
func distance(a, b string) int {
	var before, above []int // the two rows over the current one
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, above, row = above, row, make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replace := above[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			row[j] = min(replace, above[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
