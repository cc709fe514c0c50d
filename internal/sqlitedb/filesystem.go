package sqlitedb

import "slices"

// lacksSharedMemory reports whether processes cannot rely on memory that they
// share through a file of this file system. Some only lack it between
// machines, but the gateway cannot see who else has the directory mounted.
func lacksSharedMemory(fileSystem string) bool {
	return slices.Contains([]string{"nfs", "cifs", "smb", "9p", "fuse"}, fileSystem)
}
