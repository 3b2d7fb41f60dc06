package transfer

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/path"
)

// many exports n named tensors of one region.
func many(t testing.TB, node *Node, n int) (names []string) {
	t.Helper()
	r := region(t, 4096)
	d := tensor.Desc{DType: tensor.F32, Shape: []int64{4, 16}}
	for i := range n {
		name := fmt.Sprintf("model.layers.%d.weight", i)
		names = append(names, name)
		if _, err := node.Export(r.All(), ExportOptions{Name: name, Rights: path.Read, Tensor: &d}); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(names)
	return names
}

func TestListManyPages(t *testing.T) {
	p := newPair(t, Options{})
	n, deep := 10_000, 111 // deep: of layers.99, 99n and 99nn
	if testenv.Race {
		n, deep = 2000, 11
	}
	names := many(t, p.b, n)
	all, err := p.ab.List(ctx(t), "model.")
	if err != nil {
		t.Fatal(err)
	}
	got := make([]string, len(all))
	for i, r := range all {
		got[i] = r.Name
		if r.Tensor == nil || len(r.Tensor.Shape) != 2 {
			t.Fatalf("%q without its tensor", r.Name)
		}
	}
	if !slices.Equal(got, names) {
		t.Fatalf("%d names, expected %d", len(got), len(names))
	}
	// What a list showed can be used.
	dst := region(t, 4096)
	x, err := p.ab.Get(ctx(t), []path.Copy{all[1321].At(0, dst.All())}, PutOptions{})
	wait(t, x, err)
	if some, err := p.ab.List(ctx(t), "model.layers.99"); err != nil || len(some) != deep {
		t.Fatalf("%d names, expected %d, %v", len(some), deep, err)
	}
}

// A page is a part of List, from any name on, also one that is not there.
func TestListPage(t *testing.T) {
	p := newPair(t, Options{})
	names := many(t, p.b, 300)
	for _, c := range []struct {
		behind string
		most   uint32
		want   []string
		more   bool
	}{
		{"", 7, names[:7], true},
		{names[99], 50, names[100:150], true},
		{names[99] + "\x00", 50, names[100:150], true},
		{names[289], 10, names[290:], false},
		{names[289], 0, names[290:], false},
		{names[299], 10, nil, false},
	} {
		page, more, err := p.ab.ListPage(ctx(t), "model.", c.behind, c.most)
		var got []string
		for _, r := range page {
			got = append(got, r.Name)
		}
		if err != nil || more != c.more || !slices.Equal(got, c.want) {
			t.Errorf("behind %q: %q, more %v, %v; expected %q", c.behind, got, more, err, c.want)
		}
	}
}

// Names are those of List with their sizes and tensors, without what is for transfers, on as many
// pages as they need.
func TestNamesManyPages(t *testing.T) {
	p := newPair(t, Options{})
	many(t, p.b, 1000)
	r, random := region(t, 4096), rand.NewChaCha8([32]byte{1})
	for range 6000 { // neither the names of a page before they are compressed nor after that fit into one
		var b [100]byte
		random.Read(b[:])
		if _, err := p.b.Export(mem.Span{Region: r, Len: uint64(b[0])},
			ExportOptions{Name: hex.EncodeToString(b[:]), Rights: path.Read, Tag: [16]byte{1}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, prefix := range []string{"", "model.", "a", "none"} {
		all, err := p.ab.List(ctx(t), prefix)
		if err != nil {
			t.Fatal(err)
		}
		names, err := p.ab.Names(ctx(t), prefix)
		if err != nil || len(names) != len(all) {
			t.Fatalf("%q: %d names, expected %d, %v", prefix, len(names), len(all), err)
		}
		for i, r := range names {
			want := *all[i]
			want.Desc, want.Generation, want.Tag = path.Desc{Size: want.Desc.Size, Rights: want.Desc.Rights}, 0,
				[16]byte{}
			if !reflect.DeepEqual(*r, want) {
				t.Fatalf("%+v, expected %+v", r, want)
			}
		}
	}
	// They name no memory.
	names, err := p.ab.Names(ctx(t), "model.")
	if err != nil {
		t.Fatal(err)
	}
	if x, err := p.ab.Get(ctx(t), []path.Copy{names[0].At(0, region(t, 4096).All())}, PutOptions{}); err == nil {
		t.Errorf("a get of a name: %v", x.Wait(ctx(t)))
	}
}

// BenchmarkList10000 lists ten thousand named tensors of a peer over its control connection.
func BenchmarkList10000(b *testing.B) {
	p := newPair(b, Options{})
	many(b, p.b, 10_000)
	b.ReportAllocs()
	for b.Loop() {
		all, err := p.ab.List(b.Context(), "")
		if err != nil || len(all) != 10_000 {
			b.Fatal(len(all), err)
		}
	}
}
