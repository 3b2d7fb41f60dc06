package pcapread

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/peers"
	"github.com/penstock-io/penstock/packet/pcap"
)

const first = 1_700_000_000_123_456_789

// frame is an Ethernet frame with a number.
func frame(i, size int) []byte {
	p := make([]byte, size)
	copy(p, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5})
	for k := 14; k < len(p); k++ {
		p[k] = byte(i + k)
	}
	return p
}

// want is a packet that a file has.
type want struct {
	data    []byte
	length  int
	time    int64
	link    pcap.Link
	untimed bool // the time is that of the packet before
}

func packets(n int) (out []want) {
	for i := range n {
		size := []int{14, 15, 16, 17, 60, 61, 1514, 9014, 65535}[i%9]
		out = append(out, want{frame(i, size), size + i%2, first + int64(i)*1_001_001, pcap.Ethernet, false})
	}
	return out
}

// ours is a file as packet/pcap writes it.
func ours(f pcap.Format, all []want) []byte {
	b := f.AppendHeader(nil, &pcap.Interface{Link: pcap.Ethernet, Name: "eth7", OS: "Linux", Writer: "test"})
	for i, w := range all {
		p := pcap.Packet{Time: w.time, Captured: len(w.data), Length: w.length, Direction: pcap.Inbound,
			Dropped: uint64(i % 3), Why: strings.Repeat("why", i%3)}
		b = append(f.AppendPacket(b, &p), w.data...)
		b = f.EndPacket(b, &p)
	}
	return f.AppendStatistics(b, &pcap.Statistics{})
}

// block is a block of pcapng.
func block(o binary.AppendByteOrder, kind uint32, body ...[]byte) []byte {
	all := bytes.Join(body, nil)
	for len(all)%4 != 0 {
		all = append(all, 0)
	}
	b := o.AppendUint32(o.AppendUint32(nil, kind), uint32(len(all)+12))
	return o.AppendUint32(append(b, all...), uint32(len(all)+12))
}

func words(o binary.AppendByteOrder, all ...uint32) (b []byte) {
	for _, w := range all {
		b = o.AppendUint32(b, w)
	}
	return b
}

// Blocks of a file, by hand.
type file struct{ o binary.AppendByteOrder }

func (f file) section() []byte {
	v := f.o.AppendUint16(f.o.AppendUint16(nil, 1), 0)
	return block(f.o, sectionBlock, words(f.o, byteOrder), v, words(f.o, 1<<32-1, 1<<32-1))
}

func (f file) iface(link uint16, resolution byte) []byte {
	b := append(f.o.AppendUint16(nil, link), 0, 0)
	option := append(f.o.AppendUint16(f.o.AppendUint16(nil, 9), 1), resolution, 0, 0, 0, 0, 0, 0, 0)
	return block(f.o, interfaceBlock, b, words(f.o, 0), option)
}

func (f file) packet(iface uint32, ticks int64, w want) []byte {
	data := append(w.data[:len(w.data):len(w.data)], make([]byte, -len(w.data)&3)...)
	return block(f.o, 6, words(f.o, iface, uint32(ticks>>32), uint32(ticks), uint32(len(w.data)), uint32(w.length)),
		data)
}

// mixed is a file with all that pcapng has, in an order of bytes: several sections and interfaces,
// whose times have other units, an interface of another link type, simple packets, and blocks that
// are to be skipped.
func mixed(o binary.AppendByteOrder) ([]byte, []want) {
	all, f := packets(9), file{o}
	var b []byte
	add := func(x []byte) { b = append(b, x...) }
	add(f.section())
	add(f.iface(1, 9))
	add(f.packet(0, all[0].time, all[0]))
	add(block(o, nameBlock, words(o, 0)))
	add(f.iface(1, 6))
	all[1].time -= all[1].time % 1000
	add(f.packet(1, all[1].time/1000, all[1]))
	add(block(o, secretsBlock, words(o, 0x544c534b, 3), []byte("abc")))
	add(f.iface(147, 3))
	all[2].time, all[2].link = all[2].time-all[2].time%1e6, pcap.User0
	add(f.packet(2, all[2].time/1e6, all[2]))
	add(block(o, 0x0bad, []byte("custom blocks of nobody")))
	all[4].time, all[4].untimed, all[4].length = all[2].time, true, len(all[4].data)
	add(block(o, 3, words(o, uint32(all[4].length)), all[4].data)) // a simple packet has no time
	add(block(o, 5, words(o, 0, 0, 0)))
	add(f.section())
	add(f.iface(1, 9))
	add(f.packet(0, all[5].time, all[5]))
	return b, []want{all[0], all[1], all[2], all[4], all[5]}
}

// read reads a file to its end.
func read(b []byte) (out []want, err error) {
	r, err := Open("x", bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	for {
		p, err := r.Next()
		if err != nil {
			return out, err
		}
		if p.Number != uint64(len(out)+1) {
			return out, fmt.Errorf("number %d", p.Number)
		}
		out = append(out, want{bytes.Clone(p.Data), p.Length, p.Time, p.Link, !p.Timed})
	}
}

func compare(t *testing.T, name string, b []byte, all []want) {
	t.Helper()
	got, err := read(b)
	if err != io.EOF || len(got) != len(all) {
		t.Fatalf("%s: %d packets of %d, %v", name, len(got), len(all), err)
	}
	for i, w := range all {
		if g := got[i]; !bytes.Equal(g.data, w.data) || g.length != w.length || g.time != w.time || g.link != w.link ||
			g.untimed != w.untimed {
			t.Errorf("%s: packet %d: %d of %d bytes at %d, link %d; expected %d of %d at %d, %d", name, i, len(g.data),
				g.length, g.time, g.link, len(w.data), w.length, w.time, w.link)
		}
	}
}

// Files of every writer that is here are read as they were written, and tshark reads the same.
func TestReadsAlike(t *testing.T) {
	dir, all := t.TempDir(), packets(40)
	at := func(name string) string { return filepath.Join(dir, name) }
	files := map[string][]want{}
	write := func(name string, b []byte, w []want) {
		if err := os.WriteFile(at(name), b, 0o600); err != nil {
			t.Fatal(err)
		}
		files[name] = w
	}
	write("ours.pcapng", ours(pcap.PcapNG, all), all)
	write("ours.pcap", ours(pcap.Pcap, all), all)
	for name, o := range map[string]binary.AppendByteOrder{"little": binary.LittleEndian, "big": binary.BigEndian} {
		b, w := mixed(o)
		write(name, b, w)
	}
	// Files of gopacket.
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriter(&b, layers.LinkTypeEthernet)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		ci := gopacket.CaptureInfo{Timestamp: time.Unix(0, x.time), CaptureLength: len(x.data), Length: x.length}
		if err := w.WritePacket(ci, x.data); err != nil {
			t.Fatal(err)
		}
	}
	w.Flush()
	write("gopacket.pcapng", b.Bytes(), all)
	// Files of Wireshark.
	editcap, err := testenv.Tool("editcap", "wireshark-common")
	if err != nil {
		testenv.Missing(t, "editcap", err)
	}
	micro := packets(40)
	for i := range micro {
		micro[i].time -= micro[i].time % 1000
	}
	for format, w := range map[string][]want{"pcapng": all, "nsecpcap": all, "pcap": micro} {
		out, err := exec.CommandContext(t.Context(), editcap, "-F", format, at("ours.pcapng"),
			at("wireshark."+format)).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		files["wireshark."+format] = w
	}
	for name, w := range files {
		b, err := os.ReadFile(at(name))
		if err != nil {
			t.Fatal(err)
		}
		compare(t, name, b, w)
		theirs, err := peers.Dissect(t.Context(), peers.Dissection{File: at(name), Filter: "frame.time_epoch"})
		w = slices.DeleteFunc(w, func(w want) bool { return w.untimed }) // tshark gives none
		if err != nil || len(theirs) != len(w) {
			t.Fatalf("%s: %d packets of tshark, expected %d, %v", name, len(theirs), len(w), err)
		}
		for i, p := range theirs {
			if p.Captured != len(w[i].data) || p.Length != w[i].length || p.Time.UnixNano() != w[i].time {
				t.Errorf("%s: packet %d of tshark: %d of %d bytes at %d", name, i, p.Captured, p.Length,
					p.Time.UnixNano())
			}
		}
	}
}

// A file that is cut anywhere gives all packets before, and no other end than at the border of one.
func TestCut(t *testing.T) {
	few := packets(6)
	ng, hand := mixed(binary.BigEndian)
	for name, x := range map[string]struct {
		b       []byte
		all     []want
		borders int // of blocks and packets, besides the end
	}{"pcapng": {ours(pcap.PcapNG, few), few, 8}, "pcap": {ours(pcap.Pcap, few), few, 6}, "mixed": {ng, hand, 14}} {
		ends := 0
		for n := range len(x.b) {
			got, err := read(x.b[:n])
			if err == io.EOF {
				ends++
			} else if n >= 4 && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s, %d bytes: %v", name, n, err)
			}
			for i, g := range got {
				if !bytes.Equal(g.data, x.all[i].data) {
					t.Errorf("%s, %d bytes: packet %d is another one", name, n, i)
				}
			}
		}
		if ends != x.borders {
			t.Errorf("%s: %d ends of a whole file, expected %d", name, ends, x.borders)
		}
	}
}

// What a file must not have is an error that says where.
func TestRefused(t *testing.T) {
	f, p := file{binary.LittleEndian}, want{data: frame(1, 60), length: 60}
	head := append(f.section(), f.iface(1, 9)...)
	with := func(more ...[]byte) []byte { return bytes.Join(append([][]byte{head}, more...), nil) }
	odd := block(f.o, 6, make([]byte, 40))
	odd[4] = 51
	tiny := append(block(f.o, 6)[:4:4], 8, 0, 0, 0, 8, 0, 0, 0)
	for text, b := range map[string][]byte{
		"x: expected a capture file":           []byte("\x1f\x8b and more"),
		"begins with 61":                       []byte("a"),
		"packet 1: the block at byte 60 has":   with(odd),
		"length of 8 bytes: expected 12":       with(tiny),
		"length of 33554432 bytes":             with(words(f.o, 0x99, 32<<20, 0)),
		"packet 2: interface 1 has times of 2": with(f.packet(0, 1, p), f.iface(1, 0x80|10), f.packet(1, 1, p)),
		"10^-20 s":                             with(f.iface(1, 20), f.packet(1, 1, p)),
		"time from 1970 to 2262":               with(f.iface(1, 1), f.packet(1, 1e12, p)),
		"61 bytes of a packet of 60":           with(f.packet(0, 1, want{data: frame(1, 61), length: 60})),
		"expected at most 262144": with(f.packet(0, 1,
			want{data: frame(1, MaxPacket+1), length: MaxPacket + 1})),
		"packet 1: Interface id 7": with(f.packet(7, 1, p)),
		"at most 4096 interfaces":  with(bytes.Repeat(f.iface(1, 9), maxInterfaces)),
	} {
		if _, err := read(b); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What a file has between its packets takes no memory.
func TestMemory(t *testing.T) {
	f := file{binary.LittleEndian}
	head := append(f.section(), f.iface(1, 9)...)
	secret := block(f.o, secretsBlock, words(f.o, 0x544c534b, 1<<20), make([]byte, 1<<20))
	name := block(f.o, nameBlock, make([]byte, 1<<20))
	parts := []io.Reader{bytes.NewReader(head)}
	for range 256 {
		parts = append(parts, bytes.NewReader(secret), bytes.NewReader(name))
	}
	p := want{data: frame(1, 60), length: 60}
	r, err := Open("x", io.MultiReader(append(parts, bytes.NewReader(f.packet(0, 1, p)))...))
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if p, err := r.Next(); err != nil || p.Length != 60 {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%d bytes were allocated for blocks of 512 MiB", n)
	}
}

// Files are merged by time; of equal times the first file is first, and each file keeps its order.
func TestMerge(t *testing.T) {
	at := func(times ...int64) *Reader {
		var all []want
		for _, x := range times {
			all = append(all, want{data: frame(int(x), 60), length: 60, time: x})
		}
		r, err := Open(fmt.Sprint(times), bytes.NewReader(ours(pcap.Pcap, all)))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	m := Merge(at(1, 5, 4, 9), at(), at(2, 4, 5), at(3))
	got := ""
	for {
		p, err := m.Next()
		if err != nil {
			if err != io.EOF {
				t.Error(err)
			}
			break
		}
		got += fmt.Sprintf(" %d@%s", p.Time, p.File)
		if p.Data[14] != byte(p.Time+14) {
			t.Errorf("the packet at %d has other bytes", p.Time)
		}
	}
	if want := " 1@[1 5 4 9] 2@[2 4 5] 3@[3] 4@[2 4 5] 5@[1 5 4 9] 4@[1 5 4 9] 5@[2 4 5] 9@[1 5 4 9]"; got != want {
		t.Errorf("%s, expected %s", got, want)
	}
	bad, _ := Open("bad", bytes.NewReader(ours(pcap.Pcap, packets(2))[:50]))
	if _, err := Merge(at(1), bad).Next(); err == nil || !strings.Contains(err.Error(), "bad: packet 1") {
		t.Error(err)
	}
}

func FuzzReader(f *testing.F) {
	f.Add(ours(pcap.PcapNG, packets(5)))
	f.Add(ours(pcap.Pcap, packets(5)))
	for _, o := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		b, _ := mixed(o)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Open("x", bytes.NewReader(b))
		for n := 0; err == nil; n++ {
			var p *Packet
			if p, err = r.Next(); err == nil && (len(p.Data) > MaxPacket || len(p.Data) > p.Length || p.Time < 0 ||
				n > len(b)) {
				t.Fatalf("packet %d: %d of %d bytes at %d", n, len(p.Data), p.Length, p.Time)
			}
		}
	})
}
