package share

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestDirectoryReplacedByLink replaces a directory by a link to another one between the walk of
// UploadTree and the uploads: no file of the other one is sent, by no way that a file goes.
func TestDirectoryReplacedByLink(t *testing.T) {
	for name, o := range map[string]TreeOptions{"batches": {}, "one by one": {Digest: true}, "compared": {},
		"dry run": {DryRun: true}} {
		t.Run(name, func(t *testing.T) {
			ctx, root, local, private := testCtx(t), t.TempDir(), t.TempDir(), t.TempDir()
			write(t, filepath.Join(local, "a", "kept"), []byte("of mine"))
			for i := range 3 {
				write(t, filepath.Join(local, "d", "e", fmt.Sprint(i)), []byte("public"))
				write(t, filepath.Join(private, "e", fmt.Sprint(i)), []byte("secret"))
			}
			// then the account would tell what the private files are
			compared := name == "compared" || name == "dry run"
			if compared {
				for i := range 3 {
					write(t, filepath.Join(root, "d", "e", fmt.Sprint(i)), []byte("secret"))
				}
			}
			s := serve(t, Options{Root: root, Writable: true})
			became := map[string]MirrorAction{}
			tr := &tree{tally: newTally(nil, func(f MirrorFile) { became[f.Name] = f.Action }), c: s.c, o: o}
			defer tr.close()
			if err := tr.find(ctx, []TreeSource{{local, ""}}); err != nil {
				t.Fatal(err)
			}
			d := filepath.Join(local, "d")
			if err := os.Rename(d, d+"~"); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(private, d); err != nil {
				t.Fatal(err)
			}
			if o.DryRun {
				tr.dryRun(ctx)
			} else {
				tr.run(ctx)
			}
			want := map[string]MirrorAction{"a/kept": MirrorSent}
			for i := range 3 {
				want[fmt.Sprint("d/e/", i)] = MirrorFailed
			}
			if !maps.Equal(became, want) {
				t.Errorf("%v, expected %v", became, want)
			}
			for i := 0; !compared && i < 3; i++ {
				if b, err := os.ReadFile(filepath.Join(root, "d", "e", fmt.Sprint(i))); err == nil {
					t.Errorf("%q was sent", b)
				}
			}
		})
	}
}

// TestFileReplacedByPipe replaces files by pipes between the walk of UploadTree and the uploads:
// each fails at once, whether it is to be sent or compared.
func TestFileReplacedByPipe(t *testing.T) {
	for _, dry := range []bool{false, true} {
		ctx, root, local := testCtx(t), t.TempDir(), t.TempDir()
		one := filepath.Join(t.TempDir(), "one")
		files := []string{filepath.Join(local, "x"), one}
		for _, f := range files {
			write(t, f, []byte("1"))
		}
		write(t, filepath.Join(root, "x"), []byte("1"))
		write(t, filepath.Join(root, "one"), []byte("1"))
		s := serve(t, Options{Root: root, Writable: true})
		var failed []error
		tr := &tree{tally: newTally(nil, func(f MirrorFile) {
			failed = append(failed, f.Err)
		}), c: s.c, o: TreeOptions{DryRun: dry}}
		defer tr.close()
		if err := tr.find(ctx, []TreeSource{{local, ""}, {one, "one"}}); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(f, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if dry {
				tr.dryRun(ctx)
			} else {
				tr.run(ctx)
			}
		}()
		select {
		case <-done:
		case <-ctx.Done():
			t.Fatal("it waits for the other end of a pipe")
		}
		if len(failed) != 2 || failed[0] == nil || failed[1] == nil {
			t.Errorf("dry %t: %v", dry, failed)
		}
	}
}

// TestSourceTooDeep has a directory deeper than a share takes: it fails by itself.
func TestSourceTooDeep(t *testing.T) {
	s, local := serve(t, Options{Root: t.TempDir(), Writable: true}), t.TempDir()
	write(t, filepath.Join(local, strings.Repeat("d/", maxDepth)+"f"), nil)
	write(t, filepath.Join(local, strings.Repeat("d/", maxDepth+1)+"f"), nil)
	got, _, err := uploadTree(t, s.c, TreeOptions{}, TreeSource{local, ""})
	want := map[string]MirrorAction{strings.Repeat("d/", maxDepth) + "f": MirrorSent,
		strings.Repeat("d/", maxDepth) + "d": MirrorFailed}
	if err == nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
}
