package verbs

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/ibvmem/cardtest"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// TestGuestConformance runs the suite on a real kernel, over Soft-RoCE. The machine is emulated, so
// what only repeats things many times is left out.
func TestGuestConformance(t *testing.T) {
	if guest.Enter(t, guest.Spec{Profile: guest.Rdma}) {
		return
	}
	t.Run("Accelerators", softwareDevices)
	for _, c := range []struct {
		name   string
		o      Options
		qps    int
		checks []string
	}{
		{"Windows", Options{}, 1, guestChecks},
		{"Domains", Options{NoWindows: true}, 2, guestChecks},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := factory(c.o, c.qps)
			f.Large = 2 << 20
			f.Patience = 3 * time.Minute
			f.Checks = c.checks
			pathtest.Run(t, f)
		})
	}
}

// softwareDevices: Soft-RoCE takes no dma-bufs, and the refusal of such memory says so.
func softwareDevices(t *testing.T) {
	card := cardtest.New(t, cardtest.Options{DMABuf: true})
	mine := card.Region("mine", 4096)
	a, b := dialPair(t, Options{}, setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)},
		setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)})
	defer func() { a.Close(); b.Close() }()
	for what, err := range map[string]error{"ReachesRegion": a.ReachesRegion(mine),
		"ReachesDevice": a.ReachesDevice(path.Desc{Device: true})} {
		if !errors.Is(err, path.ErrUnreachable) {
			t.Errorf("%s: %v", what, err)
		}
		t.Log(what, err)
	}
	if err := a.ReachesRegion(mine); err == nil || !strings.Contains(err.Error(), "cannot register dma-bufs") {
		t.Errorf("it does not say what is missing: %v", err)
	}
}

// guestChecks are the checks of the suite that an emulated machine gets through in time.
var guestChecks = []string{"Sizes", "Empty", "PartOfRegion", "Window", "Notify", "Visible", "Refusals", "Cancel",
	"Fence", "FenceRead", "Close", "CloseDelivers",
	"PeerGone", "Quiet", "Wake", "Stats"}
