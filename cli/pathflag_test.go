package cli

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/spf13/cobra"
)

// A user who gives a path options gets it or an error, another user the other paths; --verbs says
// the same as --path.
func TestPathsAreWanted(t *testing.T) {
	lib, err := fake.Build()
	if errors.Is(err, fake.ErrMissing) {
		testenv.Missing(t, "a C compiler and the headers of libibverbs", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ paths, older, want string }{
		{"", "", "shm tcp verbs"},
		{"verbs", "", "verbs"},
		{"", "library=" + lib, "shm tcp verbs"},
		{"verbs?library=" + lib + ",shm", "", "verbs shm"},
		{"", "library=" + lib + ",device=mlx5_9", `no RDMA device "mlx5_9", only [`},
		{"shm,verbs", "library=/nowhere/libibverbs.so.1", "libibverbs"},
		{"shm,verbs?library=/nowhere/libibverbs.so.1", "", "libibverbs"},
		{"verbs?device=mlx5_9", "library=" + lib, `no RDMA device "mlx5_9", only [`},
		{"verbs?device=mlx5_9", "device=mlx5_8", "device: it is there twice"},
		{"verbs", "library=/nowhere/c++%20/lib.so.1", "/nowhere/c++%20/lib.so.1"},
		{"tcp", "library=" + lib, "which --path leaves out"},
	} {
		split := func(s string) []string {
			if s == "" {
				return nil
			}
			return strings.Split(s, ",")
		}
		all, err := pathDrivers(split(c.paths), split(c.older), false)
		var got []string
		for _, d := range all {
			got = append(got, d.Name())
		}
		if err != nil {
			got = []string{strings.ReplaceAll(err.Error(), "verbs: verbs: ", "verbs: ")}
		}
		if !strings.Contains(strings.Join(got, " "), c.want) || err == nil && strings.Join(got, " ") != c.want {
			t.Errorf("--path %q --verbs %q: %q", c.paths, c.older, got)
		}
	}
}

func TestCompletePaths(t *testing.T) {
	devices := func() []string { return []string{"mlx5_0", "rxe0"} }
	for typed, want := range map[string]string{
		"":                           "shm tcp verbs",
		"tcp,":                       "tcp,shm tcp,verbs",
		"verbs?device=":              "verbs?device=mlx5_0 verbs?device=rxe0",
		"shm,verbs?port=2&device=rx": "shm,verbs?port=2&device=rxe0",
		"verbs?windows=f":            "verbs?windows=false",
		"tcp?ktls=o":                 "tcp?ktls=on tcp?ktls=off",
		"verbs?nonsense=":            "",
		"shm?":                       "",
		"verbs?d":                    "verbs?device= verbs?depth=",
		"tcp?zero_copy=true,verbs?gid=1&d": "tcp?zero_copy=true,verbs?gid=1&device= " +
			"tcp?zero_copy=true,verbs?gid=1&depth=",
		"verbs?device=a&d": "verbs?device=a&depth=",
	} {
		got, directive := completePaths(typed, devices)
		if strings.Join(got, " ") != want || directive&cobra.ShellCompDirectiveNoFileComp == 0 {
			t.Errorf("%q: %q, %d", typed, got, directive)
		}
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
		{"--path verbs?device=rxe0&queue_pairs=2 --mode event --size 64KiB --peers 1", "rxe0 port 1, RC",
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
