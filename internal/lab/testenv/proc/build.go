package proc

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// sources is a key of everything that goes into the binary: the module's files and its own
// dependencies' versions, the compiler, and the kind of build.
func sources(root string) (string, error) {
	parts := []any{runtime.Version(), runtime.GOARCH, os.Getenv("GOAMD64"), testenv.Invariants}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "tools" || name == "bin" ||
				name == "docs") {
				return filepath.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(name, "_test.go") || name[0] == '.' || !d.Type().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		parts = append(parts, rel, b)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("proc: sources of penstock: %w", err)
	}
	return testenv.Hash(parts...), nil
}

// prune removes binaries of other sources that are older than a day. No test starts those any more;
// a process that runs one keeps its file.
func prune(keep string) {
	dir, err := testenv.CacheDir()
	if err != nil {
		return
	}
	old, _ := filepath.Glob(filepath.Join(dir, "penstock-*"))
	for _, f := range old {
		if fi, err := os.Lstat(f); err == nil && filepath.Base(f) != keep && fi.Mode().IsRegular() &&
			time.Since(fi.ModTime()) > 24*time.Hour {
			os.Remove(f)
		}
	}
}
