package share

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
)

// place is where a file shall be: a name in a directory that is open. Its owner closes it.
type place struct {
	dir   *os.Root
	base  string // one component
	shown string // for messages
}

// outputPlace is a path that the user chose. Symbolic links on the way to its directory are the
// user's business.
func outputPlace(output string) (place, error) {
	dir, base := filepath.Split(output)
	if base == "" || base == "." || base == ".." {
		return place{}, fmt.Errorf("share: output %q: expected the path of a file", output)
	}
	if dir == "" {
		dir = "."
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return place{}, fmt.Errorf("share: output %q: %w", output, err)
	}
	return place{root, base, output}, nil
}

// placeBelow is the place of a path that PathOf made, below a root. Directories that are missing
// are made.
func placeBelow(root *os.Root, p, shown string) (place, error) {
	dir, err := walk(root, p, dirMode)
	if err != nil {
		return place{}, err
	}
	return place{dir, p[strings.LastIndexByte(p, '/')+1:], filepath.Join(shown, filepath.FromSlash(p))}, nil
}

// lookBelow is Lstat of the path p below a root that follows no symbolic link. dir is the root,
// open.
func lookBelow(root *os.Root, dir *os.File, p string) (os.FileInfo, error) {
	if fi, err := sys.LstatBelow(dir, p); err == nil || errors.Is(err, fs.ErrNotExist) {
		return fi, err
	}
	in, err := walk(root, p, 0) // which says what is wrong, and works with older kernels
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return in.Lstat(p[strings.LastIndexByte(p, '/')+1:])
}

// walk opens the directory of the path p below root, without following a symbolic link. Missing
// directories are made with a mode, or an error if that is 0. The caller closes what it returns.
func walk(root *os.Root, p string, mode fs.FileMode) (*os.Root, error) {
	dir, err := root.OpenRoot(".")
	if err != nil {
		return nil, fmt.Errorf("share: %w", err)
	}
	for {
		c, rest, more := strings.Cut(p, "/")
		if !more {
			return dir, nil
		}
		next, err := step(dir, c, mode)
		dir.Close()
		if err != nil {
			return nil, err
		}
		dir, p = next, rest
	}
}

// dirMode is that of directories of files, less the umask.
const dirMode = 0o777

// step opens the directory c of dir, and makes it with a mode unless that is 0.
func step(dir *os.Root, c string, mode fs.FileMode) (*os.Root, error) {
	fi, err := dir.Lstat(c)
	if mode != 0 && errors.Is(err, fs.ErrNotExist) {
		if err = dir.Mkdir(c, mode); err == nil || errors.Is(err, fs.ErrExist) {
			fi, err = dir.Lstat(c)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("share: %w", err)
	}
	if !fi.IsDir() {
		return nil, fmt.Errorf("%w: %s is %s, expected a directory", ErrUnsafe, c, kind(fi.Mode()))
	}
	next, err := dir.OpenRoot(c)
	if err != nil {
		return nil, fmt.Errorf("share: %w", err)
	}
	// A link may have taken the directory's place in between. It cannot lead out of the root, but
	// is not followed at all.
	now, err := next.Stat(".")
	if err == nil && !os.SameFile(fi, now) {
		err = fmt.Errorf("%w: %s %w", ErrUnsafe, c, errReplaced)
	}
	if err != nil {
		next.Close()
		return nil, err
	}
	return next, nil
}

// errReplaced says nothing about what is there now.
var errReplaced = errors.New("was replaced while it was opened")

func kind(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "a file"
	case m.IsDir():
		return "a directory"
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// openPlain opens a regular file of dir; flags are those of os.OpenFile. A link, pipe or device is
// refused with ErrUnsafe, and, if own is set, a file that has other links or another owner: what is
// written there would appear elsewhere.
func openPlain(dir *os.Root, base string, flags int, own bool) (*os.File, error) {
	f, _, err := openPlainInfo(dir, base, flags, own)
	return f, err
}

// openPlainInfo is openPlain, and says what the file is.
func openPlainInfo(dir *os.Root, base string, flags int, own bool) (*os.File, os.FileInfo, error) {
	// The root resolves links inside of itself, so the last component is looked at before and
	// compared behind.
	before, lerr := dir.Lstat(base)
	if lerr == nil && !before.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%w: %s is %s", ErrUnsafe, base, kind(before.Mode()))
	}
	if lerr != nil && (flags&os.O_CREATE == 0 || !errors.Is(lerr, fs.ErrNotExist)) {
		return nil, nil, fmt.Errorf("share: %w", lerr)
	}
	if lerr != nil {
		flags |= os.O_EXCL // what comes into being now is ours, or it is an error
	}
	f, err := dir.OpenFile(base, flags|sys.ONoFollow|sys.ONonblock, 0o666)
	if err != nil {
		return nil, nil, fmt.Errorf("share: %w", err)
	}
	fi, err := f.Stat()
	if err == nil {
		id := sys.Identity(fi)
		switch {
		case !fi.Mode().IsRegular() || lerr == nil && !os.SameFile(before, fi):
			err = fmt.Errorf("%w: %s %w", ErrUnsafe, base, errReplaced)
		case own && id.Links > 1:
			err = fmt.Errorf("%w: %s has %d links: what is written to it would appear elsewhere", ErrUnsafe, base,
				id.Links)
		case own && int(id.UID) != sys.EffectiveUID():
			err = fmt.Errorf("%w: %s belongs to user id %d", ErrUnsafe, base, id.UID)
		}
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, fi, nil
}

// syncDir makes the names in a directory durable.
func syncDir(dir *os.Root) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
