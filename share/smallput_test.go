package share

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

// smallBatch puts a batch by hand: content by name, in the order of names.
func smallBatch(t *testing.T, p *transfer.Peer, r *smallRequest, names []string, content ...string) ([]byte, error) {
	t.Helper()
	ctx := testCtx(t)
	b, err := p.Call(ctx, smallService, []byte{opSmallRoom})
	if err != nil {
		return nil, err
	}
	room, ok := parseRoomAnswer(b)
	if !ok || room.Size != batchBytes {
		t.Fatalf("%x", b)
	}
	return smallBatchIn(t, p, room, r, names, content...)
}

// smallBatchIn is smallBatch in a room that is there.
func smallBatchIn(t *testing.T, p *transfer.Peer, room path.Desc, r *smallRequest, names []string,
	content ...string) ([]byte, error) {
	t.Helper()
	ctx := testCtx(t)
	m, err := mem.Alloc(mem.Options{Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	text := strings.Join(content, "")
	copy(m.All().Bytes(), text)
	x, err := p.Put(ctx, []path.Copy{p.Import(room).At(0, mem.Span{Region: m, Len: uint64(len(text))})},
		transfer.PutOptions{})
	if err == nil {
		err = x.Wait(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.key, r.files = room.Key, nil
	for i, n := range names {
		r.files = append(r.files, smallPut{n, uint32(len(content[i])), vec.CRC32C(0, []byte(content[i])),
			like{time.Unix(1_500_000_000, 0), 0o755}})
	}
	return p.Call(ctx, smallService, r.append(nil))
}

// TestSmallPut puts batches by hand: each file has its own answer, the same token the same answers,
// and a room is good once.
func TestSmallPut(t *testing.T) {
	root := t.TempDir()
	var b accessLog
	refuse := func(_ *transfer.Peer, name string, _ uint64) error {
		if name == "refused" {
			return errors.New("no")
		}
		return nil
	}
	s := serve(t, Options{Root: root, Writable: true, MayUpload: refuse, MaxBytes: 1000 + dirBytes, OnAccess: b.add})
	write(t, filepath.Join(root, "there"), []byte("there"))
	write(t, filepath.Join(root, "other"), []byte("other"))
	out := t.TempDir()
	if err := errors.Join(os.Symlink(out, filepath.Join(root, "dir")),
		os.Symlink(filepath.Join(out, "f"), filepath.Join(root, "link"))); err != nil {
		t.Fatal(err)
	}
	names := []string{"a", "b/c", "b/empty", "there", "other", "refused", "dir/f", "link", "../up", "/abs", "large",
		"a"}
	content := []string{"1", "22", "", "there", "OTHER", "x", "evil", "evil", "up", "abs", strings.Repeat("x", 1001),
		"again"}
	want := []byte{smallDone, smallDone, smallDone, smallSame, smallNot, smallNot, smallNot, smallNot, smallNot,
		smallNot, smallNot, smallNot}
	r := &smallRequest{token: token{1}, via: "tcp"}
	got, err := smallBatch(t, s.peer, r, names, content...)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%v, %v, expected %v", got, err, want)
	}
	key := r.key
	if got, err := smallBatch(t, s.peer, r, names, content...); err != nil || !bytes.Equal(got, want) {
		t.Errorf("with the same token: %v, %v", got, err)
	}
	r.token, r.key = token{2}, key
	if _, err := s.peer.Call(testCtx(t), smallService, r.append(nil)); !errors.Is(err, control.NotFound) {
		t.Errorf("a room that was used: %v", err)
	}
	same(t, filepath.Join(root, "a"), []byte("1"))
	same(t, filepath.Join(root, "b/c"), []byte("22"))
	same(t, filepath.Join(root, "other"), []byte("other"))
	only(t, out)
	only(t, filepath.Join(root, stagingDir))
	fi, err := os.Stat(filepath.Join(root, "a"))
	if err != nil || fi.Mode() != 0o755 || !fi.ModTime().Equal(time.Unix(1_500_000_000, 0)) {
		t.Errorf("%v of %v, %v", fi.Mode(), fi.ModTime(), err)
	}
	idle(t, s.Server)
	var uploaded []string
	for _, a := range b.ended(t) {
		uploaded = append(uploaded, a.Name)
		if !a.Upload || !a.Whole || a.Path != "tcp" {
			t.Errorf("%+v", a)
		}
	}
	slices.Sort(uploaded)
	if !slices.Equal(uploaded, []string{"a", "b/c", "b/empty"}) {
		t.Errorf("%q were uploaded", uploaded)
	}
	if e, err := Find(testCtx(t), s.c, "b/c"); err != nil || e.Size != 2 {
		t.Errorf("%+v, %v", e, err)
	}
	// What is replaced keeps its permissions.
	if err := os.Chmod(filepath.Join(root, "other"), 0o666); err != nil {
		t.Fatal(err)
	}
	if got, err := smallBatch(t, s.peer, &smallRequest{token: token{3}, overwrite: true}, []string{"other"},
		"anew"); err != nil || got[0] != smallDone {
		t.Errorf("%v, %v", got, err)
	}
	if fi, err := os.Stat(filepath.Join(root, "other")); err != nil || fi.Mode() != 0o666 || fi.Size() != 4 {
		t.Errorf("%v, %v", fi, err)
	}
	// Bytes that are others than what was said are no file.
	r = &smallRequest{token: token{4}}
	if _, err := smallBatch(t, s.peer, r, []string{"x"}, "12"); err != nil {
		t.Fatal(err)
	}
	b2, err := s.peer.Call(testCtx(t), smallService, []byte{opSmallRoom})
	if err != nil {
		t.Fatal(err)
	}
	room, _ := parseRoomAnswer(b2)
	r.key, r.token, r.files[0].name = room.Key, token{5}, "damaged" // nothing was put into this room
	if got, err := s.peer.Call(testCtx(t), smallService, r.append(nil)); err != nil || got[0] != smallNot {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(root, "damaged")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestSmallRooms asks for more rooms than one peer has, uses that of another peer, and comes
// without the right to write.
func TestSmallRooms(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	s := serve(t, Options{Root: root, Writable: true})
	before := len(s.node.Snapshot().Exports)
	var rooms []path.Desc
	for range maxRoomsOfOne {
		b, err := s.peer.Call(ctx, smallService, []byte{opSmallRoom})
		if err != nil {
			t.Fatal(err)
		}
		d, _ := parseRoomAnswer(b)
		rooms = append(rooms, d)
	}
	if _, err := s.peer.Call(ctx, smallService, []byte{opSmallRoom}); !errors.Is(err, control.Busy) {
		t.Errorf("one room more: %v", err)
	}
	other, err := testNode(t, transfer.Options{Name: "other"}).Dial(ctx, s.node.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	r := &smallRequest{token: token{1}, key: rooms[0].Key, files: []smallPut{{name: "x"}}}
	if _, err := other.Call(ctx, smallService, r.append(nil)); !errors.Is(err, control.NotFound) {
		t.Errorf("a room of another peer: %v", err)
	}
	s.uploads.mu.Lock()
	s.uploads.idle = 0
	s.uploads.mu.Unlock()
	for { // those that nothing came to give way
		if _, err := s.peer.Call(ctx, smallService, []byte{opSmallRoom}); err == nil {
			break
		} else if !errors.Is(err, control.Busy) {
			t.Fatal(err)
		}
	}
	s.peer.Close() // gives the rooms back
	for {
		if len(s.node.Snapshot().Exports) == before {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the rooms of a peer that is gone stay")
		}
	}
	n := testNode(t, transfer.Options{Name: "closed", Anonymous: identity.List | identity.Read,
		Listen: []string{"tcp://127.0.0.1:0"}})
	closed, err := Serve(ctx, n, Options{Root: root, Writable: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed.Close() })
	p, err := testNode(t, transfer.Options{Name: "client"}).Dial(ctx, n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Call(ctx, smallService, []byte{opSmallRoom}); !errors.Is(err, control.NotPermitted) {
		t.Errorf("without the right to write: %v", err)
	}
}

// TestSmallPutQuota puts batches until the share is full: not one file more is taken.
func TestSmallPutQuota(t *testing.T) {
	root := t.TempDir()
	s := serve(t, Options{Root: root, Writable: true, MaxFiles: 7, MaxBytes: 100})
	var names, content []string
	for i := range 10 {
		names, content = append(names, fmt.Sprint(i)), append(content, "0123456789")
	}
	got, err := smallBatch(t, s.peer, &smallRequest{token: token{1}}, names, content...)
	if n := bytes.Count(got, []byte{smallDone}); err != nil || n != 7 {
		t.Errorf("%d of 10 files are taken, expected 7 (%v)", n, err)
	}
	s = serve(t, Options{Root: t.TempDir(), Writable: true, MaxBytes: 35})
	got, err = smallBatch(t, s.peer, &smallRequest{token: token{1}}, names, content...)
	if n := bytes.Count(got, []byte{smallDone}); err != nil || n != 3 {
		t.Errorf("%d of 10 files are taken, expected 3 (%v)", n, err)
	}
}

// TestSmallRoomsUntilGivenBack uses rooms whose memory is not given back yet, as when a peer does
// not confirm that it cannot write any more: they count.
func TestSmallRoomsUntilGivenBack(t *testing.T) {
	ctx := testCtx(t)
	s := serve(t, Options{Root: t.TempDir(), Writable: true})
	c := testNode(t, transfer.Options{Name: "slow"})
	p, err := c.Dial(ctx, s.node.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	peers := s.node.Peers()
	there := slices.IndexFunc(peers, func(p *transfer.Peer) bool { return p.Name() == "slow" })
	if there < 0 {
		t.Fatal(peers)
	}
	c.AcceptQueues("q")
	// of which the owner does not poll: that holds up as well
	q, err := peers[there].OpenQueue(ctx, transfer.QueueOptions{Name: "q"})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for i := range maxRoomsOfOne {
		if got, err := smallBatch(t, p, &smallRequest{token: token{byte(i)}}, []string{fmt.Sprint(i)},
			""); err != nil || got[0] != smallDone {
			t.Fatal(i, got, err)
		}
	}
	if _, err := p.Call(ctx, smallService, []byte{opSmallRoom}); !errors.Is(err, control.Busy) {
		t.Errorf("one room more: %v", err)
	}
}

// TestSmallRoomKept puts two batches through one room, and ends it: by a batch, by a call, and
// where the answer is an error.
func TestSmallRoomKept(t *testing.T) {
	ctx := testCtx(t)
	s := serve(t, Options{Root: t.TempDir(), Writable: true})
	before := len(s.node.Snapshot().Exports)
	ask := func() path.Desc {
		b, err := s.peer.Call(ctx, smallService, []byte{opSmallRoom})
		if err != nil {
			t.Fatal(err)
		}
		d, _ := parseRoomAnswer(b)
		return d
	}
	ended := func(what string, d path.Desc) {
		t.Helper()
		r := &smallRequest{token: token{99}, key: d.Key, files: []smallPut{{name: "late"}}}
		if _, err := s.peer.Call(ctx, smallService, r.append(nil)); !errors.Is(err, control.NotFound) {
			t.Errorf("a batch in a room that ended by %s: %v", what, err)
		}
	}
	room := ask()
	for i, keep := range []bool{true, true, false} {
		r := &smallRequest{token: token{byte(i)}, keep: keep}
		if got, err := smallBatchIn(t, s.peer, room, r, []string{fmt.Sprint("a", i)},
			fmt.Sprint("content", i)); err != nil || got[0] != smallDone {
			t.Fatal(i, got, err)
		}
		same(t, filepath.Join(s.o.Root, fmt.Sprint("a", i)), []byte(fmt.Sprint("content", i)))
	}
	ended("a batch", room)
	room = ask()
	again := &smallRequest{token: token{0}, keep: true, key: room.Key, files: []smallPut{{name: "a0"}}}
	for range 2 { // with the token of a batch that was dealt with
		if got, err := s.peer.Call(ctx, smallService, again.append(nil)); err != nil || got[0] != smallDone {
			t.Errorf("%v, %v", got, err)
		}
	}
	other, err := testNode(t, transfer.Options{Name: "other"}).Dial(ctx, s.node.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	two := ask()
	end := two.Key.Append(room.Key.Append([]byte{opSmallEnd}))
	if _, err := other.Call(ctx, smallService, end); err != nil { // it has no such rooms
		t.Error(err)
	}
	if got, err := smallBatchIn(t, s.peer, room, &smallRequest{token: token{10}, keep: true}, []string{"b"},
		"b"); err != nil || got[0] != smallDone {
		t.Errorf("after another peer would end the room: %v, %v", got, err)
	}
	if _, err := s.peer.Call(ctx, smallService, end); err != nil {
		t.Error(err)
	}
	ended("a call", room)
	ended("a call", two)
	for _, b := range [][]byte{end[:len(end)-1], append(end, make([]byte, maxRoomsOfOne*path.KeySize)...)} {
		if _, err := s.peer.Call(ctx, smallService, b); !errors.Is(err, control.BadRequest) {
			t.Errorf("%d bytes: %v", len(b), err)
		}
	}
	room = ask()
	if err := os.WriteFile(filepath.Join(s.o.Root, stagingDir+"x"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(s.o.Root, stagingDir)),
		os.Rename(filepath.Join(s.o.Root, stagingDir+"x"), filepath.Join(s.o.Root, stagingDir))); err != nil {
		t.Fatal(err)
	}
	if _, err := smallBatchIn(t, s.peer, room, &smallRequest{token: token{11}, keep: true}, []string{"c"},
		"c"); err == nil {
		t.Error("a batch without a place for files under way")
	}
	ended("an error", room)
	for len(s.node.Snapshot().Exports) > before {
		if ctx.Err() != nil {
			t.Fatal("rooms that ended stay")
		}
	}
}

// TestTreeEndsItsRooms uploads more batches than are under way at once, several times in one
// session: no room stays.
func TestTreeEndsItsRooms(t *testing.T) {
	ctx := testCtx(t)
	local := t.TempDir()
	for i := range 2*putsAtOnce*batchBytes/smallFile + 1 {
		f := filepath.Join(local, fmt.Sprint(i))
		write(t, f, []byte{byte(i)})
		if err := os.Truncate(f, smallFile); err != nil {
			t.Fatal(err)
		}
	}
	s := serve(t, Options{Root: t.TempDir(), Writable: true, KeepFree: KeepNoneFree})
	for range 3 {
		if _, u, err := uploadTree(t, s.c, TreeOptions{}, TreeSource{local, ""}); err != nil || u.Failed != 0 {
			t.Fatalf("%+v, %v", u, err)
		}
		rooms := func() int {
			s.uploads.mu.Lock()
			defer s.uploads.mu.Unlock()
			return len(s.uploads.small.rooms)
		}
		for rooms() > 0 {
			if ctx.Err() != nil {
				t.Fatalf("%d rooms stay", rooms())
			}
		}
	}
}

// TestSmallPutTooLarge has a batch announce more bytes than a room has: its names stay free.
func TestSmallPutTooLarge(t *testing.T) {
	s := serve(t, Options{Root: t.TempDir(), Writable: true})
	b, err := s.peer.Call(testCtx(t), smallService, []byte{opSmallRoom})
	if err != nil {
		t.Fatal(err)
	}
	room, _ := parseRoomAnswer(b)
	r := &smallRequest{token: token{1}, key: room.Key, files: []smallPut{{name: "a"}}}
	for i := range batchBytes/smallFile + 1 {
		r.files = append(r.files, smallPut{name: fmt.Sprint(i), size: smallFile})
	}
	if _, err := s.peer.Call(testCtx(t), smallService, r.append(nil)); !errors.Is(err, control.BadRequest) {
		t.Errorf("%d bytes: %v", batchBytes+smallFile, err)
	}
	if got, err := smallBatch(t, s.peer, &smallRequest{token: token{2}}, []string{"a"}, "1"); err != nil ||
		got[0] != smallDone {
		t.Errorf("%v, %v", got, err)
	}
}

// TestSmallPutCountsPartials puts a batch under the name of a partial upload, which stays and
// counts against the bytes.
func TestSmallPutCountsPartials(t *testing.T) {
	root := t.TempDir()
	s := serve(t, Options{Root: root, Writable: true, MaxBytes: 100})
	write(t, filepath.Join(root, stagingDir, partialBase(s.peer, "x")+PartialSuffix), make([]byte, 90))
	if err := s.Rescan(testCtx(t)); err != nil {
		t.Fatal(err)
	}
	got, err := smallBatch(t, s.peer, &smallRequest{token: token{1}}, []string{"x", "y"}, "12345", "0123456789")
	if err != nil || !bytes.Equal(got, []byte{smallDone, smallNot}) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestSmallPutAndClose closes a share while it deals with a batch: no file comes after Close.
func TestSmallPutAndClose(t *testing.T) {
	root := t.TempDir()
	began, release, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s := serve(t, Options{Root: root, Writable: true, MayUpload: func(*transfer.Peer, string, uint64) error {
		close(began)
		<-release
		return nil
	}})
	answered := make(chan error)
	go func() {
		_, err := smallBatch(t, s.peer, &smallRequest{token: token{1}}, []string{"a"}, "1")
		answered <- err
	}()
	<-began
	go func() {
		s.Close()
		close(closed)
	}()
	<-s.ctx.Done()
	select {
	case <-closed:
		t.Error("Close has not waited")
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	<-closed
	if _, err := os.Stat(filepath.Join(root, "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	<-answered
}

// TestTreeOfSmallFiles uploads more small files than a batch has, with their times, and again after
// some have changed on the way.
func TestTreeOfSmallFiles(t *testing.T) {
	root, local := t.TempDir(), t.TempDir()
	at := time.Unix(1_400_000_000, 5000)
	content := map[string][]byte{}
	for i := range batchFiles + 50 {
		n := fmt.Sprintf("d%d/%03d", i%7, i)
		content[n] = randomBytes(uint64(i), i*31%9000)
		write(t, filepath.Join(local, n), content[n])
		if err := os.Chtimes(filepath.Join(local, n), at, at); err != nil {
			t.Fatal(err)
		}
	}
	content["large"] = randomBytes(1, smallFile+1)
	write(t, filepath.Join(local, "large"), content["large"])
	if err := errors.Join(os.Chmod(filepath.Join(local, "large"), 0o750),
		os.Chtimes(filepath.Join(local, "large"), at, at)); err != nil {
		t.Fatal(err)
	}
	s := serve(t, Options{Root: root, Writable: true})
	for _, kept := range []int{0, len(content)} {
		_, u, err := uploadTree(t, s.c, TreeOptions{}, TreeSource{local, "run/"})
		if err != nil || u.Kept != kept || u.Sent != len(content)-kept {
			t.Fatalf("%+v, %v", u, err)
		}
	}
	for n, b := range content {
		same(t, filepath.Join(root, "run", n), b)
		if fi, err := os.Stat(filepath.Join(root, "run", n)); err != nil || !fi.ModTime().Equal(at) {
			t.Errorf("%s: %v, %v", n, fi.ModTime(), err)
		}
	}
	if fi, err := os.Stat(filepath.Join(root, "run/large")); err != nil || fi.Mode() != 0o750 {
		t.Errorf("%v, %v", fi, err)
	}
}

func FuzzSmallWire(f *testing.F) {
	r := smallRequest{overwrite: true, token: token{1}, via: "tcp", files: []smallPut{{"a", 1, 2,
		like{time.Unix(3, 4), 0o644}}, {strings.Repeat("x", MaxName), 0, 0, like{time.Unix(0, 0), 0}}}}
	f.Add(r.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseSmall(b)
		if err != nil {
			return
		}
		again := r.append(nil)
		if q, err := parseSmall(again); err != nil || len(again) != len(b) || !bytes.Equal(q.append(nil), again) {
			t.Errorf("%x is read and written as %x", b, again)
		}
	})
}
