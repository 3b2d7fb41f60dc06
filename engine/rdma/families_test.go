package rdma

import (
	"reflect"
	"slices"
	"testing"
)

// TestFamilies: every count is shown once, for every port, and the families are what exporters
// take.
func TestFamilies(t *testing.T) {
	var a, b Counts
	fields := slices.DeleteFunc(reflect.VisibleFields(reflect.TypeFor[Counts]()), func(f reflect.StructField) bool {
		return f.Anonymous
	})
	for i, f := range fields {
		reflect.ValueOf(&a).Elem().FieldByIndex(f.Index).SetUint(uint64(100 + i))
		reflect.ValueOf(&b).Elem().FieldByIndex(f.Index).SetUint(uint64(200 + i))
	}
	seen := map[string]map[float64]int{"a": {}, "b": {}}
	for _, f := range append(a.families("a"), b.families("b")...) {
		if err := f.Check(); err != nil {
			t.Error(err)
		}
		for _, s := range f.Samples {
			seen[s.Values[0]][s.Value]++
		}
	}
	for i, f := range fields {
		for port, base := range map[string]int{"a": 100, "b": 200} {
			if n := seen[port][float64(base+i)]; n != 1 {
				t.Errorf("%s of port %s is shown %d times", f.Name, port, n)
			}
		}
	}
}
