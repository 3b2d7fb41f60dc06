package cli

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/transfer/path/drivers"
	"github.com/penstock-io/penstock/transfer/path/verbs"
	"github.com/spf13/cobra"
)

// The flag reaches the options of the driver; without it there are none.
func TestVerbsFlag(t *testing.T) {
	same := cmpopts.IgnoreUnexported(verbs.Options{})
	got, err := parseVerbs(nil, strings.Split("device=mlx5_0,queue_pairs=2", ","))
	want := verbs.Options{Device: "mlx5_0", QueuePairs: 2, Depth: verbs.DefaultDepth, Timeout: verbs.DefaultTimeout}
	if d := cmp.Diff(want, got, same, cmpopts.EquateComparable(want.For)); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
	if got, err = parseVerbs([]string{"tcp"}, nil); err != nil ||
		!cmp.Equal(got, verbs.Options{}, same, cmpopts.EquateComparable(want.For)) {
		t.Errorf("%+v, %v", got, err)
	}
}

// A user who shapes paths over RDMA gets them or an error, another user the other paths.
func TestVerbsAreWanted(t *testing.T) {
	lib, err := fake.Build()
	if errors.Is(err, fake.ErrMissing) {
		testenv.Missing(t, "a C compiler and the headers of libibverbs", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if all, err := pathDrivers(drivers.Options{}, []string{"library=" + lib}); err != nil || len(all) != 3 {
		t.Errorf("%v, %v", all, err)
	}
	if _, err := pathDrivers(drivers.Options{}, []string{"library=" + lib, "device=mlx5_9"}); err == nil ||
		!strings.HasPrefix(err.Error(), "--verbs: ") ||
		!strings.Contains(err.Error(), `no RDMA device "mlx5_9", only [`) {
		t.Errorf("a device that is not there: %v", err)
	}
	if _, err := pathDrivers(drivers.Options{Names: []string{"shm", "verbs"}},
		[]string{"library=/nowhere/libibverbs.so.1"}); err == nil || !strings.Contains(err.Error(), "libibverbs") {
		t.Errorf("a library that is not there: %v", err)
	}
	if all, err := pathDrivers(drivers.Options{Names: []string{"verbs"}}, nil); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestCompleteVerbs(t *testing.T) {
	devices := func() []string { return []string{"mlx5_0", "rxe0"} }
	for typed, want := range map[string]string{
		"device=":          "device=mlx5_0 device=rxe0",
		"port=2,device=rx": "port=2,device=rxe0",
		"windows=f":        "windows=false",
		"nonsense=":        "",
		"tr":               "", // transport was a key
		"d":                "device= depth=",
		"device=a,d":       "device=a,depth=",
	} {
		got, directive := completeVerbs(typed, devices)
		if strings.Join(got, " ") != want || directive&cobra.ShellCompDirectiveNoFileComp == 0 {
			t.Errorf("%q: %q, %d", typed, got, directive)
		}
	}
	if got, _ := completeVerbs("", devices); len(got) != len(config.VerbsKeys()) {
		t.Errorf("%q", got)
	}
}

// TestGuestBenchTransfer runs bench transfer between two processes over Soft-RoCE: all rows are
// there, their bytes were checked, and the result says what carried them. Its figures mean nothing.
func TestGuestBenchTransfer(t *testing.T) {
	if guest.Enter(t, guest.Spec{Profile: guest.Rdma, Timeout: 15 * time.Minute}) {
		return
	}
	for _, x := range []struct {
		args, carrier string
		rows          []string
	}{
		{"--path verbs --mode event --size 64,64KiB --peers 1,2", "rxe0 port 1, RC",
			[]string{"verbs put + seen, one way 64 B event", "verbs put 64 B event", "verbs get 64 B event",
				"verbs put 64 KiB event", "verbs get 64 KiB event", "verbs put 1024 x 4 KiB event",
				"verbs get 1024 x 4 KiB event", "verbs put 64 KiB event 2 peers", "verbs api put 64 B event",
				"verbs api put 64 KiB event"}},
		{"--verbs device=rxe0,queue_pairs=2 --mode event --size 64KiB --peers 1", "rxe0 port 1, RC",
			[]string{"verbs put 64 KiB event", "verbs get 64 KiB event", "verbs api put 64 KiB event"}},
	} {
		file := filepath.Join(t.TempDir(), "transfer.json")
		out, errOut, status := penstockUntil(t, t.Context(),
			append(strings.Fields("bench transfer --quick --output "+file), strings.Fields(x.args)...)...)
		if status != exitOK {
			t.Fatalf("%s: status %d\n%s%s", x.args, status, out, errOut)
		}
		r, err := paired.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, row := range r.Rows {
			seen[row.Name] = true
			if row.Path != "verbs" || row.Carrier != x.carrier || row.Failed != "" || row.Ours.Verified == 0 ||
				row.Ours.Unverified != 0 || len(row.Ours.Samples) == 0 {
				t.Errorf("%s: %+v", x.args, row)
			}
		}
		for _, want := range x.rows {
			if !seen[want] {
				t.Errorf("%s: no row %q among %v", x.args, want, seen)
			}
		}
		if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, "verbs on rxe0 port 1") ||
			!strings.Contains(out, "verbs on rxe0 port 1") {
			t.Errorf("%s: nothing is said of the device:\n%s\n%s", x.args, notes, out)
		}
	}
	if _, errOut, status := penstock(t, "bench", "transfer", "--quick", "--verbs", "device=mlx5_0"); status == exitOK ||
		!strings.Contains(errOut, `no RDMA device "mlx5_0", only ["rxe0"]`) {
		t.Errorf("a device that is not there: status %d: %s", status, errOut)
	}
}
