package xsk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/sys"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ctx ends long after anything that works would have.
func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return c
}

// pages is mapped memory; page is 0 or the size of a huge page.
func pages(t testing.TB, size, page int) []byte {
	t.Helper()
	if page > 0 {
		testenv.HugePages(t, page, size/page)
	}
	fd, err := sys.MemfdCreate("xsk", int64(size), page)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(fd)
	b, err := sys.Mmap(fd, 0, size, sys.ProtRead|sys.ProtWrite, sys.MapShared)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sys.Munmap(b) })
	return b
}

// ends is a veth pair between two hosts, with the index of the device at each end.
type ends struct {
	net   *netns.Net
	index [2]int // of eth0
	other [2]int // of eth1, if there are two rails
}

func veth(t testing.TB, s netns.LinkSpec) *ends { return rails(t, 1, s) }

// rails is one or two veth pairs between two hosts.
func rails(t testing.TB, n int, s netns.LinkSpec) *ends {
	t.Helper()
	e := &ends{net: netns.New(t, netns.Topology{Rails: n, Link: s})}
	for i, h := range e.net.Hosts {
		for r := range n {
			dev := fmt.Sprintf("eth%d", r)
			e.do(t, i, func() error {
				// The hosts are quiet: what arrives is what the test sends.
				h.Sysctl("net.ipv6.conf."+dev+".disable_ipv6", "1")
				d, err := net.InterfaceByName(dev)
				if err != nil {
					return err
				}
				if r == 0 {
					e.index[i] = d.Index
				} else {
					e.other[i] = d.Index
				}
				return nil
			})
		}
	}
	return e
}

// second is the other rail as the only one.
func (e *ends) second() *ends { return &ends{net: e.net, index: e.other} }

// do runs fn in a host.
func (e *ends) do(t testing.TB, host int, fn func() error) {
	t.Helper()
	var err error
	if e.net != nil {
		err = e.net.Hosts[host].Do(fn)
	} else {
		err = fn() // in a guest, whose cards are all here
	}
	if err != nil {
		t.Fatal(err)
	}
}

// queue opens a queue at an end.
func (e *ends) queue(t testing.TB, host int, u *Umem, c QueueConfig) *Queue {
	t.Helper()
	var q *Queue
	c.Interface = e.index[host]
	e.do(t, host, func() (err error) {
		q, err = u.OpenQueue(ctx(t), c)
		return err
	})
	t.Cleanup(func() { q.Close() })
	return q
}

// socket opens a socket on a queue at an end.
func (e *ends) socket(t testing.TB, host int, q *Queue, c SocketConfig) *Socket {
	t.Helper()
	var s *Socket
	e.do(t, host, func() (err error) {
		s, err = q.OpenSocket(c)
		return err
	})
	t.Cleanup(func() { s.Close() })
	return s
}

// program attaches a program to an end: see attach.
func (e *ends) program(t testing.TB, host, by int, frags, generic bool) *ebpf.Map {
	t.Helper()
	m, err := e.attach(t, host, by, frags, generic)
	if err != nil {
		if errors.Is(err, sys.EPERM) {
			testenv.Missing(t, "the right to use BPF", err)
		}
		t.Fatal(err)
	}
	return m
}

// leaveMeta instead of a place makes the program leave eight bytes in front of each packet: its
// length and metaMark.
const leaveMeta, metaMark = -2, 0x5e77

// attach attaches a program that gives everything that arrives at an end to the socket at index
// 8*queue+b in the map, where b is 0 or, if by is not negative, the lower three bits of the byte of
// the packet at that place. What no socket is there for is dropped.
func (e *ends) attach(t testing.TB, host, by int, frags, generic bool) (*ebpf.Map, error) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 64})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { m.Close() })
	ins := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 16, asm.Word), // rx_queue_index
		asm.LSh.Imm(asm.R6, 3),
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // data
		asm.LoadMem(asm.R3, asm.R1, 4, asm.Word), // data_end
		asm.Mov.Reg(asm.R4, asm.R2), asm.Add.Imm(asm.R4, int32(max(by, 0)+1)),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
	}
	if by >= 0 {
		ins = append(ins, asm.LoadMem(asm.R5, asm.R2, int16(by), asm.Byte), asm.And.Imm(asm.R5, 7),
			asm.Add.Reg(asm.R6, asm.R5))
	}
	if by == leaveMeta {
		// Eight bytes in front: the length of the packet, and a mark.
		ins = asm.Instructions{
			asm.Mov.Reg(asm.R7, asm.R1),
			asm.LoadMem(asm.R6, asm.R1, 16, asm.Word), asm.LSh.Imm(asm.R6, 3),
			asm.Mov.Imm(asm.R2, -8), asm.FnXdpAdjustMeta.Call(),
			asm.JNE.Imm(asm.R0, 0, "pass"),
			asm.LoadMem(asm.R2, asm.R7, 0, asm.Word), // data
			asm.LoadMem(asm.R3, asm.R7, 4, asm.Word), // data_end
			asm.LoadMem(asm.R4, asm.R7, 8, asm.Word), // data_meta
			asm.Mov.Reg(asm.R5, asm.R4), asm.Add.Imm(asm.R5, 8),
			asm.JGT.Reg(asm.R5, asm.R2, "pass"),
			asm.Sub.Reg(asm.R3, asm.R2),
			asm.StoreMem(asm.R4, 0, asm.R3, asm.Word),
			asm.StoreImm(asm.R4, 4, metaMark, asm.Word),
			asm.Mov.Reg(asm.R1, asm.R7),
		}
	}
	ins = append(ins, asm.Mov.Reg(asm.R2, asm.R6), asm.LoadMapPtr(asm.R1, m.FD()), asm.Mov.Imm(asm.R3, 1),
		asm.FnRedirectMap.Call(), asm.Return(),
		asm.Mov.Imm(asm.R0, 2).WithSymbol("pass"), asm.Return())
	spec := &ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: ins, License: "GPL"}
	if frags {
		spec.Flags = 1 << 5 // BPF_F_XDP_HAS_FRAGS
	}
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	how := link.XDPDriverMode
	if generic {
		how = link.XDPGenericMode
	}
	e.do(t, host, func() error {
		var l link.Link
		if l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: e.index[host], Flags: how}); err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return nil
	})
	return m, err
}

// put puts a socket into a map.
func put(t testing.TB, m *ebpf.Map, at int, s *Socket) {
	t.Helper()
	if err := m.Put(uint32(at), uint32(s.FD())); err != nil {
		t.Fatal(err)
	}
}

// waitABit lets others run.
func waitABit() { runtime.Gosched() }
