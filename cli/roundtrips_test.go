package cli

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/path"
)

// tripTime is what a tripProxy delays bytes by in each direction. It is far more than the
// time between two writes of one trip.
const tripTime = 250 * time.Millisecond

// tripProxy is a proxy of TCP that counts round trips. It delays all bytes, and gives those of a
// client the number of the trip that they are in: one more than the highest of the bytes that the
// client had got before. What a server sends has the number of the last that it got. So a stall of
// a process costs time and is no round trip, and what is sent without waiting for an answer is none
// either.
type tripProxy struct {
	t      *testing.T
	l      net.Listener
	server string
	wg     sync.WaitGroup

	mu    sync.Mutex // guards what follows
	got   int        // the highest trip that the client got bytes of, or the end of a stream
	begun int        // got when the count began
	conns []net.Conn
}

func newTripProxy(t *testing.T, server string) *tripProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &tripProxy{t: t, l: l, server: server}
	f.wg.Go(f.accept)
	t.Cleanup(func() {
		l.Close()
		f.mu.Lock()
		for _, c := range f.conns {
			c.Close()
		}
		f.mu.Unlock()
		f.wg.Wait()
	})
	return f
}

func (f *tripProxy) addr() string { return f.l.Addr().String() }

// count is the round trips of what the client has ended: the number of the last trip from the
// server that it took notice of.
func (f *tripProxy) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.got - f.begun
}

// again begins to count again, while nothing is under way.
func (f *tripProxy) again() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun = f.got
}

func (f *tripProxy) accept() {
	for {
		c, err := f.l.Accept()
		if err != nil {
			return
		}
		s, err := net.Dial("tcp", f.server)
		if err != nil {
			f.t.Error(err)
			c.Close()
			return
		}
		f.mu.Lock()
		f.conns = append(f.conns, c, s)
		x := &tripConn{f: f, dial: f.got + 1}
		f.mu.Unlock()
		f.wg.Go(func() { x.carry(c, s, true) })
		f.wg.Go(func() { x.carry(s, c, false) })
	}
}

// tripConn is one connection.
type tripConn struct {
	f    *tripProxy
	dial int  // the trip of TCP's own
	sent int  // the highest trip that the server got; guarded by f.mu
	over bool // the client has ended it; guarded by f.mu
}

// tripBytes are what one side wrote, or the end of its stream.
type tripBytes struct {
	at   time.Time
	trip int
	b    []byte
}

// carry brings what one side sends to the other, a trip time later.
func (x *tripConn) carry(from, to net.Conn, up bool) {
	todo := make(chan tripBytes, 1<<16)
	x.f.wg.Go(func() {
		for p := range todo {
			<-time.After(time.Until(p.at))
			x.f.mu.Lock()
			if up {
				x.sent = max(x.sent, p.trip)
			} else if !x.over {
				x.f.got = max(x.f.got, p.trip)
			}
			x.f.mu.Unlock()
			if len(p.b) == 0 {
				to.(*net.TCPConn).CloseWrite()
			} else {
				to.Write(p.b)
			}
		}
	})
	defer close(todo)
	for {
		b := make([]byte, 64<<10)
		n, err := from.Read(b)
		x.f.mu.Lock()
		p := tripBytes{time.Now().Add(tripTime), x.sent, b[:n]}
		if up {
			p.trip = max(x.f.got, x.dial) + 1
			x.over = x.over || err != nil
		}
		x.f.mu.Unlock()
		if n > 0 || errors.Is(err, io.EOF) {
			todo <- p
		}
		if err != nil {
			return
		}
	}
}

// A file that fits into one answer takes as many round trips as a session and a question, and one
// question in a session that is there: whether it goes into a file or to the standard output, with
// a digest or without.
func TestRoundTripsOfGet(t *testing.T) {
	dirs := identities(t, "worker")
	served, out := t.TempDir(), t.TempDir()
	b := content(4096, 7)
	at := time.Unix(1_600_000_000, 0)
	if err := os.Chtimes(write(t, filepath.Join(served, "small"), b), at, at); err != nil {
		t.Fatal(err)
	}
	allow := write(t, filepath.Join(t.TempDir(), "policy"), []byte("allow worker read,list\n"))
	m, err := proc.Start(t, program("serve", served, "--listen", "tcp://127.0.0.1:0", "--identity", dirs["server"],
		"--policy", allow)).WaitLine(limit(t), servedNamed)
	if err != nil {
		t.Fatal(err)
	}
	secure := m[1]
	_, plain := serve(t, served, "--identity", "none")
	for i, c := range []struct {
		addr string
		most int
		args []string
	}{
		{secure, 4, []string{"--identity", dirs["worker"], "--digest"}}, // TCP, TLS, the session, the file
		{plain, 3, []string{"--identity", "none"}},
	} {
		f := newTripProxy(t, c.addr)
		to := filepath.Join(out, fmt.Sprint(i))
		stdout, stderr, status := penstock(t, append([]string{"get", f.addr() + "/small", "-o", to}, c.args...)...)
		if n := f.count(); status != 0 || n > c.most {
			t.Errorf("%d round trips with %q, expected at most %d; %d: %s%s", n, c.args, c.most, status, stdout, stderr)
		}
		same(t, to, b)
		if fi, err := os.Stat(to); err != nil || !fi.ModTime().Equal(at) {
			t.Errorf("the time is %v, %v, expected %v", fi.ModTime(), err, at)
		}
	}
	f := newTripProxy(t, plain)
	stdout, stderr, status := penstock(t, "get", f.addr()+"/small", "-o", "-", "--identity", "none")
	if n := f.count(); status != 0 || n > 3 || stdout != string(b) {
		t.Errorf("%d round trips to the standard output; %d: %s", n, status, stderr)
	}

	id, err := identity.Open(dirs["worker"], identity.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := limit(t)
	n, err := transfer.Open(ctx, transfer.Options{Identity: id, Policy: identity.Everyone(0)})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	f = newTripProxy(t, secure)
	link := job.NewLink(n, "tcp://"+f.addr(), job.LinkOptions{})
	if _, err := link.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		f.again()
		to := filepath.Join(out, fmt.Sprint("warm", i))
		got, err := share.Fetch(ctx, share.OverLink(link), "small", share.FetchOptions{Output: to})
		if n := f.count(); err != nil || n != 1 || got.Path != "control" || got.Moved != 4096 {
			t.Errorf("%d round trips in a session: %+v, %v", n, got, err)
		}
		same(t, to, b)
	}
	if _, err := share.Fetch(ctx, share.OverLink(link), "none",
		share.FetchOptions{Output: filepath.Join(out, "none")}); !errors.Is(err, control.NotFound) {
		t.Error(err)
	}
}

// A larger file takes those of its data connections, the bytes, the question whether they are of
// one content, and the report to the server. The end of a session that only fetched takes none.
func TestRoundTripsOfLargerGet(t *testing.T) {
	served, to := t.TempDir(), filepath.Join(t.TempDir(), "x")
	b := content(1<<20, 7)
	write(t, filepath.Join(served, "larger"), b)
	_, plain := serve(t, served, "--identity", "none")
	f := newTripProxy(t, plain)
	stdout, stderr, status := penstock(t, "get", f.addr()+"/larger", "-o", to, "--identity", "none", "--path", "tcp")
	// TCP, the session, the name, the path, its TCP, its hello, the file, the question, the report
	if n := f.count(); status != 0 || n > 9 {
		t.Errorf("%d round trips, expected at most 9; %d: %s%s", n, status, stdout, stderr)
	}
	same(t, to, b)
}

// A listing takes as many round trips as a session and a question, as long as it fits into one
// answer.
func TestRoundTripsOfLs(t *testing.T) {
	ctx := limit(t)
	n, err := transfer.Open(ctx, transfer.Options{Name: "server", Anonymous: identity.List,
		Listen: []string{"tcp://127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	region, err := mem.Alloc(mem.Options{Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	var want strings.Builder
	for i := range 20_000 {
		name := fmt.Sprintf("d%02d/f%05d", i/400, i)
		if _, err := n.Export(region.All(), transfer.ExportOptions{Name: name, Rights: path.Read,
			Tag: [16]byte(sha256.New().Sum([]byte(name))[:16])}); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&want, name)
	}
	for _, c := range []struct {
		most int
		args []string
	}{{3, nil}, {9, []string{"--json"}}} { // with a tag of each, page by page
		f := newTripProxy(t, strings.TrimPrefix(n.Addrs()[0], "tcp://"))
		stdout, stderr, status := penstock(t, append([]string{"ls", f.addr(), "--identity", "none"}, c.args...)...)
		if trips := f.count(); status != 0 || trips > c.most || c.args == nil && stdout != want.String() {
			t.Errorf("%d round trips with %q, expected at most %d; %d: %s", trips, c.args, c.most, status, stderr)
		}
	}
}

// Many files are removed by few questions, whether a directory or each of them is named.
func TestRoundTripsOfRm(t *testing.T) {
	const n = 1000
	dir := t.TempDir()
	var each []string
	for i := range n {
		each = append(each, fmt.Sprintf("d/%04d", i))
		write(t, filepath.Join(dir, each[i]), nil)
		write(t, filepath.Join(dir, fmt.Sprintf("e/%d/%04d", i%10, i)), nil)
	}
	write(t, filepath.Join(dir, "kept"), nil)
	_, addr := serve(t, dir, "--writable", "--removable", "--identity", "none")
	f := newTripProxy(t, addr)
	for _, c := range []struct {
		most int
		args []string
	}{{6, []string{"-r", f.addr() + "/e/"}}, {5, append([]string{f.addr()}, each...)}} {
		// of TCP, the session, the listing, and two questions
		f.again()
		stdout, stderr, status := penstock(t, append([]string{"rm", "--identity", "none"}, c.args...)...)
		if trips := f.count(); status != 0 || trips > c.most || strings.Count(stdout, "\n") != n ||
			!strings.Contains(stderr, "1000 files removed") {
			t.Errorf("%d round trips with %q, expected at most %d; %d: %s", trips, c.args[:2], c.most, status, stderr)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 || left[1].Name() != "kept" {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A mirror into an empty directory takes few round trips, whatever the number of names: what it
// asks for does not wait for what it need not know first. One that has all there takes fewer. It
// does several things at a time, so that a stall of one of them counts as round trips of the
// others. The least of some tries is what it needs.
func TestRoundTripsOfMirror(t *testing.T) {
	served := t.TempDir()
	for i := range 200 {
		write(t, filepath.Join(served, fmt.Sprintf("d%d/f%d", i%3, i)), content(i, uint64(i)))
	}
	_, addr := serve(t, served, "--identity", "none")
	f := newTripProxy(t, addr)
	var counts [2][]int
	for try := 0; try == 0 || try < 5 && (slices.Min(counts[0]) > 10 || slices.Min(counts[1]) > 6); try++ {
		dir := filepath.Join(t.TempDir(), "out")
		for i := range counts {
			f.again()
			stdout, stderr, status := penstock(t, "mirror", f.addr(), dir, "--identity", "none", "--path", "tcp")
			counts[i] = append(counts[i], f.count())
			if status != 0 {
				t.Fatalf("%d: %s%s", status, stdout, stderr)
			}
			for i := range 200 {
				same(t, filepath.Join(dir, fmt.Sprintf("d%d/f%d", i%3, i)), content(i, uint64(i)))
			}
		}
	}
	if slices.Min(counts[0]) > 10 || slices.Min(counts[1]) > 6 {
		t.Errorf("%d round trips, expected at most 10 at first and 6 with all there", counts)
	}
}

// A put of many small files takes two round trips for each batch, the bytes and what became of
// them, of which eight are under way at once. What it asks for memory at the other side is little,
// whatever the number of files. The least of some tries is what it needs, as of a mirror.
func TestRoundTripsOfPut(t *testing.T) {
	const n = 24 * 256 // in three turns of eight batches
	local, to := filepath.Join(t.TempDir(), "small"), t.TempDir()
	for i := range n {
		write(t, filepath.Join(local, fmt.Sprintf("d%d/%d", i%3, i)), content(1+i%64, uint64(i)))
	}
	_, addr := serve(t, to, "--writable", "--identity", "none")
	f := newTripProxy(t, addr)
	// TCP, the session, the memory or, meanwhile, the path with its TCP and hello, three times two,
	// the end
	const most = 13
	counts := []int{}
	for try := 0; try == 0 || try < 5 && slices.Min(counts) > most; try++ {
		f.again()
		stdout, stderr, status := penstock(t, "put", local, fmt.Sprintf("%s/%d/", f.addr(), try), "--identity", "none",
			"--path", "tcp")
		if counts = append(counts, f.count()); status != 0 {
			t.Fatalf("%d: %s%s", status, stdout, stderr)
		}
		for i := 0; i < n; i += 97 {
			same(t, filepath.Join(to, fmt.Sprint(try), "small", fmt.Sprintf("d%d/%d", i%3, i)),
				content(1+i%64, uint64(i)))
		}
	}
	if slices.Min(counts) > most {
		t.Errorf("%d round trips, expected at most %d", counts, most)
	}
}
