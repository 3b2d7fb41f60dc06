package system

import (
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/mem"
)

func TestPoolFamilies(t *testing.T) {
	all := poolFamilies(map[string]mem.PoolStats{"rx\n": {Slots: 8, InUse: 3, Gets: 10, Puts: 7},
		"tx": {Exhausted: 2, Rejected: 1}})
	got := map[string]string{}
	for _, f := range all {
		if err := f.Check(); err != nil {
			t.Error(err)
		}
		for _, s := range f.Samples {
			got[f.Name] += fmt.Sprint(s.Values, s.Value, " ")
		}
	}
	for name, want := range map[string]string{
		"penstock_pool_slots":           "[rx?] 8 [tx] 0 ",
		"penstock_pool_slots_used":      "[rx?] 3 [tx] 0 ",
		"penstock_pool_gets_total":      "[rx?] 10 [tx] 0 ",
		"penstock_pool_puts_total":      "[rx?] 7 [tx] 0 ",
		"penstock_pool_exhausted_total": "[rx?] 0 [tx] 2 ",
		"penstock_pool_rejected_total":  "[rx?] 0 [tx] 1 ",
	} {
		if got[name] != want {
			t.Errorf("%s: %q, expected %q", name, got[name], want)
		}
	}
}
