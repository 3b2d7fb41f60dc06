// Package filter matches packets with expressions in tcpdump's language. libpcap compiles them to
// classic BPF; an interpreter in Go runs the program on the whole frame, VLAN tags included, so
// that a packet matches alike as it is received, replayed and read from a file. A match allocates
// nothing.
package filter

import (
	"encoding/binary"
	"fmt"

	"github.com/penstock-io/penstock/internal/libpcap"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/pcap"
)

// ErrUnavailable is wrapped by errors of Compile where there is no libpcap.
var ErrUnavailable = libpcap.ErrUnavailable

// Instruction is an instruction of classic BPF.
type Instruction = sys.FilterInstruction

// Filter is a compiled expression. Any goroutine may use it.
type Filter struct {
	text    string
	program []Instruction
}

// Compile compiles an expression for packets of a link type. The expression "" matches all packets.
// inbound and outbound become the direction of the packet.
func Compile(expression string, link pcap.Link) (*Filter, error) {
	program, err := libpcap.Compile(expression, uint16(link), pcap.SnapLen)
	if err == nil {
		err = check(program)
		if err != nil {
			err = fmt.Errorf("filter %q: %w", expression, err)
		}
	}
	return &Filter{expression, program}, err
}

// String is the expression.
func (f *Filter) String() string { return f.text }

// Kernel is a program for a packet socket. The kernel has taken the outer VLAN tag off a frame
// before the program sees it, so that the program takes all tagged frames: Match decides.
func (f *Filter) Kernel() []Instruction {
	return append([]Instruction{
		{Op: 0x20, K: kernelOnly + 48}, // ld [SKF_AD_VLAN_TAG_PRESENT]
		{Op: 0x15, JT: 1},              // jeq #0
		{Op: 0x06, K: pcap.SnapLen},    // ret
	}, f.program...)
}

// Instruction codes: classes, sizes and modes, operators, and where an operand is.
const (
	ld, ldx, st, stx, alu, jmp, ret, misc = 0, 1, 2, 3, 4, 5, 6, 7

	word, half, octet                             = 0x00, 0x08, 0x10
	imm, absolute, indirect, scratch, length, msh = 0x00, 0x20, 0x40, 0x60, 0x80, 0xa0

	add, sub, mul, div, or, and, lsh, rsh, neg, mod, xor = 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90,
		0xa0
	ja, jeq, jgt, jge, jset = 0x00, 0x10, 0x20, 0x30, 0x40

	byX = 0x08 // operand X instead of K
	byA = 0x10 // ret
	txa = 0x80

	scratchWords = 16
)

// Loads from kernelOnly on are what only the kernel knows of a packet (SKF_AD_OFF), of which the
// direction is known here too.
const (
	kernelOnly     = 0xfffff000
	lowest         = 0xffe00000     // of what the kernel reads elsewhere (SKF_LL_OFF)
	packetType     = kernelOnly + 4 // SKF_AD_PKTTYPE
	packetOutgoing = 4              // PACKET_OUTGOING
)

// check makes sure that a program can be run: each instruction is known, jumps stay inside and the
// last instruction returns.
func check(program []Instruction) error {
	bad := func(i int, why string) error {
		return fmt.Errorf("instruction %d of the program (%#x %d %d %#x) %s", i, program[i].Op, program[i].JT,
			program[i].JF, program[i].K, why)
	}
	for i, x := range program {
		rest, ok := uint64(len(program)-i-1), false
		switch x.Op & 7 {
		case ld:
			switch x.Op {
			case ld | absolute, ld | absolute | half, ld | absolute | octet:
				if ok = x.K < lowest || x.K == packetType; !ok {
					return bad(i,
						"asks for what only the kernel knows of a packet: of such words expected inbound and "+
							"outbound")
				}
			case ld | indirect, ld | indirect | half, ld | indirect | octet, ld | imm, ld | length:
				ok = true
			case ld | scratch:
				ok = x.K < scratchWords
			}
		case ldx:
			ok = x.Op == ldx|imm || x.Op == ldx|length || x.Op == ldx|msh|octet ||
				x.Op == ldx|scratch && x.K < scratchWords
		case st, stx:
			ok = x.Op <= stx && x.K < scratchWords
		case alu:
			op := x.Op &^ (7 | byX)
			ok = op <= xor && (x.Op&byX != 0 || (op != div && op != mod) || x.K != 0)
		case jmp:
			op := x.Op &^ (7 | byX)
			ok = x.Op == jmp|ja && uint64(x.K) < rest ||
				op != ja && op <= jset && uint64(x.JT) < rest && uint64(x.JF) < rest
		case ret:
			ok = x.Op == ret || x.Op == ret|byA
		case misc:
			ok = x.Op == misc || x.Op == misc|txa
		}
		if !ok {
			return bad(i, "is not known, or leads outside of the program")
		}
	}
	if n := len(program); n == 0 || program[n-1].Op&7 != ret {
		return fmt.Errorf("the program of %d instructions does not end with a return", n)
	}
	return nil
}

// Match reports whether a packet matches: its bytes, those that it had on the wire, and whether
// this host sent it. A program that reads behind the bytes does not match.
func (f *Filter) Match(b []byte, wire int, outgoing bool) bool {
	var a, x uint32
	var m [scratchWords]uint32
	program := f.program
	for i := 0; ; i++ {
		p := &program[i]
		switch p.Op & 7 {
		case ld:
			switch mode := p.Op &^ (7 | half | octet); {
			case mode == imm:
				a = p.K
			case mode == length:
				a = uint32(wire)
			case mode == scratch:
				a = m[p.K]
			case mode == absolute && p.K == packetType:
				if a = 0; outgoing {
					a = packetOutgoing
				}
			default:
				at := uint64(p.K)
				if mode == indirect {
					at += uint64(x)
				}
				var ok bool
				if a, ok = load(b, at, p.Op&(half|octet)); !ok {
					return false
				}
			}
		case ldx:
			switch p.Op {
			case ldx | imm:
				x = p.K
			case ldx | length:
				x = uint32(wire)
			case ldx | scratch:
				x = m[p.K]
			default: // msh: the length of an IPv4 header
				if uint64(p.K) >= uint64(len(b)) {
					return false
				}
				x = uint32(b[p.K]&15) << 2
			}
		case st:
			m[p.K] = a
		case stx:
			m[p.K] = x
		case alu:
			k := p.K
			if p.Op&byX != 0 {
				k = x
			}
			op := p.Op &^ (7 | byX)
			if k == 0 && (op == div || op == mod) {
				return false
			}
			a = compute(op, a, k)
		case jmp:
			k := p.K
			if p.Op&byX != 0 {
				k = x
			}
			var yes bool
			switch p.Op &^ (7 | byX) {
			case ja:
				i += int(p.K)
				continue
			case jeq:
				yes = a == k
			case jgt:
				yes = a > k
			case jge:
				yes = a >= k
			case jset:
				yes = a&k != 0
			}
			if yes {
				i += int(p.JT)
			} else {
				i += int(p.JF)
			}
		case ret:
			if p.Op == ret {
				return p.K != 0
			}
			return a != 0
		case misc:
			if p.Op == misc {
				x = a
			} else {
				a = x
			}
		}
	}
}

// load reads a number in network order.
func load(b []byte, at uint64, size uint16) (uint32, bool) {
	n := uint64(len(b))
	switch {
	case size == word && n >= 4 && at <= n-4:
		return binary.BigEndian.Uint32(b[at:]), true
	case size == half && n >= 2 && at <= n-2:
		return uint32(binary.BigEndian.Uint16(b[at:])), true
	case size == octet && at < n:
		return uint32(b[at]), true
	}
	return 0, false
}

func compute(op uint16, a, k uint32) uint32 {
	switch op {
	case add:
		return a + k
	case sub:
		return a - k
	case mul:
		return a * k
	case div:
		return a / k
	case mod:
		return a % k
	case and:
		return a & k
	case or:
		return a | k
	case xor:
		return a ^ k
	case lsh:
		return a << k // 0 from 32 on, as in libpcap
	case rsh:
		return a >> k
	}
	return -a // neg
}
