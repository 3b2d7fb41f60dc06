package identity

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/penstock-io/penstock/internal/sys"
)

// checkDir refuses a directory in which others could replace files. On a read-only mount the
// kernel lets no process do so: the kubelet mounts a secret in this way, from a directory with mode
// 1777 or the like.
func checkDir(dir string) error {
	fi, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("identity: %s does not exist: %w; \"penstock pair\" makes one", dir, ErrMissing)
	case err != nil:
		return fmt.Errorf("identity: %w", err)
	case !fi.IsDir():
		return fmt.Errorf("identity: %s: expected a directory: %w", dir, ErrMissing)
	case fi.Mode().Perm()&0o022 != 0 && !readOnly(dir):
		return fmt.Errorf("identity: %s has mode %04o, so that others can replace what is in it: expected 0755, 0700, "+
			"or a read-only mount: %w; fix it with: chmod go-w %s", dir, octal(fi), ErrPermissions, dir)
	}
	return checkOwner(dir, sys.Identity(fi).UID, os.Geteuid())
}

// checkOwner refuses what belongs to neither the effective user nor root: its owner can change it,
// and its mode, at any time.
func checkOwner(path string, owner uint32, user int) error {
	if owner == 0 || int(owner) == user {
		return nil
	}
	return fmt.Errorf("identity: %s belongs to user %d, who can change it: expected user %d or root: %w; fix it "+
		"with: chown %d %s, or run as user %d",
		path, owner, user, ErrPermissions, user, path, owner)
}

// checkMode refuses a file that others can write to and, where it holds a key, read. A key that
// belongs to root may be readable for a group of this process: root decides who is in it.
func checkMode(path string, fi os.FileInfo, secret bool, groups []int) error {
	mode, id := fi.Mode().Perm(), sys.Identity(fi)
	forGroup := mode&0o077 == 0o040 && id.UID == 0 && slices.Contains(groups, int(id.GID))
	switch {
	case secret && mode&0o077 != 0 && !forGroup:
		return fmt.Errorf("identity: %s holds a key and has mode %04o, owner %d and group %d, so that others can use "+
			"it: expected 0600 or, where root owns it and this process is in its group, 0440: %w; %s", path, octal(fi),
			id.UID, id.GID, ErrPermissions, fix(path, "chmod 600 "+path))
	case mode&0o022 != 0:
		return fmt.Errorf("identity: %s has mode %04o, so that others can change it: expected 0644 or less: %w; %s",
			path,
			octal(fi), ErrPermissions, fix(path, "chmod go-w "+path))
	}
	return nil
}

// unreadable is the error about a file that this process may not open.
func unreadable(path string, err error) error {
	user := os.Geteuid()
	fi, serr := os.Stat(path)
	if serr != nil { // nor may it look at it
		dir := filepath.Dir(path)
		return fmt.Errorf("identity: %w: expected a directory that user %d can enter: %w; %s", err, user,
			ErrPermissions,
			fix(dir, fmt.Sprintf("chown -R %d %s", user, dir)))
	}
	id := sys.Identity(fi)
	return fmt.Errorf("identity: %w: it has mode %04o, owner %d and group %d: expected 0600 of user %d, or 0440 "+
		"of root "+
		"and a group of this process: %w; %s", err, octal(fi), id.UID, id.GID, user, ErrPermissions,
		fix(path, fmt.Sprintf("chown %d %s", user, path)))
}

// fix says how to correct the permissions of a path: by a command or, where the mount is read-only,
// in the description of the volume.
func fix(path, command string) string {
	if readOnly(path) {
		return fmt.Sprintf("its mount is read-only: fix it where the volume is made, in Kubernetes with defaultMode: "+
			"0400 for the secret and fsGroup: %d in the pod's securityContext", os.Getegid())
	}
	return "fix it with: " + command
}

func readOnly(path string) bool {
	ro, err := sys.ReadOnly(path)
	return err == nil && ro
}

// octal is a mode as chmod takes it, with the bits above the permissions.
func octal(fi os.FileInfo) uint32 {
	m := uint32(fi.Mode().Perm())
	for bit, value := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000,
		fs.ModeSticky: 0o1000} {
		if fi.Mode()&bit != 0 {
			m |= value
		}
	}
	return m
}

// readFile reads a small regular file of the right owner whose permissions are narrow enough.
func readFile(path string, secret bool) ([]byte, error) {
	f, err := openFile(path, secret)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("identity: %s has more than %d bytes: %w", path, maxFile, ErrCredentials)
	}
	return b, nil
}

// openFile opens a regular file of the right owner whose permissions are narrow enough.
func openFile(path string, secret bool) (_ *os.File, err error) {
	// Look before opening: opening a pipe would wait for its writer.
	switch fi, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("identity: %w: %w; \"penstock pair\" makes it", err, ErrMissing)
	case errors.Is(err, fs.ErrPermission):
		return nil, unreadable(path, err)
	case err != nil:
		return nil, fmt.Errorf("identity: %w", err)
	case !fi.Mode().IsRegular():
		return nil, fmt.Errorf("identity: %s: expected a file: %w", path, ErrCredentials)
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrPermission) {
		return nil, unreadable(path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	if err := checkOwner(path, sys.Identity(fi).UID, os.Geteuid()); err != nil {
		return nil, err
	}
	groups, err := os.Getgroups()
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	if err := checkMode(path, fi, secret, append(groups, os.Getegid())); err != nil {
		return nil, err
	}
	return f, nil
}
