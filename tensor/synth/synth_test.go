package synth_test

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/synth"
)

// The published first outputs of SplitMix64 with state 0: two processes of different versions must
// agree on the pattern.
func TestPatternGolden(t *testing.T) {
	words := []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f, 0xf88bb8a8724c81ec,
		0x1b39896a51a8749b}
	var want []byte
	for _, w := range words {
		for k := range 8 {
			want = append(want, byte(w>>(8*k)))
		}
	}
	got := make([]byte, 40)
	synth.Fill(got, 0)
	if !bytes.Equal(got, want) {
		t.Errorf("Fill(seed 0) = %x; want %x", got, want)
	}
	if s := synth.Seed("foobar"); s != 0x85944171f73967e8 { // from the FNV test vectors
		t.Errorf(`Seed("foobar") = %#x`, s)
	}
	synth.Fill(got[:8], synth.Seed("wte.weight"))
	if s := hex.EncodeToString(got[:8]); s != "298a3780497035f5" {
		t.Errorf("first word of wte.weight: %s", s)
	}
}

func TestFillAtIsAWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		whole := make([]byte, 300)
		synth.Fill(whole, seed)
		from := rapid.IntRange(0, 300).Draw(t, "from")
		to := rapid.IntRange(from, 300).Draw(t, "to")
		part := bytes.Repeat([]byte{0xaa}, to-from+1)
		synth.FillAt(part[:to-from], seed, uint64(from))
		if !bytes.Equal(part[:to-from], whole[from:to]) {
			t.Fatalf("FillAt(%d) of %d bytes differs from the whole", from, to-from)
		}
		if part[to-from] != 0xaa {
			t.Fatal("FillAt wrote behind its destination")
		}
		if bad, ok := synth.Verify(whole[from:to], seed, uint64(from)); !ok || bad != -1 {
			t.Fatalf("Verify(%d, %d bytes) = %d, %v", from, to-from, bad, ok)
		}
	})
}

func TestVerifyFindsTheFirstBadByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed, offset := rapid.Uint64().Draw(t, "seed"), rapid.Uint64().Draw(t, "offset")
		p := make([]byte, rapid.IntRange(1, 200).Draw(t, "len"))
		synth.FillAt(p, seed, offset)
		at := rapid.IntRange(0, len(p)-1).Draw(t, "at")
		p[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if later := rapid.IntRange(at, len(p)-1).Draw(t, "later"); later != at {
			p[later] ^= 0xff
		}
		if bad, ok := synth.Verify(p, seed, offset); ok || bad != at {
			t.Fatalf("%d bytes from %d, broken at %d: Verify = %d, %v", len(p), offset, at, bad, ok)
		}
	})
}

// What goes wrong in a transport: nothing arrived, another seed's bytes, bytes shifted by a word or
// a page.
func TestVerifyFindsErrorsOfTransport(t *testing.T) {
	whole := make([]byte, 64<<10)
	synth.Fill(whole, 7)
	other := make([]byte, 4096)
	synth.Fill(other, 8)
	shifted := uint64(7)
	shifted += 0x9e3779b97f4a7c15 // seeds one step of the counter apart
	stream := make([]byte, 4096)
	synth.Fill(stream, shifted)
	for name, p := range map[string][]byte{
		"zeros": make([]byte, 4096), "other seed": other, "one word off": whole[8:4104],
		"one page off":               whole[4096:8192],
		"seed one counter step away": stream,
	} {
		if bad, ok := synth.Verify(p, 7, 0); ok || bad > 1 {
			t.Errorf("%s: Verify = %d, %v", name, bad, ok)
		}
	}
	if bytes.Equal(stream[:2048], whole[8:2056]) {
		t.Error("two seeds give shifted streams")
	}
	if n := testing.AllocsPerRun(10, func() { synth.Fill(other, 1); synth.Verify(other, 1, 0) }); n != 0 {
		t.Errorf("%v allocations per Fill and Verify", n)
	}
}

func TestGPT2(t *testing.T) {
	specs := synth.GPT2.Tensors()
	parameters := int64(0)
	names := map[string]tensor.Desc{}
	types := map[tensor.DType]bool{}
	for _, s := range specs {
		if _, twice := names[s.Name]; twice {
			t.Errorf("%s occurs twice", s.Name)
		}
		names[s.Name] = s.Desc
		types[s.Desc.DType] = true
		n, err := s.Desc.Elems()
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(s.Name, ".weight") || strings.HasSuffix(s.Name, ".bias") {
			parameters += n
		}
	}
	if parameters != 124_439_808 { // as published for the smallest model
		t.Errorf("%d parameters; GPT-2 small has 124439808", parameters)
	}
	for name, want := range map[string]string{
		"wte.weight": "f32[50257 768]", "wpe.weight": "f32[1024 768]", "position_ids": "i64[1 1024]",
		"h.0.attn.c_attn.weight": "f32[768 2304]", "h.0.attn.mask": "bool[1 1 1024 1024]",
		"h.11.mlp.c_fc.weight": "f8e5m2[768 3072]", "h.11.mlp.c_proj.weight_scale": "f32[768]", "ln_f.bias": "f32[768]",
	} {
		if got := names[name].String(); got != want {
			t.Errorf("%s is %s; want %s", name, got, want)
		}
	}
	for _, d := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16, tensor.I8, tensor.U8, tensor.F8E4M3,
		tensor.F8E5M2, tensor.Bool, tensor.I64} {
		if !types[d] {
			t.Errorf("no tensor of %s", d)
		}
	}
	tiny := synth.Tiny.Tensors()
	total := int64(0)
	for _, s := range tiny {
		n, err := s.Desc.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		total += n
	}
	if total > 1<<20 {
		t.Errorf("Tiny takes %d bytes; want at most 1 MiB", total)
	}
	half := synth.GPT2
	half.Layers = 6
	if len(half.Tensors()) >= len(specs) || len(half.Tensors()) != len(tiny) {
		t.Errorf("tensors: %d with 6 layers, %d with 12, %d in Tiny", len(half.Tensors()), len(specs), len(tiny))
	}
}

func BenchmarkPattern(b *testing.B) {
	p := make([]byte, 1<<20)
	b.Run("fill", func(b *testing.B) {
		b.SetBytes(int64(len(p)))
		for b.Loop() {
			synth.Fill(p, 1)
		}
	})
	synth.Fill(p, 1)
	b.Run("verify", func(b *testing.B) {
		b.SetBytes(int64(len(p)))
		for b.Loop() {
			if _, ok := synth.Verify(p, 1, 0); !ok {
				b.Fatal("not verified")
			}
		}
	})
}
