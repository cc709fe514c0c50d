package sqlitedb

import "golang.org/x/sys/unix"

// fileSystem asks the kernel. virtiofs shows itself as fuse.
func fileSystem(dir string) (string, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return "", err
	}
	// The type is a 32-bit number that some platforms extend by its sign.
	switch uint32(stat.Type) {
	case unix.NFS_SUPER_MAGIC:
		return "nfs", nil
	case unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC:
		return "cifs", nil
	case unix.SMB_SUPER_MAGIC:
		return "smb", nil
	case unix.V9FS_MAGIC:
		return "9p", nil
	case unix.FUSE_SUPER_MAGIC:
		return "fuse", nil
	}
	return "", nil
}
