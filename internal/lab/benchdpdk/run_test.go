package benchdpdk

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/dpdk"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	testpeers "github.com/penstock-io/penstock/internal/lab/testenv/peers"
)

// Every row runs, and says what is ours. A plain build says how to get DPDK.
func TestRows(t *testing.T) {
	testenv.Once(t)
	testpeers.Need(t, "testpmd")
	r, err := Run(t.Context(), Options{Batches: []int{32}, Pairs: 1, Time: time.Millisecond})
	if dpdk.New().Available() != nil {
		if !errors.Is(err, engine.ErrNotBuilt) {
			t.Errorf("in a plain build: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != len(Ops()) {
		t.Fatalf("%d rows", len(r.Rows))
	}
	for _, x := range r.Rows {
		t.Logf("%s: %.1f ns, %s", x.Name, x.Ours.Stats.Median, x.Note)
		if !strings.Contains(x.Note, "on top of testpmd") {
			t.Errorf("%s: %q, %+v", x.Name, x.Note, x.Theirs)
		}
	}
}

func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		`operation "dance"`:   {Ops: []string{"dance"}},
		"0 packets at a time": {Batches: []int{0}},
		"millisecond or more": {Time: time.Microsecond},
	} {
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

func TestOnTop(t *testing.T) {
	if s := onTop([]float64{10, 30, 21}, []float64{5, 20, 20}); !strings.HasPrefix(s, "+5.0 ns") {
		t.Error(s)
	}
}
