package packet

import (
	"fmt"
	"testing"
)

func BenchmarkParse(b *testing.B) {
	s := seeds(b)
	for _, name := range []string{"udp4", "udp6", "tcp4", "vlan", "qinq", "dest hop", "eight", "arp"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			frame := s[name]
			var l Layers
			for b.Loop() {
				if Parse(frame, &l) != OK {
					b.Fatal("refused")
				}
			}
		})
	}
}

func BenchmarkParseTunnel(b *testing.B) {
	s := seeds(b)
	for _, name := range []string{"vxlan", "gre", "nvgre"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			frame := s[name]
			var outer, inner Layers
			for b.Loop() {
				if Parse(frame, &outer) != OK || ParseTunnel(frame, &outer, &inner) != OK {
					b.Fatal("refused")
				}
			}
		})
	}
}

func BenchmarkToeplitz(b *testing.B) {
	s := seeds(b)
	h := NewToeplitz(&MicrosoftKey)
	for _, name := range []string{"udp4", "udp6", "fragment"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			frame := s[name]
			var l Layers
			Parse(frame, &l)
			var sum uint32
			for b.Loop() {
				sum += h.Frame(frame, &l)
			}
			sinkUint32 = sum
		})
	}
	b.Run("bits12", func(b *testing.B) {
		b.ReportAllocs()
		data := make([]byte, 12)
		var sum uint32
		for b.Loop() {
			sum += ToeplitzBits(&MicrosoftKey, data)
			data[0]++
		}
		sinkUint32 = sum
	})
}

var sinkUint32 uint32

func BenchmarkFlowHash(b *testing.B) {
	frame := seeds(b)["udp4"]
	b.ReportAllocs()
	var l Layers
	Parse(frame, &l)
	for b.Loop() {
		sinkUint32 += FlowHash(frame, &l)
	}
}

func BenchmarkChecksum(b *testing.B) {
	for _, n := range []int{20, 64, 1400, 8972} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := make([]byte, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				sinkUint32 += uint32(Checksum(p))
			}
		})
	}
}

func BenchmarkUDPFrame(b *testing.B) {
	f, frame := benchFrame()
	for _, mode := range []ChecksumMode{ChecksumNone, ChecksumOffload, ChecksumFull} {
		b.Run([]string{"auto", "full", "none", "offload"}[mode], func(b *testing.B) {
			b.ReportAllocs()
			f.Checksum = mode
			for b.Loop() {
				if _, err := f.Fill(frame, 1400); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEncap(b *testing.B) {
	f, frame := benchFrame()
	f.Fill(frame, 1400)
	for _, kind := range []Tunnel{TunnelVXLAN, TunnelGRE, TunnelNVGRE} {
		b.Run(kind.String(), func(b *testing.B) {
			b.ReportAllocs()
			e := Encap{Kind: kind, Src: f.Src.Addr(), Dst: f.Dst.Addr()}
			buf := append(make([]byte, e.Overhead()), frame...)
			for b.Loop() {
				if _, err := e.Push(buf, e.Overhead()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
