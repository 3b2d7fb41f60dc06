package filter

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/libpcap"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/pcap"
)

// oracle is libpcap's own interpreter, which tcpdump -r uses.
type oracle struct{ filter, validate dl.Func }

func newOracle(t testing.TB) *oracle {
	t.Helper()
	lib, err := dl.Open(libpcap.Names...)
	if err != nil {
		testenv.Missing(t, "libpcap", err)
	}
	o := &oracle{}
	for name, f := range map[string]*dl.Func{"pcap_offline_filter": &o.filter, "bpf_validate": &o.validate} {
		if *f, err = lib.Symbol(name); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// inC is a program, as struct bpf_insn, in memory of C.
func inC(t testing.TB, p []Instruction) []byte {
	t.Helper()
	b, err := dl.Alloc(max(8*len(p), 8))
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range p {
		binary.NativeEndian.PutUint16(b[8*i:], x.Op)
		b[8*i+2], b[8*i+3] = x.JT, x.JF
		binary.NativeEndian.PutUint32(b[8*i+4:], x.K)
	}
	return b
}

func (o *oracle) match(t testing.TB, p []Instruction, frame []byte, wire int) bool {
	t.Helper()
	code := inC(t, p)
	defer dl.Free(code)
	b, err := dl.Alloc(64 + len(frame) + 1)
	if err != nil {
		t.Fatal(err)
	}
	defer dl.Free(b)
	binary.NativeEndian.PutUint32(b, uint32(len(p))) // struct bpf_program
	binary.NativeEndian.PutUint64(b[8:], uint64(dl.Address(code)))
	binary.NativeEndian.PutUint32(b[32:], uint32(len(frame))) // struct pcap_pkthdr, behind its time
	binary.NativeEndian.PutUint32(b[36:], uint32(wire))
	copy(b[64:], frame)
	return int32(o.filter.Call3(dl.Address(b), dl.Address(b[16:]), dl.Address(b[64:]))) != 0
}

func (o *oracle) valid(t testing.TB, p []Instruction) bool {
	t.Helper()
	code := inC(t, p)
	defer dl.Free(code)
	return int32(o.validate.Call2(dl.Address(code), uintptr(len(p)))) != 0
}

func compile(t testing.TB, expression string) *Filter {
	t.Helper()
	f, err := Compile(expression, pcap.Ethernet)
	if errors.Is(err, ErrUnavailable) {
		testenv.Missing(t, "libpcap", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func udp(t testing.TB, from, to string, payload int, vlan uint16) []byte {
	t.Helper()
	f := packet.UDPFrame{SrcMAC: packet.MAC{2, 0, 0, 0, 0, 1}, DstMAC: packet.MAC{2, 0, 0, 0, 0, 2},
		Tagged: vlan != 0, Tag: packet.MakeTCI(vlan, 3, false),
		Src: netip.MustParseAddrPort(from), Dst: netip.MustParseAddrPort(to)}
	b := make([]byte, f.HeaderLen()+payload)
	if _, err := f.Fill(b, payload); err != nil {
		t.Fatal(err)
	}
	return b
}

// frames are one of each kind.
func frames(t testing.TB) map[string][]byte {
	t.Helper()
	four := udp(t, "10.0.0.1:1000", "10.0.0.2:53", 100, 0)
	tcp := append([]byte(nil), four...)
	tcp[23], tcp[46], tcp[47] = 6, 0x50, 0x12 // SYN, ACK
	tagged := udp(t, "10.0.0.1:1000", "10.0.0.2:53", 100, 100)
	twice := append(append(append([]byte(nil), tagged[:12]...), 0x88, 0xa8, 0, 200), tagged[12:]...)
	fragment := append([]byte(nil), four...)
	fragment[21] = 10
	options := append(append(append([]byte(nil), four[:34]...), 1, 1, 1, 1), four[34:]...)
	options[14] = 0x46
	return map[string][]byte{"udp4": four, "tcp4": tcp, "udp6": udp(t, "[fd00::1]:53", "[fd00::2]:2000", 20, 0),
		"tagged": tagged, "twice": twice, "tagged6": udp(t, "[fd00::1]:1000", "[fd00::2]:53", 1400, 7),
		"fragment": fragment, "options": options,
		"arp": append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1},
			make([]byte, 38)...),
		"short": four[:20], "none": nil}
}

// known are expressions and the frames that match them, as people read them.
var known = map[string]string{
	"":   "udp4 tcp4 udp6 tagged twice tagged6 fragment options arp short none",
	"ip": "udp4 tcp4 fragment options short", "ip6": "udp6", "arp": "arp", "tcp": "tcp4",
	"udp": "udp4 udp6 fragment options", "udp port 53": "udp4 udp6 options",
	"port 53": "udp4 tcp4 udp6 options", "src port 53": "udp6", "dst port 53": "udp4 tcp4 options",
	"host 10.0.0.1": "udp4 tcp4 fragment options", "src host 10.0.0.2": "-",
	"net 10.0.0.0/30":  "udp4 tcp4 fragment options",
	"ip6 host fd00::1": "udp6", "vlan": "tagged twice tagged6", "vlan 100": "tagged", "vlan 200 and vlan 100": "twice",
	"vlan and udp port 53": "tagged tagged6", "vlan 100 and host 10.0.0.1": "tagged",
	"ether src 02:00:00:00:00:01": "udp4 tcp4 udp6 tagged twice tagged6 fragment options arp short",
	"broadcast":                   "arp", "multicast": "arp", "greater 1000": "tagged6", "less 60": "arp short none",
	"portrange 50-60": "udp4 tcp4 udp6 options", "tcp[tcpflags] & tcp-syn != 0": "tcp4",
	"ip[6:2] & 0x1fff != 0": "fragment", "not udp and not tcp": "tagged twice tagged6 arp",
	"udp or vlan": "udp4 udp6 tagged twice tagged6 fragment options", "ip[0] & 0xf > 5": "options",
	"len == 142 or len % 7 == 3": "", "ether proto 0x88a8": "twice", "udp[8:4] / 1 == 0": "udp4 options",
}

// A frame matches as it does with libpcap's own interpreter, and as people read the expression.
func TestMatch(t *testing.T) {
	o, all := newOracle(t), frames(t)
	for expression, names := range known {
		f := compile(t, expression)
		if f.String() != expression {
			t.Errorf("%q is called %q", expression, f)
		}
		for name, frame := range all {
			got, want := f.Match(frame, len(frame), false), o.match(t, f.program, frame, len(frame))
			if got != want {
				t.Errorf("%q, %s: %v, of libpcap %v", expression, name, got, want)
			}
			listed := false
			for n := range strings.FieldsSeq(names) {
				listed = listed || n == name
			}
			if names != "" && got != listed {
				t.Errorf("%q, %s: %v", expression, name, got)
			}
			if cut := frame[:min(len(frame), 30)]; f.Match(cut, len(frame), true) != o.match(t, f.program, cut,
				len(frame)) {
				t.Errorf("%q, %s cut: libpcap says otherwise", expression, name)
			}
		}
	}
}

// Words that only the kernel knows become the direction, or an error.
func TestDirection(t *testing.T) {
	frame := frames(t)["udp4"]
	for expression, want := range map[string][2]bool{"inbound": {true, false}, "outbound": {false, true},
		"inbound and udp": {true, false}, "inbound and (tcp or udp port 53)": {true, false}, "tcp and outbound": {},
		"not inbound and udp": {false, true}, "(inbound and tcp) or outbound": {false, true}} {
		f := compile(t, expression)
		if in, out := f.Match(frame, len(frame), false), f.Match(frame, len(frame), true); in != want[0] ||
			out != want[1] {
			t.Errorf("%q: %v coming in, %v going out", expression, in, out)
		}
	}
	if _, err := Compile("ifindex 1", pcap.Ethernet); err == nil || !strings.Contains(err.Error(), "only the kernel") ||
		!strings.Contains(err.Error(), `"ifindex 1"`) {
		t.Errorf("%v", err)
	}
	if _, err := Compile("udp", pcap.User0); err == nil {
		t.Error("a filter for UDP of packets without headers")
	}
}

// Each operator gives what it gives in libpcap, with a constant and with X.
func TestOperators(t *testing.T) {
	o := newOracle(t)
	for op := uint16(add); op <= xor; op += 0x10 {
		for _, a := range []uint32{0, 1, 7, 0x80000001, 0xffffffff} {
			for _, k := range []uint32{1, 3, 31, 0x80000000} {
				if k > 31 && (op == lsh || op == rsh) {
					continue // libpcap leaves that to the processor
				}
				p := []Instruction{{Op: ldx | imm, K: k}, {Op: imm, K: a}, {Op: alu | op, K: k},
					{Op: jmp | jeq, JF: 1, K: compute(op, a, k)}, {Op: ret, K: 1}, {Op: ret}}
				for _, by := range []uint16{0, byX} {
					if op != neg { // which has no operand
						p[2].Op = alu | op | by
					}
					if err := check(p); err != nil || !(&Filter{program: p}).Match(nil, 0, false) ||
						!o.match(t, p, nil, 0) {
						t.Errorf("%#x of %#x and %#x is %#x, of libpcap something else: %v", op, a, k, p[3].K, err)
					}
				}
			}
		}
	}
}

func TestAllocations(t *testing.T) {
	f, frame := compile(t, "vlan and udp port 53 or tcp[13] & 2 != 0"), frames(t)["tagged6"]
	if n := testing.AllocsPerRun(1000, func() { f.Match(frame, len(frame), false) }); n > 0 {
		t.Errorf("%v allocations for a packet", n)
	}
}

// FuzzProgram: a program that check takes is valid for libpcap too, ends, and gives what libpcap
// gives.
func FuzzProgram(f *testing.F) {
	o := newOracle(f)
	for expression := range known {
		p := compile(f, expression).program
		b := inC(f, p)
		f.Add(append([]byte(nil), b[:8*len(p)]...), []byte("\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01\x08\x00E"),
			uint16(60))
		dl.Free(b)
	}
	f.Fuzz(func(t *testing.T, code, frame []byte, more uint16) {
		var p []Instruction
		for ; len(code) >= 8 && len(p) < 512; code = code[8:] {
			p = append(p, Instruction{Op: binary.NativeEndian.Uint16(code), JT: code[2], JF: code[3],
				K: binary.NativeEndian.Uint32(code[4:])})
		}
		if check(p) != nil {
			return
		}
		for _, x := range p {
			if x.Op&7 == ld && x.K == packetType || x.Op&0x77 == alu|lsh && x.K > 31 {
				return // libpcap knows no direction, and leaves long shifts to the processor
			}
		}
		if !o.valid(t, p) {
			t.Fatalf("libpcap refuses %+v", p)
		}
		wire := len(frame) + int(more)
		if got, want := (&Filter{program: p}).Match(frame, wire, false), o.match(t, p, frame, wire); got != want {
			t.Fatalf("%v, of libpcap %v: %+v of % x", got, want, p, frame)
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	f, frame := compile(b, "udp port 53"), frames(b)["udp4"]
	b.ReportAllocs()
	for b.Loop() {
		if !f.Match(frame, len(frame), false) {
			b.Fatal("no match")
		}
	}
}
