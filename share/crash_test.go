package share

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/job"
)

const crashSize = 3*window + chunkSize + 999

// TestFetchResumes ends fetches in the middle by cancellation, by a failing disk and by a lost
// peer.
func TestFetchResumes(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	content := randomBytes(6, crashSize)
	write(t, filepath.Join(root, "x"), content)
	s := serve(t, Options{Root: root})
	dir := t.TempDir()
	out := filepath.Join(dir, "x")
	var good uint64
	for range 2 {
		short, cancel := context.WithCancel(ctx)
		_, err := Fetch(short, s.c, "x", FetchOptions{Output: out, Progress: func(p Progress) {
			if p.Start != good {
				t.Errorf("begins at %d, expected %d", p.Start, good)
			}
			if p.Bytes > p.Start {
				cancel()
			}
		}})
		cancel()
		e := (*PartialError)(nil)
		if !errors.As(err, &e) || !errors.Is(err, context.Canceled) || e.Good <= good || e.Good >= e.Size ||
			e.Size != crashSize || e.Partial != out+PartialSuffix {
			t.Fatalf("%v", err)
		}
		good = e.Good
		only(t, dir, "x"+PartialSuffix, "x"+StateSuffix)
	}
	f, err := Fetch(ctx, s.c, "x", FetchOptions{Output: out})
	if err != nil {
		t.Fatal(err)
	}
	if f.Resumed != good || f.Moved != crashSize-good {
		t.Errorf("%+v after %d", f, good)
	}
	same(t, out, content)
	only(t, dir, "x")
}

// TestFetchOfChangedContent resumes what has another content now, and fetches what changes
// meanwhile.
func TestFetchOfChangedContent(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	file := filepath.Join(root, "x")
	old, other := randomBytes(1, 4*window), randomBytes(2, 4*window)
	write(t, file, old)
	s := serve(t, Options{Root: root})
	dir := t.TempDir()
	out := filepath.Join(dir, "x")
	replace := func(b []byte) {
		write(t, file+"~", b)
		if err := os.Rename(file+"~", file); err != nil {
			t.Error(err)
		}
	}
	stop := errors.New("enough")
	interrupt := func() {
		short, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		_, err := Fetch(short, s.c, "x", FetchOptions{Output: out, Progress: func(p Progress) {
			if p.Bytes > p.Start {
				cancel(stop)
			}
		}})
		if e := (*PartialError)(nil); !errors.As(err, &e) || !errors.Is(err, stop) {
			t.Fatal(err)
		}
	}
	interrupt()
	replace(other)
	f, err := Fetch(ctx, s.c, "x", FetchOptions{Output: out})
	if err != nil || f.Resumed != 0 || f.Moved != uint64(len(other)) {
		t.Fatalf("%+v, %v", f, err)
	}
	same(t, out, other)
	// In the middle: by another file in its place, and by a write into it.
	for i, change := range []func(){func() { replace(old) }, func() {
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt([]byte("changed"), 5)
			f.Close()
		}
		if err != nil {
			t.Error(err)
		}
	}} {
		done := false
		_, err := Fetch(ctx, s.c, "x", FetchOptions{Output: out, Overwrite: true, Progress: func(p Progress) {
			if !done && p.Bytes > 0 {
				done = true
				change()
			}
		}})
		if !errors.Is(err, ErrChanged) {
			t.Errorf("change %d: %v", i, err)
		}
		only(t, dir, "x")
		same(t, out, other)
	}
	// A fetch that may restart gets what the file changed to, and gives up when the changes
	// never end.
	for _, times := range []int{1, 2, 3} {
		changed, fresh := 0, false
		f, err := Fetch(ctx, s.c, "x", FetchOptions{Output: out, Overwrite: true, Restarts: 2,
			Progress: func(p Progress) {
				if p.Bytes == 0 { // an attempt begins
					fresh = true
				} else if fresh && changed < times {
					fresh = false
					changed++
					replace(randomBytes(uint64(10+changed), 4*window))
				}
			}})
		switch {
		case times == 3:
			if !errors.Is(err, ErrChanged) || changed != 3 {
				t.Errorf("changed %d times: %v", changed, err)
			}
		case err != nil || f.Moved != 4*window:
			t.Errorf("changed %d times: %+v, %v", changed, f, err)
		default:
			same(t, out, randomBytes(uint64(10+times), 4*window))
		}
		only(t, dir, "x")
	}
}

// childFetch is set in a process that fetches for a test: address, name and output.
const childFetch = "PENSTOCK_SHARE_FETCH"

// TestFetcherIsKilled kills a fetching process in the middle, twice, and finishes in this one.
func TestFetcherIsKilled(t *testing.T) {
	ctx := testCtx(t)
	if addr := os.Getenv(childFetch); addr != "" {
		n := testNode(t, transfer.Options{Name: "child"})
		p, err := n.Dial(ctx, addr)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Fetch(ctx, Over(p), "x", FetchOptions{Output: os.Getenv(childFetch + "_OUT"),
			Progress: func(p Progress) {
				os.Stdout.WriteString("verified " + strconv.FormatUint(p.Bytes, 10) + " from " +
					strconv.FormatUint(p.Start, 10) + "\n")
				if p.Bytes > p.Start {
					select {} // until it is killed
				}
			}})
		t.Fatal(err)
	}
	root := t.TempDir()
	content := randomBytes(7, crashSize)
	write(t, filepath.Join(root, "x"), content)
	node := testNode(t, transfer.Options{Name: "server", Listen: []string{"tcp://127.0.0.1:0"}})
	s, err := Serve(ctx, node, Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := testNode(t, transfer.Options{Name: "client"})
	peer, err := c.Dial(ctx, node.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"x", strings.Repeat("\u00e9", 127) + "x"} {
		dir := t.TempDir()
		out := filepath.Join(dir, name)
		for i := range 2 {
			p := proc.Start(t, proc.Self(t, childFetch+"="+node.Addrs()[0], childFetch+"_OUT="+out))
			want := strconv.Itoa(i * window)
			if _, err := p.WaitLine(ctx, regexp.MustCompile(`verified `+strconv.Itoa((i+1)*window)+` from `+want+
				`$`)); err != nil {
				t.Fatal(err)
			}
			p.Kill()
			only(t, dir, partialOf(name), stateOf(name))
		}
		f, err := Fetch(ctx, Over(peer), "x", FetchOptions{Output: out})
		if err != nil {
			t.Fatal(err)
		}
		if f.Resumed != 2*window {
			t.Errorf("%+v", f)
		}
		same(t, out, content)
		only(t, dir, name)
	}
}

func testLink(t *testing.T, addr string) Conn {
	t.Helper()
	l := job.NewLink(testNode(t, transfer.Options{Name: "client"}), addr,
		job.LinkOptions{Retry: job.Retry{Attempts: -1, Total: -1, Max: 100 * time.Millisecond}})
	t.Cleanup(func() { l.Close() })
	return OverLink(l)
}

// TestServerIsKilled kills the serving process in the middle of a fetch and of an upload, and
// starts another one.
func TestServerIsKilled(t *testing.T) {
	if serveChild(t) {
		return
	}
	ctx, root := testCtx(t), t.TempDir()
	content := randomBytes(8, crashSize)
	write(t, filepath.Join(root, "x"), content)
	addr := "unix://" + filepath.Join(t.TempDir(), "s")
	listen := childRoot + "_LISTEN=" + addr
	p, _ := startServer(t, root, listen)
	c := testLink(t, addr)
	crash := func(x Progress, n *int) {
		if x.Bytes > x.Start && *n < 2 {
			*n++
			p.Kill()
			os.Remove(addr[len("unix://"):])
			p = p.Restart()
			servingAt(t, p)
		}
	}
	dir, kills := t.TempDir(), 0
	out := filepath.Join(dir, "x")
	f, err := Fetch(ctx, c, "x", FetchOptions{Output: out, Progress: func(x Progress) { crash(x, &kills) }})
	if err != nil || kills != 2 {
		t.Fatal(err, kills)
	}
	same(t, out, content)
	if f.Moved != crashSize {
		t.Errorf("moved %d", f.Moved)
	}
	kills = 0
	var last Progress
	u, err := Upload(ctx, c, out, "y", UploadOptions{Progress: func(x Progress) {
		if x.Bytes < last.Bytes {
			t.Errorf("%d after %d", x.Bytes, last.Bytes)
		}
		last = x
		crash(x, &kills)
	}})
	if err != nil || kills != 2 {
		t.Fatal(err, kills)
	}
	same(t, filepath.Join(root, "y"), content)
	t.Logf("uploaded: %+v", u)
	only(t, filepath.Join(root, stagingDir))
}

// TestServerIsKilledInABatch kills a server while it writes a batch of small files: what no peer
// can go on with is gone when the next one serves, and what a living server writes stays.
func TestServerIsKilledInABatch(t *testing.T) {
	if serveChild(t) {
		return
	}
	ctx, root, local := testCtx(t), t.TempDir(), t.TempDir()
	for i := range 4 {
		write(t, filepath.Join(local, strconv.Itoa(i)), make([]byte, 1000))
	}
	child, addr := startServer(t, root, childRoot+"_HOLD=3")
	p, err := testNode(t, transfer.Options{Name: "client"}).Dial(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := UploadTree(ctx, Over(p), []TreeSource{{Path: local}}, TreeOptions{})
		ended <- err
	}()
	if _, err := child.WaitLine(ctx, regexp.MustCompile(`^held`)); err != nil {
		t.Fatal(err)
	}
	batches := func() (files int) {
		dirs, err := filepath.Glob(filepath.Join(root, stagingDir, batchPrefix+"*"))
		for _, d := range dirs {
			es, rerr := os.ReadDir(d)
			files += len(es)
			err = errors.Join(err, rerr)
		}
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	for batches() < 3 {
		if ctx.Err() != nil {
			t.Fatal("no batch is being written")
		}
	}
	s := serve(t, Options{Root: root, Writable: true})
	if n := batches(); n < 3 {
		t.Errorf("%d files are left of a batch that a living server writes", n)
	}
	child.Kill()
	if err := <-ended; err == nil {
		t.Error("files came to a server that was killed")
	}
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	only(t, filepath.Join(root, stagingDir))
	if _, u, err := uploadTree(t, s.c, TreeOptions{}, TreeSource{local, ""}); err != nil || u.Sent != 4 {
		t.Errorf("%+v, %v", u, err)
	}
}

// TestStreamOfChangedContent changes a file while it is written to a writer: the error says that
// the content changed, and how much of the old one was written.
func TestStreamOfChangedContent(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	file := filepath.Join(root, "x")
	old := randomBytes(1, 6*streamWindow)
	write(t, file, old)
	s := serve(t, Options{Root: root})
	for _, c := range []Conn{s.c, testLink(t, s.node.Addrs()[0])} {
		replaceFile(t, file, old)
		var b bytes.Buffer
		done := false
		_, err := Stream(ctx, c, "x", &b, StreamOptions{Progress: func(p Progress) {
			if !done && p.Bytes > 0 {
				done = true
				replaceFile(t, file, randomBytes(2, len(old)))
			}
		}})
		if !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(),
			fmt.Sprintf("after %d of %d bytes", b.Len(), len(old))) || !bytes.HasPrefix(old, b.Bytes()) {
			t.Errorf("%d bytes were written: %v", b.Len(), err)
		}
	}
}

// shortWriter takes a part of what it is given, without an error.
type shortWriter struct{}

func (shortWriter) Write(b []byte) (int, error) { return len(b) / 2, nil }

// TestStreamToShortWriter: what a writer does not take is an error, whether the bytes come in an
// answer or by a path.
func TestStreamToShortWriter(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "x"), randomBytes(1, 3*streamWindow))
	write(t, filepath.Join(root, "small"), randomBytes(1, 1000))
	s := serve(t, Options{Root: root})
	for name, taken := range map[string]int{"x": streamWindow / 2, "small": 500} {
		_, err := Stream(testCtx(t), s.c, name, shortWriter{}, StreamOptions{})
		if !errors.Is(err, io.ErrShortWrite) || !strings.Contains(err.Error(), fmt.Sprintf("after %d of", taken)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
