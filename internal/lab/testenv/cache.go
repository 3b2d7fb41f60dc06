package testenv

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/penstock-io/penstock/internal/sys"
)

// CacheDir is the one directory where the lab keeps files between runs: kernels, images, built
// programs. It is $PENSTOCK_LAB_CACHE, or penstock-lab in the user's cache directory, and is made
// when it does not exist. Removing it costs nothing but the time to fill it again.
func CacheDir() (string, error) {
	dir := os.Getenv("PENSTOCK_LAB_CACHE")
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("testenv: no directory for the lab's cache: %w; set PENSTOCK_LAB_CACHE", err)
		}
		dir = filepath.Join(base, "penstock-lab")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("testenv: the lab's cache: %w; set PENSTOCK_LAB_CACHE to a directory that can be written",
			err)
	}
	return dir, nil
}

// Lock takes the lock called name, which all processes that share the cache directory see, and
// waits for it. The kernel drops it with the process. The caller calls unlock once.
func Lock(name string) (unlock func(), err error) {
	dir, err := CacheDir()
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, "locks")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("testenv: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("testenv: %w", err)
	}
	if err := sys.FileLock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("testenv: %w", err)
	}
	return func() { f.Close() }, nil
}

// Cached returns the file or directory that the cache holds under key, and calls build to make it
// when it is not there. build writes to the path it is given, which does not exist yet; the result
// is renamed into place, so that no process ever sees half of it. Among all processes one builds at
// a time; what a killed builder left is removed by the next. A key is a name without slashes that
// changes with everything the result depends on: see [Hash].
func Cached(key string, build func(tmp string) error) (string, error) {
	dir, err := CacheDir()
	if err != nil {
		return "", err
	}
	if key == "" || key != filepath.Base(key) || key[0] == '.' {
		return "", fmt.Errorf("testenv: cache key %q: expected a file name", key)
	}
	final := filepath.Join(dir, key)
	if _, err := os.Lstat(final); err == nil {
		return final, nil
	}
	unlock, err := Lock(key)
	if err != nil {
		return "", err
	}
	// The lock's file goes with the lock: a process that waits for it finds the result first.
	defer unlock()
	if _, err := os.Lstat(final); err == nil {
		return final, nil
	}
	tmp := filepath.Join(dir, "building-"+key)
	if err := os.RemoveAll(tmp); err != nil {
		return "", fmt.Errorf("testenv: %w", err)
	}
	if err := build(tmp); err != nil {
		return "", errors.Join(err, os.RemoveAll(tmp))
	}
	if err := os.Rename(tmp, final); err != nil {
		return "", errors.Join(fmt.Errorf("testenv: %s was built without a result: %w", key, err), os.RemoveAll(tmp))
	}
	return final, nil
}

// Hash is a key made of parts: strings and byte slices as they are, everything else as fmt prints
// it. The border between two parts counts.
func Hash(parts ...any) string {
	h := sha256.New()
	for _, p := range parts {
		var b []byte
		switch p := p.(type) {
		case []byte:
			b = p
		case string:
			b = []byte(p)
		default:
			b = fmt.Appendf(nil, "%#v", p)
		}
		fmt.Fprintf(h, "%d:", len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))[:24]
}

// HashFiles is a key made of the contents of files, and of those below directories with their
// relative names.
func HashFiles(paths ...string) (string, error) {
	h := sha256.New()
	for _, root := range paths {
		err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			rel, err := filepath.Rel(root, p)
			if err != nil {
				return err
			}
			f, err := os.Open(p)
			if err != nil {
				return err
			}
			defer f.Close()
			fi, err := f.Stat()
			if err != nil {
				return err
			}
			fmt.Fprintf(h, "%d:%s%d:", len(rel), rel, fi.Size())
			_, err = io.Copy(h, f)
			return err
		})
		if err != nil {
			return "", fmt.Errorf("testenv: %w", err)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:24], nil
}

// Unpacked returns the directory, in the cache, that has the files of an embedded tree: the sources
// of a program in C, for a compiler. name begins its key.
func Unpacked(name string, files fs.FS) (string, error) {
	var parts []any
	err := fs.WalkDir(files, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(files, p)
		parts = append(parts, p, b)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("testenv: %w", err)
	}
	return Cached(name+"-"+Hash(parts...), func(tmp string) error { return os.CopyFS(tmp, files) })
}
