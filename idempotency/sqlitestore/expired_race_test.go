//go:build race

package sqlitestore_test

// expired is smaller here: SQLite is more than ten times slower under the race
// detector.
const expired = 20_000
