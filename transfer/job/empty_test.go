package job

import (
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// An export of no bytes is stored and fetched as others are: of memory of no bytes, and of none of
// the bytes of a region.
func TestJobWithoutBytes(t *testing.T) {
	d := tensor.Desc{DType: tensor.F32, Shape: []int64{4, 0, 3}}
	none, err := mem.Adopt("none", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { none.Close() })
	s := newServer(t, 4096, transfer.ExportOptions{})
	l := link(t, open(t, transfer.Options{}), s.addr(), LinkOptions{})
	for where, span := range map[string]mem.Span{"no memory": none.All(),
		"no bytes of a region": {Region: region(t, 4096), Off: 4096}} {
		if _, err := s.node.Export(span, transfer.ExportOptions{Name: where, Rights: path.Read | path.Write, Tensor: &d,
			WholeRegion: span.Region != none}); err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		for _, by := range [][]string{nil, {"tcp"}} {
			o := Options{Transfer: transfer.PutOptions{Paths: by}}
			stored, err := l.Store(ctx(t), where, span, o)
			waitJob(t, stored, err)
			fetched, err := l.Fetch(ctx(t), where, span, o)
			waitJob(t, fetched, err)
			for _, j := range []*Job{stored, fetched} {
				if j.Bytes() != 0 || j.Verified() != 0 || j.Progress() != 1 {
					t.Errorf("%s by %v: %d bytes, progress %v", where, by, j.Bytes(), j.Progress())
				}
			}
		}
	}
}
