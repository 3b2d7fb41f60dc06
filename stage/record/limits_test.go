package record

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/packet/pcap"
)

// ends counts the calls of Ended.
type ends struct {
	mu  sync.Mutex
	all []error
}

func (e *ends) ended(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, err)
}

func (e *ends) check(t *testing.T, want error) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.all) != 1 || !errors.Is(e.all[0], want) {
		t.Errorf("ended with %v, expected %v once", e.all, want)
	}
}

// A recording ends behind so many packets, cut to so many bytes, or behind so many files, and says
// so once.
func TestLimits(t *testing.T) {
	dir := t.TempDir()
	f := newFeed(t)
	var e ends
	r := open(t, Options{Name: filepath.Join(dir, "x"), Format: PcapNG,
		Limits: Limits{SnapLen: 50, Count: 3, Ended: e.ended}})
	for i := range 5 {
		r.Add(f.burst(frame(i, 100), 0, int64(i)))
	}
	e.check(t, nil)
	if err := r.Close(limit(t)); err != nil {
		t.Fatal(err)
	}
	if s := r.Stats(); s.Packets != 3 || s.Taken != 3 || s.Beyond != 2 {
		t.Errorf("%+v", s)
	}
	b, err := os.ReadFile(filepath.Join(dir, "x"))
	if err != nil {
		t.Fatal(err)
	}
	all, _ := blocks(t, b)
	for i, x := range all[2 : len(all)-1] {
		if x.kind != 6 || x.body[12] != 50 || x.body[16] != 100 || !bytes.Equal(x.body[20:70], frame(i, 100)[:50]) {
			t.Errorf("packet %d: %d of %d bytes", i, x.body[12], x.body[16])
		}
	}
	if s := statistics(t, b); len(all) != 6 || s[2] != 3 || s[6] != 3 {
		t.Errorf("%d blocks, statistics %v", len(all), s)
	}
	// Two files, and no third one.
	e = ends{}
	r = open(t, Options{Name: filepath.Join(dir, "f"), Format: Raw, Every: 1 << 40,
		Limits: Limits{Files: 2, Ended: e.ended}})
	for i := range 4 {
		r.Add(f.burst(frame(i, 100), 0, int64(i)))
		r.Rotate()
	}
	e.check(t, nil)
	if err := r.Close(limit(t)); err != nil {
		t.Fatal(err)
	}
	if got := listed(t, dir); strings.Join(got, " ") != "f-00001 f-00002 x" || r.Stats().Beyond != 2 {
		t.Errorf("%v, %+v", got, r.Stats())
	}
	// The newest three files stay, of this run and of the one before.
	for range 2 {
		r = open(t, Options{Name: filepath.Join(dir, "f"), Format: Raw, Every: 1 << 40, Limits: Limits{KeepFiles: 3}})
		r.Rotate()
		if err := r.Close(limit(t)); err != nil {
			t.Fatal(err)
		}
	}
	if got := listed(t, dir); strings.Join(got, " ") != "f-00004 f-00005 f-00006 x" {
		t.Errorf("%v", got)
	}
}

// pipe is a writer that a reader may close.
type pipe struct {
	mu sync.Mutex
	bytes.Buffer
	err error
}

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return 0, p.err
	}
	return p.Buffer.Write(b)
}

// A stream has each burst at once. When it takes no more the recording ends.
func TestStream(t *testing.T) {
	var p pipe
	var e ends
	r := open(t, Options{Name: "-", Format: PcapNG, Limits: Limits{To: &p, Ended: e.ended}})
	f := newFeed(t)
	for i := range 3 {
		r.Add(f.burst(frame(i, 100), 0, int64(i)))
		r.mu.Lock()
		if r.cur != nil {
			t.Error("a packet waits")
		}
		r.mu.Unlock()
		until(t, "the packet", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			all, n := blocks(t, p.Bytes())
			return len(all) == 3+i && n == p.Len() && len(r.full) == 0
		})
	}
	gone := errors.New("the reader has gone")
	p.mu.Lock()
	p.err = gone
	p.mu.Unlock()
	r.Add(f.burst(frame(3, 100), 0, 3))
	until(t, "the end", func() bool { return r.Stats().Err != nil })
	e.check(t, gone)
	r.Add(f.burst(frame(4, 100), 0, 4))
	if err := r.Close(limit(t)); !errors.Is(err, gone) || r.Stats().Beyond != 1 || r.Stats().Lost[DiskError] != 1 {
		t.Errorf("%v, %+v", err, r.Stats())
	}
	if _, err := os.Stat("-"); err == nil {
		t.Error("there is a file -")
	}
	// A stream that takes not even the header is none.
	if _, err := New(Options{Name: "-", Format: PcapNG, Interface: pcap.Interface{Link: pcap.Ethernet},
		Limits: Limits{To: &p}}); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
}
