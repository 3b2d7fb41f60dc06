package record

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/packet/burst"
)

// numbers are the times of the packets of a pcapng file, which tests count up, and its statistics.
func numbers(t testing.TB, name string) (at []int, stats []uint64, dropped uint64) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	all, _ := blocks(t, b)
	for _, x := range all {
		if x.kind != 6 {
			continue
		}
		at = append(at, int(binary.LittleEndian.Uint32(x.body[8:])))
		n := 20 + int(binary.LittleEndian.Uint32(x.body[12:])+3)&^3 + 8 // the direction is the first option
		if len(x.body) > n && binary.LittleEndian.Uint16(x.body[n:]) == 4 {
			dropped += binary.LittleEndian.Uint64(x.body[4+n:])
		}
	}
	return at, statistics(t, b), dropped
}

func count(from, n int) (out []int) {
	for i := range n {
		out = append(out, from+i)
	}
	return out
}

// A ring has the last packets, each once and in order, and writes them with what comes behind: at a
// call, and at the first loss of the interface, which is in the file.
func TestRing(t *testing.T) {
	dir := t.TempDir()
	var lost atomic.Uint64
	r := open(t, Options{Name: filepath.Join(dir, "x.pcapng"), Format: PcapNG, Ring: Ring{Bytes: 2 << 20},
		After:   time.Hour,
		Dropped: lost.Load})
	if names := listed(t, dir); len(names) != 0 {
		t.Errorf("a ring that is not written: %v", names)
	}
	f, sent := newFeed(t), 0
	add := func(n int) {
		for range n {
			r.Add(f.burst(frame(sent, 60_000), 0, int64(sent)))
			sent++
		}
	}
	const inChunk = chunkSize / 60_032
	add(10*inChunk + 5)
	held := int(r.Stats().Held)
	if want := 2*inChunk + 5; held != want || r.Stats().Packets != 0 {
		t.Fatalf("%d packets are held, expected %d", held, want)
	}
	first := sent - held
	r.Rotate()
	add(3)
	r.mu.Lock()
	r.ring.until = time.Now() // the time is over
	r.mu.Unlock()
	until(t, "the file", func() bool { return r.Stats().Files == 1 })
	name := filepath.Join(dir, "x.pcapng")
	at, stats, _ := numbers(t, name)
	if !slices.Equal(at, count(first, held+3)) || stats[4] != uint64(held+3) || stats[6] != uint64(held+3) ||
		stats[3]+stats[5] != 0 {
		t.Errorf("%v, %v, expected %d from %d", at, stats, held+3, first)
	}
	// What is lost has it written once more.
	first = sent
	add(2)
	lost.Add(7)
	r.mu.Lock()
	r.looked = time.Time{}
	r.mu.Unlock()
	add(2)
	if s := r.Stats(); s.Held != 0 {
		t.Errorf("%d packets are held at a loss", s.Held)
	}
	if err := r.Close(limit(t)); err != nil {
		t.Fatal(err)
	}
	at, stats, dropped := numbers(t, filepath.Join(dir, "x-00001.pcapng"))
	if !slices.Equal(at, count(first, 4)) || stats[3] != 7 || stats[5] != 0 || dropped != 7 {
		t.Errorf("%v, %v, %d dropped", at, stats, dropped)
	}
}

// A ring of a time has what is younger, and frees the rest.
func TestRingTime(t *testing.T) {
	dir := t.TempDir()
	f := newFeed(t)
	synctest.Test(t, func(t *testing.T) {
		r := open(t, Options{Name: filepath.Join(dir, "x"), Format: PcapNG, Ring: Ring{Time: time.Minute}})
		for i := range 100 {
			r.Add(f.burst(frame(i, 60), 0, int64(i)))
			time.Sleep(6 * time.Second)
		}
		r.Rotate()
		if err := r.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if n := cap(r.free) - len(r.free); n > 12 { // those that were freed are used again
			t.Errorf("%d chunks", n)
		}
	})
	// A chunk has at most an eighth of the time, and is there until its last packet is too old.
	if at, _, _ := numbers(t, filepath.Join(dir, "x")); len(at) < 10 || len(at) > 12 || at[len(at)-1] != 99 ||
		!slices.Equal(at, count(at[0], len(at))) {
		t.Errorf("packets %v", at)
	}
	for _, s := range []string{"30s", "1GiB", "1MiB"} {
		if o, err := ParseRing(s); err != nil || o.String() != s {
			t.Errorf("%s: %v, %v", s, o, err)
		}
	}
	for _, s := range []string{"", "30", "-1s", "2h", "1KiB", "1PiB"} {
		if o, err := ParseRing(s); err == nil {
			t.Errorf("%q: %v", s, o)
		}
	}
}

// Files end behind a number of packets; the next one begins with its first packet.
func TestRotatePackets(t *testing.T) {
	dir := t.TempDir()
	r := open(t, Options{Name: filepath.Join(dir, "x.raw"), Format: Raw, MaxPackets: 3})
	f := newFeed(t)
	for i := range 9 {
		until(t, "a chunk", func() bool { return len(r.free) > 0 })
		r.Add(f.burst(frame(i, 60), 0, 0))
	}
	if err := r.Close(limit(t)); err != nil {
		t.Fatal(err)
	}
	if got := listed(t, dir); !slices.Equal(got, []string{"x-00001.raw", "x-00002.raw", "x-00003.raw"}) {
		t.Errorf("%v", got)
	}
	b, err := os.ReadFile(filepath.Join(dir, "x-00003.raw"))
	if err != nil || string(b) != string(frame(6, 60))+string(frame(7, 60))+string(frame(8, 60)) {
		t.Errorf("%x, %v", b, err)
	}
}

// Only who asks for it overwrites a file, a regular one alone; behind it names have numbers.
func TestOverwrite(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "x")
	for _, p := range []string{name, name + partial} {
		if err := os.WriteFile(p, []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := open(t, Options{Name: name, Format: Raw, Overwrite: true})
	f := newFeed(t)
	for i := range 3 {
		r.Add(f.burst(frame(i, 60), 0, 0))
		if i < 2 {
			r.Rotate()
		}
	}
	if err := r.Close(limit(t)); err != nil {
		t.Fatal(err)
	}
	for i, n := range []string{"x", "x-00001", "x-00002"} {
		if b, err := os.ReadFile(filepath.Join(dir, n)); err != nil || string(b) != string(frame(i, 60)) {
			t.Errorf("%s: %d bytes, %v", n, len(b), err)
		}
	}
	if got := listed(t, dir); len(got) != 3 {
		t.Errorf("%v", got)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := New(Options{Name: fifo, Format: Raw, Overwrite: true}); err == nil ||
		!strings.Contains(err.Error(), "no regular file") {
		r.Close(context.Background())
		t.Errorf("a FIFO: %v", err)
	}
}

// packets is a Receiver of bursts.
type packets struct {
	f    *feed
	next int
}

func (p *packets) TryRecv(b *burst.Burst) (int, error) {
	x := p.f.burst(frame(p.next, 1000), 0, int64(p.next))
	p.next++
	return x.MoveTo(b), nil
}

func (p *packets) Arm(*engine.Waker) bool { return true }

// frozen is a directory on a disk that takes nothing until thaw.
func frozen(t *testing.T) (dir string, freeze, thaw func()) {
	t.Helper()
	run := func(name string, args ...string) error { return exec.Command(name, args...).Run() }
	image := filepath.Join(t.TempDir(), "disk")
	dir = t.TempDir()
	err := os.WriteFile(image, nil, 0o600)
	if err == nil {
		err = errors.Join(os.Truncate(image, 64<<20), run("mkfs.ext4", "-q", image))
	}
	if err == nil {
		err = run("mount", "-o", "loop", image, dir)
	}
	if err != nil {
		testenv.Missing(t, "mounting a file with a file system", err)
	}
	is := false
	thaw = func() {
		if is {
			is = false
			if err := run("fsfreeze", "-u", dir); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(func() {
		thaw()
		if err := run("umount", dir); err != nil {
			t.Error(err)
		}
	})
	return dir, func() {
		if err := run("fsfreeze", "-f", dir); err != nil {
			testenv.Missing(t, "freezing a file system", err)
		}
		is = true
	}, thaw
}

// A disk that takes nothing loses packets of the file and none of who is behind the stage, which
// gets the same bytes where they are. Closing ends with its context, and says what is lost.
func TestStage(t *testing.T) {
	dir, freeze, thaw := frozen(t)
	in := &packets{f: newFeed(t)}
	x, err := OpenStage(in, engine.StageSpec{Port: engine.Capabilities{Frames: true},
		Options: &Options{Name: filepath.Join(dir, "x"), Format: PcapNG}})
	if err != nil {
		t.Fatal(err)
	}
	s := x.(*Stage)
	b := burst.NewSegmented(1, 2)
	take := func() {
		n := in.next
		if k, err := s.TryRecv(b); k != 1 || err != nil {
			t.Fatal(k, err)
		}
		got := make([]byte, 1000)
		if b.CopyTo(got, 0); string(got) != string(frame(n, 1000)) || &b.Bytes(0, 0)[0] != &in.f.r.All().Bytes()[0] {
			t.Fatalf("packet %d is another one, or a copy", n)
		}
		b.Release()
	}
	for range 10 {
		take()
	}
	until(t, "the first packets", func() bool { return s.r.Stats().Packets == 10 })
	freeze()
	for s.r.Stats().Lost[DiskSlow] < 100 {
		take()
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err = s.r.Close(ctx)
	stats := s.r.Stats()
	if !errors.Is(err, os.ErrDeadlineExceeded) || stats.Packets != 10 || stats.Taken != 10 ||
		stats.Lost[DiskSlow] != uint64(in.next-10) || stats.File == "" ||
		!strings.Contains(err.Error(), "x.partial is not whole") {
		t.Errorf("%d packets: %v, %+v", in.next, err, stats)
	}
	thaw()
	<-s.r.done
	if after := s.r.Stats(); after != stats {
		t.Errorf("%+v, and then %+v", stats, after)
	}
	if names := listed(t, dir); !slices.Contains(names, "x.partial") || slices.Contains(names, "x") {
		t.Errorf("%v", names)
	}
	var rx engine.RxStats
	if s.Stats(&rx); rx.Packets != uint64(in.next) || rx.Bytes != 1000*rx.Packets || rx.Drops.Total() > 0 {
		t.Errorf("%+v", rx)
	}
}
