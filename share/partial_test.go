package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/job"
)

func TestStateGolden(t *testing.T) {
	c := claim{name: "a b\n", size: chunkSize + 1, tag: Tag{0xab, 1}}
	b, head := c.appendHead(nil)
	b = appendRecord(b, head, 0, 0x12345678)
	want := "penstock partial file 1\nname \"a b\\n\"\nsize 4194305\ntag ab010000000000000000000000000000\nchunk " +
		"4194304\nhead " + fmt.Sprintf("%08x", head) + "\n12345678 "
	if !strings.HasPrefix(string(b), want) {
		t.Errorf("%q", b)
	}
	back, sums, n, ok := parseState(b)
	if !ok || back != c || len(sums) != 1 || sums[0] != 0x12345678 || n != len(b)-recordSize {
		t.Errorf("%v %v %v %v", back, sums, n, ok)
	}
	// More chunks than the size has are not believed, and of a torn or damaged file only what is
	// before the damage.
	more := appendRecord(appendRecord(b, head, 1, 1), head, 2, 2)
	if _, sums, _, _ := parseState(more); len(sums) != 2 {
		t.Errorf("%d chunks of 2", len(sums))
	}
	for i := range more {
		c2, sums, _, ok := parseState(more[:i])
		if ok && c2 != c || len(sums) > max(0, i-n)/recordSize {
			t.Fatalf("cut at %d: %v %v", i, c2, sums)
		}
		bad := []byte(string(more))
		bad[i] ^= 4
		c2, sums, _, ok = parseState(bad)
		if ok && (c2 != c || len(sums) > max(0, i-n)/recordSize) {
			t.Fatalf("damaged at %d: %v %v", i, c2, sums)
		}
	}
}

func FuzzState(f *testing.F) {
	c := claim{name: "a", size: 3 * chunkSize, tag: Tag{1}}
	b, head := c.appendHead(nil)
	f.Add(appendRecord(appendRecord(b, head, 0, 1), head, 1, 2))
	f.Add([]byte(stateMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, sums, n, ok := parseState(b)
		if !ok {
			return
		}
		again, head := c.appendHead(nil)
		if n != len(again) || uint64(len(sums)) > chunksOf(c.size) {
			t.Fatal(n, len(again), len(sums), chunksOf(c.size))
		}
		for i, s := range sums {
			again = appendRecord(again, head, uint64(i), s)
		}
		if !strings.HasPrefix(string(b), string(again)) {
			t.Fatalf("%q is read as %q", b, again)
		}
	})
}

func openAt(t *testing.T, output string, c claim, resume bool) (*partial, error) {
	t.Helper()
	at, err := outputPlace(output)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { at.dir.Close() })
	return openPartial(testCtx(t), at, c, resume, true)
}

func mustOpen(t *testing.T, output string, c claim) *partial {
	t.Helper()
	p, err := openAt(t, output, c, true)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPartialNeverLies damages partial files and their state between attempts, in every way that a
// crash or a person may: whatever an attempt takes for good has to be so.
func TestPartialNeverLies(t *testing.T) {
	const size = chunkSize + 12345
	content := randomBytes(9, size)
	// In memory, if there is such a place: nothing here depends on the disk but the time it takes.
	dir, err := os.MkdirTemp("/dev/shm", "penstock-share-test")
	if err != nil {
		dir = t.TempDir()
	}
	defer os.RemoveAll(dir)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		output := filepath.Join(dir, fmt.Sprint(n))
		c := claim{name: "x", size: size, tag: Tag{1}}
		for range rapid.IntRange(1, 4).Draw(rt, "attempts") {
			was := c
			if rapid.IntRange(0, 5).Draw(rt, "other") == 0 {
				was = []claim{{"y", size, c.tag}, {"x", size - 1, c.tag}, {"x", size + chunkSize, c.tag},
					{"x", size, Tag{2}}, {"x", size, Tag{}}}[rapid.IntRange(0, 4).Draw(rt, "what")]
			}
			p := mustOpen(t, output, was)
			good := p.good()
			mine := p.lease.Bytes()
			if was == c && string(mine[:good]) != string(content[:good]) {
				rt.Fatalf("%d bytes are taken for good and are not", good)
			}
			upTo := good + uint64(rapid.IntRange(0, size).Draw(rt, "more"))
			upTo = min(upTo, p.size)
			if was == c {
				copy(mine[good:upTo], content[good:])
			} else {
				clear(mine)
			}
			if err := p.record(upTo); err != nil {
				rt.Fatal(err)
			}
			if got := p.good(); got > upTo || upTo == p.size && got != upTo || upTo-got >= chunkSize {
				rt.Fatalf("good %d after %d", got, upTo)
			}
			if err := p.close(); err != nil {
				rt.Fatal(err)
			}
			damage := func(path string) {
				b, err := os.ReadFile(path)
				if err != nil || len(b) == 0 {
					return
				}
				at := rapid.IntRange(0, len(b)-1).Draw(rt, "at")
				switch rapid.IntRange(0, 3).Draw(rt, "damage") {
				case 0:
					b[at] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
				case 1:
					b = b[:at]
				case 2:
					clear(b[at:]) // blocks that never reached the disk
				case 3:
					// without its state it would not count as a partial file of a fetch
					os.Remove(output + PartialSuffix)
					os.Remove(path)
					return
				}
				if err := os.WriteFile(path, b, 0o644); err != nil {
					rt.Fatal(err)
				}
			}
			if rapid.Bool().Draw(rt, "data") {
				damage(output + PartialSuffix)
			}
			if rapid.Bool().Draw(rt, "state") {
				damage(output + StateSuffix)
			}
		}
		p := mustOpen(t, output, c)
		copy(p.lease.Bytes()[p.good():], content[p.good():])
		if err := errors.Join(p.record(size), p.commit(p.place, false)); err != nil {
			rt.Fatal(err)
		}
		same(t, output, content)
		os.Remove(output)
	})
	only(t, dir)
}

// TestPartialOfSomebodyElse has a file lie where a partial one would, which no fetch has made: it
// stays as it is.
func TestPartialOfSomebodyElse(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "x"), []byte("new"))
	s := serve(t, Options{Root: root})
	out, mine := filepath.Join(dir, "x"), []byte("mine")
	write(t, out+PartialSuffix, mine)
	for _, o := range []FetchOptions{{}, {NoResume: true}, {Overwrite: true}} {
		o.Output = out
		if _, err := Fetch(ctx, s.c, "x", o); !errors.Is(err, ErrExists) ||
			!strings.Contains(err.Error(), "x"+PartialSuffix) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if m, err := Mirror(ctx, s.c, dir, MirrorOptions{Parallel: 1}); !errors.Is(err, ErrExists) || m.Failed != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	same(t, out+PartialSuffix, mine)
	only(t, dir, recordName, "x"+PartialSuffix)
	write(t, out+PartialSuffix, nil) // so a fetch that is killed at its very beginning leaves it
	if _, err := Fetch(ctx, s.c, "x", FetchOptions{Output: out}); err != nil {
		t.Error(err)
	}
}

func TestPartialIsLocked(t *testing.T) {
	output := filepath.Join(t.TempDir(), "x")
	c := claim{"x", 3 * chunkSize, Tag{1}}
	p := mustOpen(t, output, c)
	if _, err := openAt(t, output, c, true); !errors.Is(err, ErrBusy) {
		t.Errorf("%v", err)
	}
	if err := errors.Join(p.record(chunkSize), p.close()); err != nil {
		t.Fatal(err)
	}
	p = mustOpen(t, output, c)
	if p.start != chunkSize {
		t.Errorf("%d bytes are good", p.start)
	}
	if err := p.commit(p.place, false); err != nil {
		t.Fatal(err)
	}
	if _, err := openAt(t, output, c, true); err != nil {
		t.Errorf("after the file was renamed: %v", err)
	}
}

func TestPartialRefusesWhatIsPlanted(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	write(t, victim, []byte("old"))
	c := claim{"x", 100, Tag{1}}
	plant := map[string]func(p string) error{
		"link":     func(p string) error { return os.Symlink(victim, p) },
		"dangling": func(p string) error { return os.Symlink(filepath.Join(dir, "new"), p) },
		"hardlink": func(p string) error { return os.Link(victim, p) },
		"pipe":     func(p string) error { return syscall.Mkfifo(p, 0o666) },
		"dir":      func(p string) error { return os.Mkdir(p, 0o777) },
	}
	for name, f := range plant {
		for _, suffix := range []string{PartialSuffix, StateSuffix} {
			output := filepath.Join(t.TempDir(), "x")
			if err := f(output + suffix); err != nil {
				t.Fatal(err)
			}
			if _, err := openAt(t, output, c, true); !errors.Is(err, ErrUnsafe) {
				t.Errorf("%s at %s: %v", name, suffix, err)
			}
		}
	}
	same(t, victim, []byte("old"))
	only(t, dir, "victim")
}

// mounted mounts a file system for a test; "" if the machine cannot.
func mounted(t *testing.T, fstype, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, fstype, syscall.MS_NOSUID|syscall.MS_NODEV, options); err != nil {
		testenv.Missing(t, "mounting a "+fstype, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

func TestFullDisk(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	content := randomBytes(4, 3<<20)
	write(t, filepath.Join(root, "large"), content)
	write(t, filepath.Join(root, "small"), content[:1<<20])
	s := serve(t, Options{Root: root})
	dir := mounted(t, "tmpfs", "size=2m")
	out := filepath.Join(dir, "x")
	called := false
	_, err := Fetch(ctx, s.c, "large", FetchOptions{Output: out, Progress: func(Progress) { called = true }})
	if !errors.Is(err, ErrNoSpace) || called {
		t.Errorf("%v, moved something: %v", err, called)
	}
	only(t, dir) // nothing is left behind that takes room
	if _, err := Fetch(ctx, s.c, "small", FetchOptions{Output: out}); err != nil {
		t.Error(err)
	}
	same(t, out, content[:1<<20])
	// The same for an upload, at the other side.
	up := serve(t, Options{Root: dir, Writable: true})
	if _, err := Upload(ctx, up.c, filepath.Join(root, "large"), "y", UploadOptions{}); !errors.Is(err, ErrNoSpace) {
		t.Errorf("upload: %v", err)
	}
	only(t, filepath.Join(dir, stagingDir))
}

// The disk fills up while a file is fetched: what came stays, and is the beginning of the next
// attempt, also where no block is left but those that the partial file has already.
func TestDiskFillsUp(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	content := randomBytes(6, 3*window)
	write(t, filepath.Join(root, "x"), content)
	s := serve(t, Options{Root: root})
	link := job.NewLink(testNode(t, transfer.Options{}), s.Server.node.Addrs()[0], job.LinkOptions{})
	for what, c := range map[string]Conn{"a session": s.c, "a link": OverLink(link)} {
		dir := mounted(t, "tmpfs", "size=56m")
		out, filler := filepath.Join(dir, "x"), filepath.Join(dir, "filler")
		full := func(left int64) {
			f, err := os.Create(filler)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := syscall.Fallocate(int(f.Fd()), 0, 0, 56<<20-left); err != nil {
				t.Error(err)
			}
		}
		once := false
		_, err := Fetch(ctx, c, "x", FetchOptions{Output: out, Progress: func(Progress) {
			if !once {
				once = true
				full(window + window/2)
			}
		}})
		p, ok := errors.AsType[*PartialError](err)
		if !ok || !errors.Is(err, ErrNoSpace) || p.Good != window {
			t.Fatalf("%s: %v", what, err)
		}
		only(t, dir, "filler", "x"+PartialSuffix, "x"+StateSuffix)
		if _, err := Fetch(ctx, c, "x", FetchOptions{Output: out}); !errors.Is(err, ErrNoSpace) {
			t.Errorf("%s: on a full disk: %v", what, err)
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(out+PartialSuffix, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(syscall.Fallocate(int(f.Fd()), 0, 0, int64(len(content))), f.Close()); err != nil {
			t.Fatal(err)
		}
		full(int64(len(content)) + 64<<10)
		got, err := Fetch(ctx, c, "x", FetchOptions{Output: out})
		if err != nil || got.Resumed != window {
			t.Fatalf("%s: %+v, %v", what, got, err)
		}
		same(t, out, content)
	}
}

func TestFileSystemWithoutFallocate(t *testing.T) {
	dir := mounted(t, "ramfs", "")
	f, err := os.Create(filepath.Join(dir, "probe"))
	if err != nil {
		t.Fatal(err)
	}
	err = syscall.Fallocate(int(f.Fd()), 0, 0, 1)
	f.Close()
	if !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Fatalf("fallocate on ramfs: %v: this test shows nothing", err)
	}
	root, ctx := t.TempDir(), testCtx(t)
	content := randomBytes(5, 2*chunkSize+17)
	write(t, filepath.Join(root, "x"), content)
	s := serve(t, Options{Root: root})
	out := filepath.Join(dir, "x")
	if _, err := Fetch(ctx, s.c, "x", FetchOptions{Output: out}); err != nil {
		t.Fatal(err)
	}
	same(t, out, content)
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := Fetch(canceled, s.c, "x", FetchOptions{Output: out + "2"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	only(t, dir, "probe", "x")
	// An upload gets its room by being asked for again and again.
	up := serve(t, Options{Root: dir, Writable: true})
	up.uploads.patience = 0
	if _, err := Upload(ctx, up.c, out, "y", UploadOptions{}); err != nil {
		t.Fatal(err)
	}
	same(t, filepath.Join(dir, "y"), content)
	a, err := begun(t, up.peer, "zz", 3<<20)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		b, err := up.peer.Call(ctx, uploadService, appendRoom(nil, a.id, 0))
		if err != nil || (len(b) > 0) != (i == 2) {
			t.Errorf("room, asked for %d times: %x, %v", i+1, b, err)
		}
	}
}

// TestPartialThatIsReadOnly opens a partial file again that has the permissions of a read-only
// file: the process was killed before the file had its name. Root may open it anyway.
func TestPartialThatIsReadOnly(t *testing.T) {
	ctx := testCtx(t)
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	at, c := place{root, "f", "f"}, claim{"f", 5, Tag{1}}
	p, err := openPartial(ctx, at, c, true, true)
	if err != nil {
		t.Fatal(err)
	}
	copy(p.lease.Bytes(), "12345")
	if err := errors.Join(p.record(5), p.data.Chmod(0o400), p.close()); err != nil {
		t.Fatal(err)
	}
	if p, err = openPartial(ctx, at, c, true, true); err != nil {
		t.Fatal(err)
	}
	if p.good() != 5 {
		t.Errorf("%d bytes are good", p.good())
	}
	if err := p.discard(); err != nil {
		t.Error(err)
	}
}
