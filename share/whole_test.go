package share

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/sched"
)

// A file gets the time and the permissions of the other side's, less the umask, in an answer and by
// a path; what is replaced keeps its own.
func TestFetchLike(t *testing.T) {
	ctx, root, out := testCtx(t), t.TempDir(), t.TempDir()
	umask, err := sys.Umask()
	if err != nil {
		t.Fatal(err)
	}
	modes := map[string]fs.FileMode{"plain": 0o644, "open": 0o777, "closed": 0o440, "set": 0o755 | fs.ModeSetuid}
	at := time.Unix(1_500_000_000, 123_456_789)
	write(t, filepath.Join(out, "replaced"), nil)
	if err := os.Chmod(filepath.Join(out, "replaced"), 0o606); err != nil {
		t.Fatal(err)
	}
	for name, mode := range modes {
		for _, size := range []int{0, 100, int(maxWhole) + 1} {
			file := filepath.Join(root, fmt.Sprint(name, size))
			write(t, file, randomBytes(1, size))
			if err := errors.Join(os.Chmod(file, mode), os.Chtimes(file, at, at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := serve(t, Options{Root: root})
	for _, c := range []Conn{s.c, s.c.ByPath()} {
		for name, mode := range modes {
			for _, size := range []int{0, 100, int(maxWhole) + 1} {
				name := fmt.Sprint(name, size)
				for to, want := range map[string]fs.FileMode{name: (mode.Perm() | ownerMode) &^ umask,
					"replaced": 0o606} {
					to := filepath.Join(out, to)
					if _, err := Fetch(ctx, c, name,
						FetchOptions{Output: to, Overwrite: filepath.Base(to) == "replaced", Like: true}); err != nil {
						t.Fatal(err)
					}
					if fi, err := os.Stat(to); err != nil || fi.Mode() != want || !fi.ModTime().Equal(at) ||
						fi.Size() != int64(size) {
						t.Errorf("%s of %s is %v of %v, %v, expected %v", to, name, fi.Mode(), fi.ModTime(), err, want)
					}
				}
				os.Remove(filepath.Join(out, name))
			}
		}
	}
	// A node that has no share says nothing of files.
	n := testNode(t, transfer.Options{Name: "bare", Anonymous: identity.All, Listen: []string{"tcp://127.0.0.1:0"}})
	m, err := mem.Alloc(mem.Options{Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := n.Export(m.All(), transfer.ExportOptions{Name: "x", Rights: path.Read}); err != nil {
		t.Fatal(err)
	}
	p, err := testNode(t, transfer.Options{Name: "client"}).Dial(ctx, n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Fetch(ctx, Over(p), "x", FetchOptions{Output: filepath.Join(out, "x"), Like: true}); err != nil {
		t.Error(err)
	}
}

// A small file comes in the answer of a call, which counts as a read; a larger one, and one that
// may not, comes by a path.
func TestFetchWhole(t *testing.T) {
	ctx, root, out := testCtx(t), t.TempDir(), t.TempDir()
	sizes := map[string]int{"empty": 0, "small": 4096, "largest": int(maxWhole), "larger": int(maxWhole) + 1}
	for name, n := range sizes {
		write(t, filepath.Join(root, name), randomBytes(uint64(n), n))
	}
	var mu sync.Mutex
	var ended []string
	s := serve(t, Options{Root: root, OnAccess: func(a Access) {
		mu.Lock()
		defer mu.Unlock()
		if a.Ended {
			ended = append(ended, fmt.Sprint(a.Name, " ", a.Good, " ", a.Whole, " ", a.Path == viaControl))
		}
	}})
	for name, n := range sizes {
		for _, c := range []Conn{s.c, s.c.ByPath()} {
			to := filepath.Join(out, name)
			var far []uint64
			f, err := Fetch(ctx, c, name, FetchOptions{Output: to, Overwrite: true, Digest: true,
				Progress: func(p Progress) {
					far = append(far, p.Bytes)
				}})
			if err != nil {
				t.Fatal(err)
			}
			called := !c.path && uint64(n) <= maxWhole
			if n > 0 && (f.Path == viaControl) != called || f.Moved != uint64(n) || f.SHA256 == nil ||
				f.Tag == (Tag{}) || far[len(far)-1] != uint64(n) {
				t.Errorf("%s: %+v, %v", name, f, far)
			}
			same(t, to, randomBytes(uint64(n), n))
			var b bytes.Buffer
			f, err = Stream(ctx, c, name, &b, StreamOptions{})
			if err != nil || n > 0 && (f.Path == viaControl) != called ||
				!bytes.Equal(b.Bytes(), randomBytes(uint64(n), n)) {
				t.Errorf("%s: %+v, %v, %d bytes", name, f, err, b.Len())
			}
		}
	}
	only(t, out, "empty", "larger", "largest", "small")
	mu.Lock()
	defer mu.Unlock()
	count := func(s string) (n int) {
		for _, e := range ended {
			if e == s {
				n++
			}
		}
		return n
	}
	for name, n := range sizes {
		small := uint64(n) <= maxWhole
		want := map[bool]int{true: 0, false: 4}
		if small {
			want = map[bool]int{true: 2, false: 2}
		}
		for called, n2 := range want {
			if got := count(fmt.Sprint(name, " ", n, " ", true, " ", called)); got != n2 {
				t.Errorf("%s, by a call %v: %d reads, expected %d: %q", name, called, got, n2, ended)
			}
		}
	}
	// A digest that is not the expected one leaves nothing under the name.
	_, err := Fetch(ctx, s.c, "small", FetchOptions{Output: filepath.Join(out, "wrong"), Expect: new([32]byte)})
	if !errors.Is(err, ErrDigest) {
		t.Error(err)
	}
	only(t, out, "empty", "larger", "largest", "small", "wrong"+MismatchSuffix)
	// What replaces a file is noticed.
	write(t, filepath.Join(root, "small"), []byte("other"))
	if _, err := Fetch(ctx, s.c, "small", FetchOptions{Output: filepath.Join(out, "small"),
		Overwrite: true}); err != nil {
		t.Fatal(err)
	}
	same(t, filepath.Join(out, "small"), []byte("other"))
	if err := os.Remove(filepath.Join(root, "small")); err != nil {
		t.Fatal(err)
	}
	if _, err := Fetch(ctx, s.c, "small", FetchOptions{Output: filepath.Join(out, "small"),
		Overwrite: true}); !errors.Is(err, control.NotFound) {
		t.Error(err)
	}
}

// Nodes whose limits hold what moves, and peers without the right, get no bytes by calls.
func TestWholeHoldsLimits(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	write(t, filepath.Join(root, "a"), []byte("1234"))
	rate := transfer.Limits{Peer: transfer.Quota{In: sched.Limits{Rate: 1 << 20}}}
	for what, c := range map[string]struct {
		server, client transfer.Options
		want           string // of the call
	}{
		"no limit":         {want: "1234"},
		"the server's":     {server: transfer.Options{Limits: rate}},
		"the client's":     {client: transfer.Options{Limits: transfer.Limits{Node: transfer.Quota{Out: sched.Limits{Largest: 3}}}}, want: "1234"},
		"no right to read": {server: transfer.Options{Anonymous: identity.List | identity.Write}},
	} {
		c.server.Name, c.server.Listen = "server", []string{"tcp://127.0.0.1:0"}
		n := testNode(t, c.server)
		s, err := Serve(ctx, n, Options{Root: root})
		if err != nil {
			t.Fatal(err)
		}
		p, err := testNode(t, c.client).Dial(ctx, n.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		b, err := p.Call(ctx, wholeService, []byte("a"))
		if w := parseWhole(b); (w != nil) != (c.want != "") || w != nil && string(w.bytes) != c.want ||
			errors.Is(err, control.NotPermitted) != strings.HasPrefix(what, "no right") {
			t.Errorf("%s: %q, %v", what, b, err)
		}
		f, err := Fetch(ctx, Over(p), "a", FetchOptions{Output: filepath.Join(t.TempDir(), "a")})
		switch what {
		case "no limit":
			if err != nil || f.Path != viaControl {
				t.Errorf("%s: %+v, %v", what, f, err)
			}
		case "the server's":
			if err != nil || f.Path == viaControl {
				t.Errorf("%s: %+v, %v", what, f, err)
			}
		default:
			if err == nil {
				t.Errorf("%s: %+v", what, f)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Questions that are none are refused, and answers that are wrong, of another content or none leave
// the file to a path.
func TestHostileWhole(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	b := randomBytes(3, 5000)
	write(t, filepath.Join(root, "a"), b)
	s := serve(t, Options{Root: root})
	for _, name := range []string{"", strings.Repeat("a", MaxName+1), "\xff"} {
		if _, err := s.peer.Call(ctx, wholeService, []byte(name)); !errors.Is(err, control.BadRequest) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"none", "../a", "/etc/passwd", "."} {
		if b, err := s.peer.Call(ctx, wholeService, []byte(name)); err != nil || !bytes.Equal(b, []byte{wholeNot}) {
			t.Errorf("%q: %q, %v", name, b, err)
		}
	}
	good, err := s.peer.Call(ctx, wholeService, []byte("a"))
	if err != nil || parseWhole(good) == nil {
		t.Fatal(err)
	}
	var answer []byte // of the next call; nil: there is no such service
	n := testNode(t, transfer.Options{Listen: []string{"tcp://127.0.0.1:0"}})
	region, err := mem.Alloc(mem.Options{Size: len(b)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { region.Close() })
	copy(region.All().Bytes(), b)
	if _, err := n.Export(mem.Span{Region: region, Len: uint64(len(b))},
		transfer.ExportOptions{Name: "a", Rights: path.Read, Tag: parseWhole(good).tag}); err != nil {
		t.Fatal(err)
	}
	p, err := testNode(t, transfer.Options{}).Dial(ctx, n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Handle(wholeService, func(context.Context, *transfer.Peer, []byte) ([]byte, error) {
		if answer == nil {
			return nil, control.Errorf(control.Unsupported, "no service")
		}
		return bytes.Clone(answer), nil
	}); err != nil {
		t.Fatal(err)
	}
	at := func(i int) []byte {
		c := bytes.Clone(good)
		c[i] ^= 1
		return c
	}
	for i, a := range [][]byte{nil, {}, {wholeNot}, {wholeBytes}, {9}, at(0), at(1), at(17), at(wholeFixed),
		good[:wholeFixed], good[:len(good)-1], append(bytes.Clone(good), 0), make([]byte, transfer.MaxCall)} {
		answer = a
		to := filepath.Join(t.TempDir(), "a")
		f, err := Fetch(ctx, Over(p), "a", FetchOptions{Output: to})
		if err != nil || f.Path == viaControl {
			t.Errorf("answer %d: %+v, %v", i, f, err)
		}
		same(t, to, b)
	}
	answer = good
	if f, err := Fetch(ctx, Over(p), "a", FetchOptions{Output: filepath.Join(t.TempDir(), "a")}); err != nil ||
		f.Path != viaControl {
		t.Errorf("a good answer: %+v, %v", f, err)
	}
}

func FuzzWholeWire(f *testing.F) {
	f.Add((&whole{Tag{1}, 7, like{time.Unix(1, 2), 0o640}, []byte("a")}).append(nil))
	f.Add([]byte{wholeNot})
	f.Fuzz(func(t *testing.T, b []byte) {
		if w := parseWhole(b); w != nil && (!bytes.Equal(w.append(nil), b) || uint64(len(w.bytes)) > maxWhole) {
			t.Fatalf("%x is read as %+v", b, w)
		}
	})
}
