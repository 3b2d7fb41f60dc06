package share

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

func FuzzUploadWire(f *testing.F) {
	r := beginRequest{overwrite: true, token: token{1}, claim: claim{"a", 7, Tag{2}}}
	f.Add(r.append(nil))
	a := beginAnswer{state: stateReady, id: 1, good: 2}
	f.Add(a.append(nil))
	f.Add(appendRoomAnswer(nil, path.Desc{Key: path.Key{Index: 1}, Size: 7}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseBegin(b); err == nil && !bytes.Equal(r.append(nil), b) {
			t.Fatalf("%x is read as %+v", b, r)
		}
		if a, ok := parseBeginAnswer(b); ok && !bytes.Equal(a.append(nil), b) {
			t.Fatalf("%x is read as %+v", b, a)
		}
		if d, ok := parseRoomAnswer(b); ok && !bytes.Equal(appendRoomAnswer(nil, d), b) {
			t.Fatalf("%x is read as %+v", b, d)
		}
	})
}

// TestHostileUploader talks to the upload service by hand.
func TestHostileUploader(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	s := serve(t, Options{Root: root, Writable: true})
	second := testNode(t, transfer.Options{Name: "second"})
	other, err := second.Dial(ctx, s.node.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	call := func(p *transfer.Peer, b []byte) ([]byte, error) { return p.Call(ctx, uploadService, b) }
	for _, b := range [][]byte{nil, {0}, {opBegin}, make([]byte, 100), {opVerified, 1}, {opCommit}, appendVerified(nil,
		1, 1), append((&commitRequest{id: 1}).append(nil), make([]byte, maxVia+1)...),
		(&commitRequest{id: 1}).append(nil)[:25], {9, 9, 9}} {
		if a, err := call(s.peer, b); err == nil {
			t.Errorf("%x is answered with %x", b, a)
		}
	}
	// Sizes that no file has take nothing.
	for _, size := range []uint64{1 << 63, ^uint64(0), 1 << 62} {
		r := beginRequest{claim: claim{"huge", size, Tag{}}}
		if _, err := call(s.peer, r.append(nil)); err == nil {
			t.Errorf("%d bytes are taken", size)
		}
	}
	only(t, filepath.Join(root, stagingDir))
	const size = 2*chunkSize + 5
	begin := func(p *transfer.Peer, r beginRequest) (beginAnswer, error) {
		b, err := call(p, r.append(nil))
		if err != nil {
			return beginAnswer{}, err
		}
		a, ok := parseBeginAnswer(b)
		if !ok || a.state != stateReady {
			t.Fatalf("%x", b)
		}
		return a, nil
	}
	r := beginRequest{token: token{1}, claim: claim{"x", size, Tag{1}}}
	a, err := begin(s.peer, r)
	if err != nil {
		t.Fatal(err)
	}
	region, err := mem.Alloc(mem.Options{Size: size})
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	room := func(p *transfer.Peer, a beginAnswer) path.Desc {
		t.Helper()
		b, err := call(p, appendRoom(nil, a.id, 0))
		d, ok := parseRoomAnswer(b)
		if err != nil || !ok || d.Size != size {
			t.Fatalf("%x, %v", b, err)
		}
		return d
	}
	put := func(p *transfer.Peer, d path.Desc) error {
		t, err := p.Put(ctx, []path.Copy{p.Import(d).At(0, mem.Span{Region: region, Len: size})}, transfer.PutOptions{})
		if err != nil {
			return err
		}
		return t.Wait(ctx)
	}
	// Another peer, which knows the key, can neither write there nor end it, nor take the name with
	// another file.
	d := room(s.peer, a)
	if err := put(other, d); !errors.Is(err, path.ErrKey) {
		t.Errorf("another peer's put: %v", err)
	}
	for _, b := range [][]byte{appendVerified(nil, a.id, size), appendRoom(nil, a.id, 0),
		(&commitRequest{id: a.id, digest: [16]byte{}}).append(nil)} {
		if _, err := call(other, b); !errors.Is(err, control.NotFound) {
			t.Errorf("another peer's request: %v", err)
		}
	}
	if _, err := begin(other, beginRequest{token: token{2}, claim: claim{"x", 7, Tag{9}}}); !errors.Is(err,
		control.Busy) {
		t.Errorf("another peer's file: %v", err)
	}
	// A commit of what is not there fails, and the upload with it; no file appears.
	if _, err := call(s.peer, (&commitRequest{id: a.id, digest: [16]byte{}}).append(nil)); !errors.Is(err,
		control.NotPermitted) {
		t.Errorf("commit of nothing: %v", err)
	}
	// Bytes that are acknowledged before they are there are what lies there, and the digest says
	// that they are not the file's.
	if a, err = begin(s.peer, r); err != nil {
		t.Fatal(err)
	}
	room(s.peer, a)
	if b, err := call(s.peer, appendVerified(nil, a.id, ^uint64(0))); err != nil || binary.BigEndian.Uint64(b) != size {
		t.Fatalf("%x, %v", b, err)
	}
	if _, err := call(s.peer, (&commitRequest{id: a.id, digest: [16]byte{1}}).append(nil)); err == nil {
		t.Error("a wrong digest is taken")
	}
	if _, err := os.Lstat(filepath.Join(root, "x")); err == nil {
		t.Error("the file is there")
	}
	// After the commit nothing can be written any more.
	if a, err = begin(s.peer, r); err != nil {
		t.Fatal(err)
	}
	d = room(s.peer, a)
	if err := put(s.peer, d); err != nil {
		t.Fatal(err)
	}
	if _, err := call(s.peer, appendVerified(nil, a.id, size)); err != nil {
		t.Fatal(err)
	}
	u := uploader{beginRequest: r, region: region}
	if err := u.checksums(chunksOf(size)); err != nil {
		t.Fatal(err)
	}
	if b, err := call(s.peer, (&commitRequest{id: a.id, digest: digestOf(u.sums)}).append(nil)); err != nil ||
		len(b) != 1 || b[0] != 1 {
		t.Fatalf("%x, %v", b, err)
	}
	if err := put(s.peer, d); err == nil {
		t.Error("a put after the commit succeeded")
	}
	same(t, filepath.Join(root, "x"), make([]byte, size))
	// The same request again, as after a lost answer, gets the answer that it is complete.
	if b, err := call(s.peer, r.append(nil)); err != nil || len(b) != 1 || b[0] != stateComplete {
		t.Errorf("%x, %v", b, err)
	}
	only(t, filepath.Join(root, stagingDir))
}

// TestUploadResumes interrupts an upload and goes on by another call, by another peer, and with
// another file.
func TestUploadResumes(t *testing.T) {
	ctx, root, local := testCtx(t), t.TempDir(), t.TempDir()
	s := serve(t, Options{Root: root, Writable: true})
	file := filepath.Join(local, "f")
	content := randomBytes(3, crashSize)
	write(t, file, content)
	interrupt := func(c Conn) *PartialError {
		t.Helper()
		short, cancel := context.WithCancel(ctx)
		defer cancel()
		_, err := Upload(short, c, file, "x", UploadOptions{Progress: func(p Progress) {
			if p.Bytes > p.Start {
				cancel()
			}
		}})
		e := (*PartialError)(nil)
		if !errors.As(err, &e) || !errors.Is(err, context.Canceled) || e.Good == 0 || e.Good >= e.Size {
			t.Fatal(err)
		}
		if _, err := os.Lstat(filepath.Join(root, "x")); err == nil {
			t.Fatal("a file that is not complete is there")
		}
		return e
	}
	e := interrupt(s.c)
	second := testNode(t, transfer.Options{Name: "second"})
	other, err := second.Dial(ctx, s.node.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	again := interrupt(Over(other)) // while the first peer is still there
	if again.Good <= e.Good {
		t.Errorf("%d after %d", again.Good, e.Good)
	}
	other.Close()
	u, err := Upload(ctx, s.c, file, "x", UploadOptions{})
	if err != nil || u.Resumed != again.Good || u.Moved != crashSize-again.Good {
		t.Fatalf("%+v, %v", u, err)
	}
	same(t, filepath.Join(root, "x"), content)
	// A part of another content does not count.
	if err := os.Remove(filepath.Join(root, "x")); err != nil {
		t.Fatal(err)
	}
	interrupt(s.c)
	content = randomBytes(4, crashSize)
	write(t, file, content)
	u, err = Upload(ctx, s.c, file, "x", UploadOptions{})
	if err != nil || u.Resumed != 0 {
		t.Fatalf("%+v, %v", u, err)
	}
	same(t, filepath.Join(root, "x"), content)
	only(t, filepath.Join(root, stagingDir))
}

// TestUploadsOfOneName lets several peers upload different files under one name at once: one of
// them wins, whole.
func TestUploadsOfOneName(t *testing.T) {
	ctx, root, local := testCtx(t), t.TempDir(), t.TempDir()
	s := serve(t, Options{Root: root, Writable: true})
	var wg sync.WaitGroup
	won := make(chan []byte, 4)
	for i := range 4 {
		file := filepath.Join(local, string(rune('a'+i)))
		content := randomBytes(uint64(i), 2*chunkSize+i)
		write(t, file, content)
		n := testNode(t, transfer.Options{})
		p, err := n.Dial(ctx, s.node.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			_, err := Upload(ctx, Over(p), file, "x", UploadOptions{})
			switch {
			case err == nil:
				won <- content
			case !errors.Is(err, ErrBusy) && !errors.Is(err, ErrExists):
				t.Errorf("%v", err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d uploads succeeded", len(won))
	}
	same(t, filepath.Join(root, "x"), <-won)
}

func TestOldPartialUploadsAreRemoved(t *testing.T) {
	ctx, root, local := testCtx(t), t.TempDir(), t.TempDir()
	s := serve(t, Options{Root: root, Writable: true, KeepPartial: time.Hour})
	file := filepath.Join(local, "f")
	write(t, file, randomBytes(3, crashSize))
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	if _, err := Upload(short, s.c, file, "x", UploadOptions{Progress: func(p Progress) {
		if p.Bytes > 0 {
			cancel()
		}
	}}); err == nil {
		t.Fatal("not interrupted")
	}
	staging, base := filepath.Join(root, stagingDir), partialBase(s.peer, "x")
	look := func(want ...string) {
		t.Helper()
		if err := s.Rescan(ctx); err != nil {
			t.Fatal(err)
		}
		only(t, staging, want...)
	}
	look(base+PartialSuffix, base+StateSuffix)
	old := time.Now().Add(-2 * time.Hour)
	for _, suffix := range []string{PartialSuffix, StateSuffix} {
		if err := os.Chtimes(filepath.Join(staging, base+suffix), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Snapshot(); n.Uploads != nil {
		t.Errorf("%+v", n) // the uploader has said that it gives up
	}
	p, err := openAt(t, filepath.Join(staging, base), claim{"x", crashSize, Tag{}}, true)
	if err != nil {
		t.Fatal(err)
	}
	look(base+PartialSuffix, base+StateSuffix) // as if another process went on with it
	p.close()
	for _, suffix := range []string{PartialSuffix, StateSuffix} {
		if err := os.Chtimes(filepath.Join(staging, base+suffix), old, old); err != nil {
			t.Fatal(err)
		}
	}
	look()
}

// TestPlantedWhileItRuns swaps a directory for a symbolic link that leads out, and files for links,
// while files are mirrored and uploaded there, again and again: the share never touches anything
// outside.
func TestPlantedWhileItRuns(t *testing.T) {
	ctx, root, out, local := testCtx(t), t.TempDir(), t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "d", "x"), []byte("new"))
	victim := filepath.Join(out, "x")
	write(t, victim, []byte("old"))
	write(t, filepath.Join(local, "f"), []byte("new"))
	s := serve(t, Options{Root: root})
	for _, up := range []bool{false, true} {
		dir := t.TempDir()
		target := serve(t, Options{Root: dir, Writable: true})
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
				}
				d := filepath.Join(dir, "d")
				os.Rename(d, d+"~")
				os.Symlink(out, d)
				os.Remove(d)
				os.Rename(d+"~", d)
				for _, suffix := range []string{"", PartialSuffix, StateSuffix} {
					os.Symlink(victim, filepath.Join(d, "x"+suffix))
					os.Remove(filepath.Join(d, "x"+suffix))
				}
			}
		}()
		for range 100 {
			if up {
				Upload(ctx, target.c, filepath.Join(local, "f"), "d/x", UploadOptions{Overwrite: true})
			} else {
				Mirror(ctx, s.c, dir, MirrorOptions{})
			}
		}
		close(stop)
		<-done
		same(t, victim, []byte("old"))
		only(t, out, "x")
	}
}
