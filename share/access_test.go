package share

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/fault"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/job"
)

// accessLog is what OnAccess got.
type accessLog struct {
	mu  sync.Mutex
	all []Access
}

func (b *accessLog) add(a Access) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, a)
}

// ended are the ends in the order of the names, after it was checked that each has its beginning
// before it.
func (b *accessLog) ended(t *testing.T) (out []Access) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	begun := map[string]int{}
	for _, a := range b.all {
		k := fmt.Sprintf("%p %s %t %v %d", a.Peer, a.Name, a.Upload, a.Begun, a.From)
		if !a.Ended {
			if a.Good != a.From || a.Whole || a.Err != nil || a.Begun.IsZero() {
				t.Errorf("a beginning: %+v", a)
			}
			begun[k]++
			continue
		}
		if begun[k]--; begun[k] < 0 {
			t.Errorf("an end without a beginning: %+v", a)
		}
		if a.Whole != (a.Err == nil) || a.Good > a.Size || a.Good < a.From || a.Whole && a.Good != a.Size {
			t.Errorf("an end: %+v", a)
		}
		out = append(out, a)
	}
	for k, n := range begun {
		if n != 0 {
			t.Errorf("%s has %d beginnings without an end", k, n)
		}
	}
	slices.SortFunc(out, func(a, b Access) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// idle waits until nothing is under way.
func idle(t *testing.T, s *Server) {
	t.Helper()
	ctx := testCtx(t)
	for {
		n, changed := s.UnderWay()
		if n == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("%d are still under way", n)
		}
	}
}

// The server reports what peers read and upload, by name, with its bytes, also when several files
// are open at once.
func TestAccesses(t *testing.T) {
	ctx, root, out := testCtx(t), t.TempDir(), t.TempDir()
	sizes := map[string]int{"a": 5, "b/large": 2*window + 17, "c": 300_000, "empty": 0}
	for name, n := range sizes {
		write(t, filepath.Join(root, name), randomBytes(9, n))
	}
	var b accessLog
	s := serve(t, Options{Root: root, Writable: true, OnAccess: b.add})
	if _, err := Mirror(ctx, s.c, filepath.Join(out, "m"), MirrorOptions{}); err != nil {
		t.Fatal(err)
	}
	idle(t, s.Server)
	ends := b.ended(t)
	if len(ends) != len(sizes) {
		t.Fatalf("%+v", ends)
	}
	for _, a := range ends {
		path := "tcp"
		if a.Size == 0 {
			path = ""
		}
		if n, ok := sizes[a.Name]; !ok || a.Size != uint64(n) || !a.Whole || a.Upload || path != "" && a.Path == "" ||
			a.Peer.Name() != "client" {
			t.Errorf("%+v", a)
		}
	}
	b.all = nil
	var w bytes.Buffer
	sum := sha256.Sum256(randomBytes(9, sizes["c"]))
	f, err := Stream(ctx, s.c, "c", &w, StreamOptions{Expect: &sum})
	if err != nil || f.SHA256 == nil || *f.SHA256 != sum || !bytes.Equal(w.Bytes(), randomBytes(9, sizes["c"])) {
		t.Errorf("%+v, %v", f, err)
	}
	file := filepath.Join(out, "m", "b", "large")
	if _, err := Upload(ctx, s.c, file, "up", UploadOptions{Digest: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := Upload(ctx, s.c, file, "a", UploadOptions{}); !errors.Is(err, ErrExists) { // never begun
		t.Fatal(err)
	}
	if _, err := Find(ctx, s.c, "a"); err != nil { // a lookup makes no call of OnAccess
		t.Fatal(err)
	}
	idle(t, s.Server)
	ends = b.ended(t)
	if len(ends) != 2 || ends[0].Name != "c" || !ends[0].Whole || ends[1].Name != "up" || !ends[1].Upload ||
		!ends[1].Whole || ends[1].Path == "" || ends[1].Size != 2*window+17 {
		t.Errorf("%+v", ends)
	}
	// One that is interrupted, and the next that goes on.
	b.all = nil
	short, cancel := context.WithCancel(ctx)
	_, err = Fetch(short, s.c, "b/large", FetchOptions{Output: filepath.Join(out, "x"), Progress: func(p Progress) {
		if p.File != filepath.Join(out, "x") || p.Name != "b/large" {
			t.Errorf("%+v", p)
		}
		if p.Bytes > 0 {
			cancel()
		}
	}})
	part := (*PartialError)(nil)
	if !errors.As(err, &part) {
		t.Fatal(err)
	}
	if _, err := Fetch(ctx, s.c, "b/large", FetchOptions{Output: filepath.Join(out, "x")}); err != nil {
		t.Fatal(err)
	}
	idle(t, s.Server)
	ends = b.ended(t)
	if len(ends) != 2 || ends[0].Whole || !errors.Is(ends[0].Err, ErrGaveUp) || ends[0].Good != part.Good ||
		!ends[1].Whole || ends[1].From != part.Good {
		t.Errorf("%+v", ends)
	}
}

// For a hostile or dying reader OnAccess gets only what it begins and may read, and an end for each
// beginning.
func TestHostileReader(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	write(t, filepath.Join(root, "x"), make([]byte, 1000))
	var b accessLog
	s := serve(t, Options{Root: root, OnAccess: b.add})
	call := func(r readRequest) error {
		_, err := s.peer.Call(ctx, readService, r.append(nil))
		return err
	}
	for _, raw := range [][]byte{nil, {1}, make([]byte, 100), (&readRequest{op: opReadBegin, text: "\xff"}).append(nil),
		(&readRequest{op: opReadBegin}).append(nil),
		(&readRequest{op: opReadBegin, text: strings.Repeat("x", MaxName+1)}).append(nil),
		(&readRequest{op: 4, text: "x"}).append(nil)} {
		if _, err := s.peer.Call(ctx, readService, raw); !errors.Is(err, control.BadRequest) {
			t.Errorf("%x: %v", raw, err)
		}
	}
	bad := func(what string, r readRequest, want control.Code) {
		t.Helper()
		if err := call(r); !errors.Is(err, want) {
			t.Errorf("%s: %v, expected %v", what, err, want)
		}
	}
	bad("what is not there", readRequest{op: opReadBegin, id: 1, text: "y"}, control.NotFound)
	bad("more than there is", readRequest{op: opReadBegin, id: 1, good: 1001, text: "x"}, control.NotFound)
	bad("not begun", readRequest{op: opReadSoFar, id: 1}, control.BadRequest)
	bad("not begun", readRequest{op: opReadEnd, id: 1}, control.BadRequest)
	if n, _ := s.UnderWay(); n != 0 || len(b.all) != 0 {
		t.Errorf("%d are under way: %+v", n, b.all)
	}
	begin := func(id uint64) {
		t.Helper()
		if err := call(readRequest{op: opReadBegin, id: id, good: 10, text: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	begin(1)
	bad("twice", readRequest{op: opReadBegin, id: 1, text: "x"}, control.BadRequest)
	bad("backwards", readRequest{op: opReadSoFar, id: 1, good: 9}, control.BadRequest)
	bad("beyond the end", readRequest{op: opReadSoFar, id: 1, good: 1001}, control.BadRequest)
	bad("whole in part", readRequest{op: opReadEnd, id: 1, good: 999, whole: true}, control.BadRequest)
	if err := call(readRequest{op: opReadSoFar, id: 1, good: 500}); err != nil {
		t.Error(err)
	}
	if r := s.Snapshot().Reads; len(r) != 1 || r[0] != (ReadSnapshot{"client", "x", 1000, 500}) {
		t.Errorf("%+v", r)
	}
	// Another peer's read is not its own.
	other, err := testNode(t, transfer.Options{Name: "other"}).Dial(ctx, s.node.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Call(ctx, readService, (&readRequest{op: opReadEnd, id: 1, good: 1000,
		whole: true}).append(nil)); !errors.Is(err, control.BadRequest) {
		t.Errorf("another peer ends it: %v", err)
	}
	for id := uint64(2); id <= maxReads; id++ {
		begin(id)
	}
	bad("too many", readRequest{op: opReadBegin, id: maxReads + 1, text: "x"}, control.Busy)
	if n, _ := s.UnderWay(); n != maxReads {
		t.Errorf("%d are under way", n)
	}
	s.peer.Close()
	idle(t, s.Server)
	ends := b.ended(t)
	if len(ends) != maxReads {
		t.Fatalf("%d ends", len(ends))
	}
	high := 0
	for _, a := range ends {
		if a.Whole || a.Err == nil {
			t.Errorf("%+v", a)
		}
		if a.Good == 500 {
			high++
		}
	}
	if high != 1 {
		t.Errorf("%d of them came to 500", high)
	}
}

// A share that is closed ends what is under way.
func TestClosedShareEndsAccesses(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	write(t, filepath.Join(root, "x"), make([]byte, 1000))
	var b accessLog
	s := serve(t, Options{Root: root, OnAccess: b.add})
	if _, err := s.peer.Call(ctx, readService, (&readRequest{op: opReadBegin, id: 1,
		text: "x"}).append(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := Serve(ctx, s.node, Options{Root: root, OnAccess: b.add}); err == nil {
		t.Error("two shares of a node are told of reads")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if ends := b.ended(t); len(ends) != 1 || !errors.Is(ends[0].Err, ErrClosed) {
		t.Errorf("%+v", ends)
	}
}

func FuzzReadWire(f *testing.F) {
	for _, r := range []readRequest{{op: opReadBegin, id: 1, good: 2, text: "a/b"}, {op: opReadSoFar, id: 1, good: 3},
		{op: opReadEnd, id: 1, good: 4, whole: true, text: "tcp"}} {
		f.Add(r.append(nil))
	}
	f.Add((&commitRequest{id: 1, sha256: &[32]byte{1}, via: "tcp"}).append(nil))
	f.Add((&commitRequest{id: 1, sha256: &[32]byte{1}, like: &like{time.Unix(1, 2), 0o640}, via: "tcp"}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseRead(b); err == nil && !bytes.Equal(r.append(nil), b) {
			t.Fatalf("%x is read as %+v", b, r)
		}
		if r, err := parseCommit(b); err == nil && !bytes.Equal(r.append(nil), b) {
			t.Fatalf("%x is read as %+v", b, r)
		}
	})
}

// What was there before stays when what comes is not what was expected.
func TestExpectedDigest(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	content := randomBytes(7, chunkSize+1000)
	right, wrong := sha256.Sum256(content), [32]byte{1}
	write(t, filepath.Join(root, "x"), content)
	s := serve(t, Options{Root: root, Writable: true})
	out := filepath.Join(dir, "out")
	write(t, out, []byte("before"))
	bad := (*DigestError)(nil)
	_, err := Fetch(ctx, s.c, "x", FetchOptions{Output: out, Overwrite: true, Expect: &wrong})
	if !errors.As(err, &bad) || !errors.Is(err, ErrDigest) ||
		*bad != (DigestError{"x", out + MismatchSuffix, wrong, right}) {
		t.Fatal(err)
	}
	same(t, out, []byte("before"))
	same(t, out+MismatchSuffix, content)
	only(t, dir, "out", "out"+MismatchSuffix)
	f, err := Fetch(ctx, s.c, "x", FetchOptions{Output: out, Overwrite: true, Expect: &right})
	if err != nil || *f.SHA256 != right {
		t.Fatal(err)
	}
	same(t, out, content)
	if f, err := Fetch(ctx, s.c, "x", FetchOptions{Output: filepath.Join(dir, "n")}); err != nil || f.SHA256 != nil {
		t.Errorf("%+v, %v", f, err)
	}
	// Uploads: nothing is sent that is not what is expected here,
	if _, err := Upload(ctx, s.c, out, "y", UploadOptions{Expect: &wrong}); !errors.Is(err, ErrDigest) {
		t.Error(err)
	}
	if _, err := Upload(ctx, s.c, out, "y", UploadOptions{Expect: &right}); err != nil {
		t.Error(err)
	}
	same(t, filepath.Join(root, "y"), content)
	// and the other side keeps what it has when it received something else.
	write(t, filepath.Join(root, "z"), []byte("before"))
	sent, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer sent.Close()
	u := &uploader{c: s.c, file: out, f: sent, beginRequest: beginRequest{overwrite: true, claim: claim{name: "z"}}}
	if err := u.open(); err != nil {
		t.Fatal(err)
	}
	defer u.region.Close()
	u.sha256 = &wrong
	if err := u.run(ctx); !errors.Is(err, control.Integrity) || !errors.Is(peerError(err), ErrDigest) {
		t.Errorf("the other side took it: %v", err)
	}
	same(t, filepath.Join(root, "z"), []byte("before"))
	only(t, filepath.Join(root, stagingDir))
}

// A peer that is refused because another one uploads the same file does not learn which one that
// is.
func TestRefusalsTellNoNames(t *testing.T) {
	ctx, root, file := testCtx(t), t.TempDir(), filepath.Join(t.TempDir(), "f")
	write(t, file, randomBytes(5, 1000))
	s := serve(t, Options{Root: root, Writable: true})
	const secret = "the-secret-name"
	p, err := testNode(t, transfer.Options{Name: secret}).Dial(ctx, s.node.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []claim{{"other", 1000, Tag{1}}, {"same", 1000, idOf(fi).tag()}} {
		r := beginRequest{token: token{1}, claim: c}
		if _, err := p.Call(ctx, uploadService, r.append(nil)); err != nil {
			t.Fatal(err)
		}
		_, err := Upload(ctx, s.c, file, c.name, UploadOptions{})
		if !errors.Is(err, ErrBusy) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// cutLink is a link to a server through a proxy that can be cut.
func cutLink(t *testing.T, s *serving, r job.Retry) (*job.Link, *fault.Proxy) {
	t.Helper()
	proxy, err := fault.NewProxy("tcp", s.node.Addrs()[0][len("tcp://"):], fault.Plan{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	r.First, r.Max = time.Millisecond, 5*time.Millisecond
	l := job.NewLink(testNode(t, transfer.Options{Name: "far"}), "tcp://"+proxy.Addr(), job.LinkOptions{Retry: r})
	t.Cleanup(func() { l.Close() })
	return l, proxy
}

// A mirror whose other side is gone for good does not wait for it again with each file.
func TestMirrorOfAServerThatIsGone(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	const files, attempts, parallel = 60, 5, 2
	for i := range files {
		write(t, filepath.Join(root, fmt.Sprint("f", i)), []byte{byte(i)})
	}
	s := serve(t, Options{Root: root})
	l, proxy := cutLink(t, s, job.Retry{Attempts: attempts})
	m, err := Mirror(ctx, OverLink(l), dir, MirrorOptions{Parallel: parallel, OnFile: func(MirrorFile) {
		proxy.Refuse(true)
		proxy.Cut()
	}})
	if !errors.Is(err, job.ErrGaveUp) || m == nil || m.Fetched+m.Failed != files || m.Failed < files-2*parallel {
		t.Fatalf("%+v, %v", m, err)
	}
	if n := l.Snapshot().Sessions.DialsFailed; n > 3*attempts {
		t.Errorf("dialed %d times", n)
	}
}

// An upload that restarts does so once, not again after each session that is lost.
func TestUploadAnewOverALink(t *testing.T) {
	ctx, root, file := testCtx(t), t.TempDir(), filepath.Join(t.TempDir(), "f")
	b := randomBytes(6, crashSize)
	write(t, file, b)
	s := serve(t, Options{Root: root, Writable: true})
	l, proxy := cutLink(t, s, job.Retry{Attempts: -1})
	cuts, last := 0, uint64(0)
	u, err := Upload(ctx, OverLink(l), file, "x", UploadOptions{NoResume: true, Progress: func(p Progress) {
		if p.Bytes < last {
			t.Errorf("%d after %d", p.Bytes, last)
		}
		if last = p.Bytes; last > 0 && cuts < 2 {
			cuts++
			proxy.Cut()
		}
	}})
	if err != nil || cuts != 2 || u.Resumed != 0 {
		t.Fatalf("%+v, %d cuts, %v", u, cuts, err)
	}
	same(t, filepath.Join(root, "x"), b)
}

// A fetch that goes on over another session reports its reads there, too.
func TestAccessOverSessions(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	content := randomBytes(6, crashSize)
	write(t, filepath.Join(root, "x"), content)
	var b accessLog
	s := serve(t, Options{Root: root, OnAccess: b.add})
	l, proxy := cutLink(t, s, job.Retry{Attempts: -1})
	out := filepath.Join(t.TempDir(), "x")
	cut := uint64(0)
	if _, err := Fetch(ctx, OverLink(l), "x", FetchOptions{Output: out, Progress: func(p Progress) {
		if p.Bytes > 0 && cut == 0 {
			cut = p.Bytes
			proxy.Cut()
		}
	}}); err != nil || cut == 0 {
		t.Fatal(err, cut)
	}
	same(t, out, content)
	idle(t, s.Server)
	whole := 0
	for _, a := range b.ended(t) { // the first session may have been too short to say anything
		switch {
		case a.Whole && a.From >= cut && a.Path != "":
			whole++
		case a.Whole || !errors.Is(a.Err, transfer.ErrPeerLost):
			t.Errorf("%+v", a)
		}
	}
	if whole != 1 {
		t.Errorf("%d of them were whole", whole)
	}
}
