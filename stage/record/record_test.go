package record

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/peers"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/pcap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func limit(t testing.TB) context.Context {
	t.Helper()
	c, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return c
}

// until yields until f is true.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for c := limit(t); !f(); runtime.Gosched() {
		if c.Err() != nil {
			t.Fatalf("waited for %s", what)
		}
	}
}

// feed makes bursts of packets, each of two segments where it is long.
type feed struct {
	b   *burst.Burst
	r   *mem.Region
	src *burst.Source
}

func newFeed(t testing.TB) *feed {
	t.Helper()
	r, err := mem.Alloc(mem.Options{Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return &feed{b: burst.NewSegmented(1, 2), r: r, src: burst.NewSource(r, r.All().Bytes(), nobody{})}
}

type nobody struct{}

func (nobody) Reclaim([]burst.Handle) {}

// burst is a burst of one packet of these bytes, received at ns.
func (f *feed) burst(p []byte, wire int, ns int64) *burst.Burst {
	f.b.Release()
	copy(f.r.All().Bytes(), p)
	d, first := f.b.Builder(), min(len(p), 60)
	d.Add(f.src, burst.Segment{Handle: burst.NoHandle, Len: uint32(first)})
	if len(p) > first {
		d.AddSegment(f.src, burst.Segment{Handle: burst.NoHandle, Off: uint64(first), Len: uint32(len(p) - first)})
	}
	d.SetReceived(0, wire, burst.HasTime, ns)
	return f.b
}

// frame is an Ethernet frame with a number.
func frame(i, size int) []byte {
	p := make([]byte, max(size, 14))
	copy(p, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5})
	for k := 14; k < len(p); k++ {
		p[k] = byte(i + k)
	}
	return p
}

func open(t testing.TB, o Options) *Recorder {
	t.Helper()
	if o.Interface.Link == 0 {
		o.Interface = pcap.Interface{Link: pcap.Ethernet, Name: "eth7", MAC: packet.MAC{2, 0, 0, 0, 0, 1},
			Speed: 1e10, OS: "Linux 6", Writer: "test"}
	}
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(context.Background()) })
	return r
}

// listed are the names in a directory.
func listed(t testing.TB, dir string) (out []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

// What is recorded tshark shows: times, lengths, bytes, directions and losses.
func TestTshark(t *testing.T) {
	const first = 1_700_000_000_123_456_789
	for _, format := range []Format{PcapNG, Pcap} {
		t.Run(string(format), func(t *testing.T) {
			dir := t.TempDir()
			var lost atomic.Uint64
			r := open(t, Options{Name: filepath.Join(dir, "x"), Format: format,
				Dropped: lost.Load})
			f := newFeed(t)
			sizes := []int{14, 15, 16, 17, 60, 61, 1514, 9014, 65535}
			for i, size := range sizes {
				if i == 3 { // the interface lost 5 packets, and the recorder finds out
					lost.Add(5)
					r.mu.Lock()
					r.look()
					r.gap[DiskSlow] = 2
					r.mu.Unlock()
				}
				b := f.burst(frame(i, size), size+i, first+int64(i)*1001)
				if i%2 == 1 {
					b.Builder().SetReceived(0, size+i, burst.HasTime|burst.Outgoing, first+int64(i)*1001)
				}
				r.Add(b)
			}
			if err := r.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			got, err := peers.Dissect(limit(t), peers.Dissection{File: filepath.Join(dir, "x"),
				Fields: []string{"frame.packet_flags_direction", "frame.drop_count", "frame.comment",
					"frame.interface_name", "data.data"}})
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(sizes) {
				t.Fatalf("%d packets, expected %d", len(got), len(sizes))
			}
			for i, p := range got {
				want := []string{"", "", "", "", fmt.Sprintf("%x", frame(i, sizes[i])[14:])}
				if format == PcapNG {
					want[0], want[3] = fmt.Sprint(1+i%2), "eth7"
				}
				if format == PcapNG && i == 3 {
					want[1], want[2] = "7", "interface: 5, disk-slow: 2"
				}
				for k := range want {
					g := strings.TrimPrefix(strings.ToLower(p.Fields[k]), "0x")
					if k == 0 {
						g = strings.TrimLeft(g, "0")
					}
					if g != want[k] {
						t.Errorf("packet %d, field %d: %.80q, expected %.80q", i, k, p.Fields[k], want[k])
					}
				}
				if at := p.Time.UnixNano(); at != first+int64(i)*1001 || p.Captured != sizes[i] ||
					p.Length != sizes[i]+i {
					t.Errorf("packet %d: at %d, %d of %d bytes", i, at, p.Captured, p.Length)
				}
			}
		})
	}
}

// block is a block of a pcapng file.
type block struct {
	kind uint32
	body []byte
}

// blocks are the whole blocks of a pcapng file, and how many bytes they have.
func blocks(t testing.TB, b []byte) (out []block, n int) {
	t.Helper()
	for len(b)-n >= 12 {
		size := int(binary.LittleEndian.Uint32(b[n+4:]))
		if size < 12 || size%4 != 0 {
			t.Fatalf("a block of %d bytes at %d", size, n)
		}
		if n+size > len(b) {
			break
		}
		if tail := int(binary.LittleEndian.Uint32(b[n+size-4:])); tail != size {
			t.Fatalf("a block of %d bytes at %d ends with length %d", size, n, tail)
		}
		out = append(out, block{binary.LittleEndian.Uint32(b[n:]), b[n+8 : n+size-4]})
		n += size
	}
	return out, n
}

// statistics are those of a file, in the order of the numbers of their options.
func statistics(t testing.TB, b []byte) (out []uint64) {
	t.Helper()
	all, n := blocks(t, b)
	last := all[len(all)-1]
	if n != len(b) || last.kind != 5 {
		t.Fatalf("%d of %d bytes are whole blocks, the last one of type %d", n, len(b), last.kind)
	}
	for _, x := range all[:len(all)-1] {
		if x.kind == 5 {
			t.Error("more than one block of statistics")
		}
	}
	for o := last.body[12:]; binary.LittleEndian.Uint16(o) != 0; o = o[12:] {
		out = append(out, binary.LittleEndian.Uint64(o[4:]))
	}
	return out
}

// Files end before they exceed their size; each packet is in one of them, in order; those of
// earlier runs are not overwritten, and the oldest go.
func TestRotate(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a%b")
	if _, err := New(Options{Name: name, Format: PcapNG}); err == nil || !strings.Contains(err.Error(), "%Y") {
		t.Errorf("a verb that is none: %v", err)
	}
	f, seen := newFeed(t), 0
	read := func(name string) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all, n := blocks(t, b)
		if n != len(b) || len(b) > MinBytes {
			t.Errorf("%s: %d of %d bytes are whole blocks", name, n, len(b))
		}
		packets := 0
		for _, x := range all {
			if x.kind != 6 {
				continue
			}
			if size := int(binary.LittleEndian.Uint32(x.body[12:])); !bytes.Equal(x.body[20:20+size],
				frame(seen, 1000)) {
				t.Fatalf("%s: packet %d has other bytes", name, seen)
			}
			seen++
			packets++
		}
		if s := statistics(t, b); len(s) != 7 || s[4] != uint64(packets) || s[6] != uint64(packets) || s[3] != 0 ||
			s[5] != 0 {
			t.Errorf("%s: statistics %v of %d packets", name, s, packets)
		}
	}
	sent := 0
	for run := range 2 {
		r := open(t, Options{Name: filepath.Join(dir, "a.pcapng"), Format: PcapNG, MaxBytes: MinBytes})
		for range 500 {
			until(t, "a chunk", func() bool { return len(r.free) > 2 })
			r.Add(f.burst(frame(sent, 1000), 0, 1))
			sent++
		}
		r.Rotate()
		if err := r.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if s := r.Stats(); s.Packets != 500 || s.Taken != 500 || s.Lost != ([NumLosses]uint64{}) || s.Files < 9 {
			t.Errorf("run %d: %+v", run, s)
		}
	}
	names := listed(t, dir)
	for i, n := range names {
		if n != fmt.Sprintf("a-%05d.pcapng", i+1) {
			t.Errorf("file %d is %s", i, n)
		}
		read(n)
	}
	if seen != sent {
		t.Errorf("%d packets in files, expected %d", seen, sent)
	}
	// Files of other names stay.
	other := filepath.Join(dir, "a-notes.pcapng")
	if err := os.WriteFile(other, make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	r := open(t, Options{Name: filepath.Join(dir, "a.pcapng"), Format: PcapNG, MaxBytes: MinBytes, Keep: 3 * MinBytes})
	if err := r.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	now, sum := listed(t, dir), int64(0)
	for _, n := range now[:len(now)-1] {
		info, err := os.Stat(filepath.Join(dir, n))
		if err != nil {
			t.Fatal(err)
		}
		sum += info.Size()
	}
	if last := len(now) - 1; sum > 3*MinBytes || sum < 2*MinBytes || now[last] != "a-notes.pcapng" ||
		now[last-1] != fmt.Sprintf("a-%05d.pcapng", len(names)+1) {
		t.Errorf("left: %d bytes in %v", sum, now)
	}
	// The newest file stays, however large it is.
	r = open(t, Options{Name: filepath.Join(dir, "a.pcapng"), Format: PcapNG, MaxBytes: MinBytes, Keep: 1})
	if err := r.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := listed(t, dir); len(got) != 2 || got[0] != fmt.Sprintf("a-%05d.pcapng", len(names)+2) {
		t.Errorf("left: %v", got)
	}
}

// A name is used once, also by the time.
func TestNames(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("there"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Name: at("there"), Format: Raw}); !errors.Is(err, fs.ErrExist) ||
		!strings.Contains(err.Error(), "%Y%m%d") {
		t.Errorf("a file that is there: %v", err)
	}
	r := open(t, Options{Name: at("x"), Format: Raw})
	if _, err := New(Options{Name: at("x"), Format: Raw}); !errors.Is(err, fs.ErrExist) ||
		!strings.Contains(err.Error(), partial) {
		t.Errorf("a file that another one writes: %v", err)
	}
	if info, err := os.Stat(at("x" + partial)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	// Another program makes a file of the name meanwhile: the recorder does not overwrite it.
	if err := os.WriteFile(at("x"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(context.Background()); err == nil || !strings.Contains(err.Error(), "not whole") {
		t.Errorf("the name was taken: %v", err)
	}
	if b, _ := os.ReadFile(at("x")); string(b) != "mine" {
		t.Errorf("%q was overwritten", b)
	}
	// A file that is not whole stays an error, also while the next one is written.
	r = open(t, Options{Name: at("y"), Format: Raw, Every: time.Hour})
	if err := os.WriteFile(at("y-00001"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	r.Rotate()
	r.Add(newFeed(t).burst(frame(1, 60), 0, 1))
	if err := r.Close(context.Background()); err == nil ||
		!strings.Contains(err.Error(), "y-00001.partial is not whole") ||
		r.Stats().Packets != 1 {
		t.Errorf("an earlier file is not whole: %v", err)
	}
	// Each name of a file system in UTF-8 can be had, and percent signs.
	if err := open(t, Options{Name: at("größe-%%-50%%.pcap"), Format: Pcap}).Close(limit(t)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(at("größe-%-50%.pcap")); err != nil {
		t.Error(err)
	}
	for range 2 { // in the same second, or not
		if err := open(t, Options{Name: at("c-%Y%m%d-%H%M.raw"), Format: Raw}).Close(limit(t)); err != nil {
			t.Error(err)
		}
	}
	n, like := 0, regexp.MustCompile(`^c-\d{8}-\d{4}(-0000\d)?\.raw$`)
	for _, name := range listed(t, dir) {
		if like.MatchString(name) {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%v", listed(t, dir))
	}
	for _, o := range []Options{{Name: "", Format: Raw}, {Name: at("no/such"), Format: Raw},
		{Name: at("x%"), Format: Raw},
		{Name: dir + "/", Format: Raw}, {Name: at("%Y/x"), Format: Raw}, {Name: at("y"), Format: "pickle"},
		{Name: at("y"), Format: Raw, MaxBytes: 1}, {Name: at("y\xff"), Format: Raw}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v was opened", o)
		}
	}
}

func TestClock(t *testing.T) {
	at := func(s string) time.Time {
		x, err := time.ParseInLocation("15:04:05", s, time.UTC)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	for _, c := range []struct {
		now   string
		every time.Duration
		next  string
	}{{"10:17:03", time.Hour, "11:00:00"}, {"11:00:00", time.Hour, "12:00:00"},
		{"00:00:01", 15 * time.Minute, "00:15:00"},
		{"10:17:03", 7 * time.Second, "10:17:10"}} {
		o := Options{Every: c.every}
		if got := o.nextEnd(at(c.now)); !got.Equal(at(c.next)) {
			t.Errorf("%v after %s: %v", c.every, c.now, got)
		}
	}
	// Files end by the clock without packets.
	dir := t.TempDir()
	r := open(t, Options{Name: filepath.Join(dir, "x"), Format: PcapNG, Every: 10 * time.Millisecond})
	until(t, "three files", func() bool { return r.Stats().Files >= 3 })
}

// A packet is in the file soon, and a file that is cut anywhere has all packets but the last one.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	r := open(t, Options{Name: filepath.Join(dir, "x"), Format: PcapNG})
	f := newFeed(t)
	var b []byte
	for i := range 5 {
		r.Add(f.burst(frame(i, 60), 0, 1))
		until(t, "the packet in the file", func() (ok bool) {
			b, _ = os.ReadFile(filepath.Join(dir, "x"+partial))
			all, n := blocks(t, b)
			return n == len(b) && len(all) == 3+i
		})
	}
	for n := range b {
		all, whole := blocks(t, b[:n])
		if next := len(b) - whole; len(all) < 7 && next < 12 {
			t.Errorf("%d blocks of %d bytes", len(all), n)
		}
	}
}

// A full disk loses packets, which are counted where they are missing. When there is room again the
// recorder goes on, in the same file.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "size=5m"); err != nil {
		testenv.Missing(t, "mounting a tmpfs", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	r := open(t, Options{Name: filepath.Join(dir, "x"), Format: PcapNG})
	f, sent := newFeed(t), uint64(0)
	one := func() {
		until(t, "a chunk", func() bool { return len(r.free) > 2 })
		r.Add(f.burst(frame(int(sent), 1000), 0, int64(sent)))
		sent++
	}
	for r.Stats().Lost[DiskFull] == 0 {
		one()
	}
	if err := r.Stats().Err; !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	until(t, "the last chunk", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.cur == nil && len(r.free) == chunks
	})
	for range 10 {
		one()
	}
	if err := r.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "x"))
	if err != nil {
		t.Fatal(err)
	}
	s := r.Stats()
	if s.Packets+s.Lost[DiskFull] != sent || s.Taken != s.Packets {
		t.Errorf("%d packets: %+v", sent, s)
	}
	if x := statistics(t, b); x[4] != sent || x[5] != s.Lost[DiskFull] || x[6] != s.Packets {
		t.Errorf("statistics %v of %+v", x, s)
	}
	// The packet behind the gap says how many are missing.
	next, lost := uint64(0), uint64(0)
	all, _ := blocks(t, b)
	for _, x := range all {
		if x.kind != 6 {
			continue
		}
		if at := uint64(binary.LittleEndian.Uint32(x.body[8:])); at != next {
			o := x.body[20+1000+8:] // behind the direction
			if n := binary.LittleEndian.Uint64(o[4:]); binary.LittleEndian.Uint16(o) != 4 || n != at-next ||
				!strings.Contains(string(o), fmt.Sprintf("disk-full: %d", n)) {
				t.Errorf("%d packets are missing before packet %d: %q", at-next, at, o)
			}
			lost += at - next
			next = at
		}
		next++
	}
	if lost == 0 || lost != s.Lost[DiskFull] {
		t.Errorf("%d packets are missing in the file: %+v", lost, s)
	}
}

// Raw files have the bytes of packets and nothing else. Recording allocates nothing for a packet.
func TestRaw(t *testing.T) {
	dir := t.TempDir()
	r := open(t, Options{Name: filepath.Join(dir, "x"), Format: Raw})
	f := newFeed(t)
	var want []byte
	for i := range 100 {
		r.Add(f.burst(frame(i, 100), 0, 0))
		want = append(want, frame(i, 100)...)
	}
	if err := r.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "x")); err != nil || !bytes.Equal(b, want) {
		t.Errorf("%d bytes, expected %d, %v", len(b), len(want), err)
	}
	r.Rotate() // after Close it does nothing
}

func TestAllocations(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace|testenv.WithInvariants, "they allocate themselves")
	r := open(t, Options{Name: filepath.Join(t.TempDir(), "x"), Format: PcapNG})
	b := newFeed(t).burst(frame(1, 100), 0, 1)
	if n := testing.AllocsPerRun(1000, func() { r.Add(b) }); n > 0 {
		t.Errorf("%v allocations for a packet", n)
	}
}
