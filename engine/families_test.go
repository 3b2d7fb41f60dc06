package engine_test

import (
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/engine"
)

func TestFamilies(t *testing.T) {
	a := engine.PortStats{Rx: engine.RxStats{Packets: 3, Bytes: 180}, Tx: engine.TxStats{Packets: 2, Queued: 1},
		Kernel: 7}
	a.Drops[engine.DropNoRule] = 4
	a.Rx.Drops[engine.DropNoRule] = 1
	a.Tx.Drops[engine.DropRefused] = 2
	got := map[string]string{}
	for _, f := range engine.Families(map[string]*engine.PortStats{"eth1": {}, "eth0": &a}) {
		if err := f.Check(); err != nil {
			t.Error(err)
		}
		for _, s := range f.Samples {
			got[f.Name] += fmt.Sprint(s.Values, s.Value, " ")
		}
	}
	for name, want := range map[string]string{
		"penstock_packets_total":         "[eth0 in] 3 [eth1 in] 0 [eth0 out] 2 [eth1 out] 0 ",
		"penstock_packets_dropped_total": "[eth0 in no-rule] 5 [eth0 out refused] 2 ",
		"penstock_packets_queued":        "[eth0] 1 [eth1] 0 ",
		"penstock_packets_kernel_total":  "[eth0] 7 [eth1] 0 ",
		"penstock_packet_bytes_total":    "[eth0 in] 180 [eth1 in] 0 [eth0 out] 0 [eth1 out] 0 ",
	} {
		if got[name] != want {
			t.Errorf("%s: %q, expected %q", name, got[name], want)
		}
	}
}
