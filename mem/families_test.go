package mem_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
)

func TestFamilies(t *testing.T) {
	s := mem.Stats{Populate: time.Second / 2}
	s.Regions[mem.Host], s.Bytes[mem.Host] = 2, 8192
	all := s.Families()
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
		"penstock_memory_regions":                "[host] 2 [huge] 0 [host_pinned] 0 [device] 0 [foreign] 0 ",
		"penstock_memory_mapped_bytes":           "[host] 8192 [huge] 0 [host_pinned] 0 [device] 0 [foreign] 0 ",
		"penstock_memory_populate_seconds_total": "[] 0.5 ",
	} {
		if got[name] != want {
			t.Errorf("%s: %q, expected %q", name, got[name], want)
		}
	}
	for _, f := range mem.ReadStats().Families() {
		if err := f.Check(); err != nil {
			t.Error(err)
		}
	}
}
