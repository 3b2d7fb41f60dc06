package ibv

import (
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
)

// TestGuestDevice runs the same tests on a real kernel, over Soft-RoCE. Where they ask w.fake,
// Soft-RoCE of Linux 6.1 is known to differ:
//
//   - queues have more slots than the device says (testHalfRefused, testRecvFull);
//   - windows have no bounds (TestWindowBounds);
//   - receives of connections have FlagGRH as well;
//   - there are no dma-bufs, no XRC, and no asynchronous events of a peer's violations (TestDMABuf,
//     TestXRC, TestAsyncEvents);
//   - a write by a queue pair of datagrams fails later and not at post (testDatagramRefused).
func TestGuestDevice(t *testing.T) {
	testenv.Once(t)
	if guest.ID() == 0 { // the guest takes the host's programs; the ledger is the host's too
		peers.Need(t, "perftest")
	}
	if guest.Enter(t, guest.Spec{Profile: guest.Rdma}) {
		return
	}
	l := must(Load(Options{}))(t)
	t.Run("Perftest", func(t *testing.T) { testPerftest(t, &world{lib: l, device: "rxe0"}) })
	for _, d := range deviceTests {
		t.Run(d.name, func(t *testing.T) { d.run(t, &world{lib: l, device: "rxe0"}) })
	}
}
