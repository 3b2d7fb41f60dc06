package cli

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/testenv/guest"
	"github.com/penstock-io/penstock/internal/testenv/peers"
)

func TestBenchVerbsUsage(t *testing.T) {
	for _, x := range []struct{ args, want string }{
		{"bench verbs --sizes 3", "power of two"},
		{"bench verbs --sizes much", "--sizes"},
		{"bench verbs --regions much", "--regions"},
		{"bench verbs --classes speed", "expected some of cost, write"},
		{"bench verbs --depth -3", "under way"},
		{"bench verbs mlx5_0", "unexpected"},
	} {
		if _, errOut, status := penstock(t, strings.Fields(x.args)...); status != exitUsage || !strings.Contains(errOut, x.want) {
			t.Errorf("%s: status %d: %s", x.args, status, errOut)
		}
	}
	// What is missing is said with what to do.
	if _, errOut, status := penstock(t, "bench", "verbs", "--library", "/nowhere/libibverbs.so.1"); status == exitOK || !strings.Contains(errOut, "libibverbs") {
		t.Errorf("status %d: %s", status, errOut)
	}
}

// TestGuestBenchVerbs runs the whole command on Soft-RoCE, beside perftest. Its figures mean nothing.
func TestGuestBenchVerbs(t *testing.T) {
	if guest.ID() == 0 { // the guest takes the host's programs; the ledger is the host's too
		peers.Need(t, "perftest")
	}
	// A minute on a quiet machine; only a hang ever sees the limit.
	if guest.Enter(t, guest.Spec{Profile: guest.Rdma, Timeout: 20 * time.Minute}) {
		return
	}
	// All of it alone; then what perftest has, once each: its programs take a second and more to begin in a guest.
	for _, x := range []struct {
		args         string
		rows, beside int
	}{
		{"--alone", 22, 0},
		{"--classes write,read,send,latency --sizes 64KiB --pairs 1", 6, 6},
	} {
		file := filepath.Join(t.TempDir(), "verbs.json")
		out, errOut, status := penstockUntil(t, t.Context(), append(strings.Fields("bench verbs --quick --device rxe0 --json "+file), strings.Fields(x.args)...)...)
		t.Logf("%s%s", out, errOut)
		if status != exitOK {
			t.Fatalf("%s: status %d", x.args, status)
		}
		r, err := paired.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		beside := 0
		for _, row := range r.Rows {
			if row.Failed != "" || len(row.Ours.Samples) == 0 {
				t.Errorf("%+v", row)
			}
			for _, s := range row.Theirs {
				if s.Error != "" || len(s.Samples) != len(row.Ours.Samples) {
					t.Errorf("%s: %s: %d samples: %s", row.Name, s.Name, len(s.Samples), s.Error)
				}
				if strings.HasPrefix(s.Name, "ib_") {
					beside++
				}
			}
		}
		if len(r.Rows) != x.rows || beside != x.beside {
			t.Errorf("%s: %d rows, %d of them beside perftest; expected %d and %d", x.args, len(r.Rows), beside, x.rows, x.beside)
		}
	}
	if _, errOut, status := penstock(t, "bench", "verbs", "--quick", "--device", "mlx5_0"); status == exitOK || !strings.Contains(errOut, "expected one of rxe0") {
		t.Errorf("status %d: %s", status, errOut)
	}
}
