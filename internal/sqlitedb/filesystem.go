package sqlitedb

import "slices"

// Unshared returns the kind of the file system that holds a directory if
// processes cannot share memory there, as a write-ahead log needs it, else "".
func Unshared(dir string) (string, error) {
	kind, err := fileSystem(dir)
	if err != nil || !lacksSharedMemory(kind) {
		return "", err
	}
	return kind, nil
}

// lacksSharedMemory reports whether processes cannot rely on memory that they
// share through a file of this file system. Some only lack it between
// machines, but the gateway cannot see who else has the directory mounted.
func lacksSharedMemory(fileSystem string) bool {
	return slices.Contains([]string{"nfs", "cifs", "smb", "9p", "fuse"}, fileSystem)
}
