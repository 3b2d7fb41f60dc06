package gpucard

import (
	"bytes"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/feed"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/cuda"
)

// What packets cost on their way to a persistent kernel on this card, and back. Nothing is asserted
// but the answers: the figures are in the result file's output.
func TestFeed(t *testing.T) {
	if !card(t) {
		return
	}
	if r, err := look(library()); err != nil {
		t.Fatal(err)
	} else if r.Fake {
		t.Log("the fake runs no kernel's instructions")
		return
	}
	o := feed.Options{Pairs: 5, Budget: 10 * time.Millisecond,
		Table: gpu.Table{{Name: "cuda", Open: func() (*gpu.Runtime, error) {
			return cuda.Open(cuda.Options{Library: library()})
		}}}}
	r, err := feed.Run(t.Context(), o)
	if r != nil {
		var b bytes.Buffer
		r.Table(&b)
		t.Logf("%s", b.String())
	}
	if err != nil {
		t.Fatal(err)
	}
}
