//go:build !race

package sqlitestore_test

// expired is how many rows there are to prune.
const expired = 200_000
