package prog

import (
	"fmt"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/packet/flow/flowtest"
)

// BenchmarkProgram is what the program costs the kernel for each packet, as BPF_PROG_TEST_RUN
// measures it: the least mean of some runs of 2^18 equal packets. So the packet and the tables lie
// in the cache, and the processor guesses every branch right; what a real device and the socket
// cost is not in it, but for the call that finds the socket. "nothing" is what the measuring itself
// costs, "redirect" the least that a program for AF_XDP can do.
//
// docs/measurements/xdp-program.md has figures.
func BenchmarkProgram(b *testing.B) {
	frame := udp(5000, 22)
	b.Run("nothing", func(b *testing.B) { bare(b, frame, asm.Mov.Imm(asm.R0, xdpPass)) })
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 64})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	fd, err := sys.XDPSocket()
	if err != nil {
		b.Fatal(err)
	}
	defer sys.Close(fd)
	b.Run("redirect", func(b *testing.B) {
		if err := m.Put(uint32(0), uint32(fd)); err != nil {
			b.Fatal(err)
		}
		bare(b, frame, asm.LoadMem(asm.R2, asm.R1, ctxQueue, asm.Word), asm.LoadMapPtr(asm.R1, m.FD()),
			asm.Mov.Imm(asm.R3, xdpPass), asm.FnRedirectMap.Call())
	})
	all := flow.Isolation{Unmatched: flow.Deliver}
	b.Run("direct", func(b *testing.B) { whole(b, Spec{Isolation: all, Uncounted: true}, frame) })
	for _, meta := range []bool{false, true} {
		b.Run(fmt.Sprintf("norules/meta=%t", meta), func(b *testing.B) {
			whole(b, Spec{Isolation: all, Metadata: meta}, frame)
		})
		b.Run(fmt.Sprintf("port/meta=%t", meta), func(b *testing.B) {
			whole(b, Spec{Rules: parseRules(b, "udp dst 5000 -> queue 0"), Metadata: meta}, frame)
		})
	}
	b.Run("port/frags", func(b *testing.B) {
		whole(b, Spec{Rules: parseRules(b, "udp dst 5000 -> queue 0"), Metadata: true, Frags: true}, frame)
	})
	b.Run("rss", func(b *testing.B) {
		whole(b, Spec{Rules: parseRules(b, "udp dst 5000 -> rss 0 1 2 3"), Metadata: true}, frame)
	})
	for _, n := range []int{1, 16, 64, 256, 1000} {
		// A frame of the rule that comes last, and one that none has.
		rules := flowtest.Rules(7, n)
		last := 0
		for i := range rules {
			rules[i].Actions = []flow.Action{flow.Queue(1)}
			if rules[i].Priority < rules[last].Priority {
				last = i
			}
		}
		hit, _ := flowtest.Meeting(flowtest.NewRand(3), &rules[last].Match)
		b.Run(fmt.Sprintf("rules=%d/hit", n), func(b *testing.B) {
			whole(b, Spec{Rules: rules, Metadata: true}, hit.Frame())
		})
		b.Run(fmt.Sprintf("rules=%d/miss", n), func(b *testing.B) {
			whole(b, Spec{Rules: rules, Metadata: true}, frame)
		})
	}
}

func whole(b *testing.B, s Spec, frame []byte) {
	begin := time.Now()
	p := load1(b, s)
	took := time.Since(begin)
	fd, err := sys.XDPSocket()
	if err != nil {
		b.Fatal(err)
	}
	defer sys.Close(fd)
	for q := range 4 {
		if err := p.Set(0, q, fd); err != nil {
			b.Fatal(err)
		}
	}
	least(b, p.now.program, frame)
	b.ReportMetric(float64(took.Microseconds())/1000, "ms/load")
	b.ReportMetric(float64(p.Info().Instructions), "instructions")
}

func bare(b *testing.B, frame []byte, ins ...asm.Instruction) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: append(ins, asm.Return())})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	least(b, p, frame)
}

func least(b *testing.B, p *ebpf.Program, frame []byte) {
	best := time.Duration(1 << 62)
	for range 15 {
		_, d, err := p.Benchmark(frame, 1<<18, nil)
		if err != nil {
			b.Fatal(err)
		}
		best = min(best, d)
	}
	for b.Loop() { // everything is measured
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(best), "ns/packet")
}
