package share

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A server notices that its directory was renamed, removed or replaced, and that the old one came
// back.
func TestReplacedRoot(t *testing.T) {
	for what, root := range map[string]string{"directory": "", "one file": "model"} {
		t.Run(what, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "served")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "model"), []byte("weights"))
			s := serve(t, Options{Root: filepath.Join(dir, root)})
			expect := func(when string, bad bool) {
				t.Helper()
				if err := s.Err(); (err != nil) != bad || bad && !errors.Is(err, ErrReplaced) {
					t.Errorf("%s: %v", when, err)
				}
			}
			expect("at first", false)
			if err := os.Rename(dir, dir+".old"); err != nil {
				t.Fatal(err)
			}
			expect("renamed", true)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			expect("replaced", true)
			if err := errors.Join(os.Remove(dir), os.Rename(dir+".old", dir)); err != nil {
				t.Fatal(err)
			}
			expect("back", false)
		})
	}
}
