package drivers

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
)

// Each engine has a Spec that is sound, and an engine that says the same of itself.
func TestSpecs(t *testing.T) {
	for i, s := range Table() {
		if err := check(s); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
		for _, o := range Table()[:i] {
			if o.Name == s.Name || o.FileSection() == s.FileSection() {
				t.Errorf("%s is there twice", s.Name)
			}
		}
		if !s.Built() {
			continue
		}
		e := s.New()
		can := e.Capabilities()
		can.MaxPacket = s.Capabilities.MaxPacket // of the default network of the engine sim
		if e.Name() != s.Name || !reflect.DeepEqual(can, s.Capabilities) {
			t.Errorf("%s: its engine is called %q, and can do %+v; Spec says %+v", s.Name, e.Name(), can,
				s.Capabilities)
		}
	}
}

// unset are fields that no text can set: functions, memory that is open, and what an option of the
// port or queue itself says.
var unset = []string{"OnConn", "Memory", "Rate", "SendAt", "Kernel", "Device", "Ahead", "Clock", "Complete"}

// Every field of the options of every engine can be set in files and addresses, or has its reason.
func TestEveryFieldHasAKey(t *testing.T) {
	for _, s := range Table() {
		structs := map[engine.Of][]any{}
		if s.PortOptions != nil {
			for _, scheme := range append([]string{""}, s.Schemes...) {
				structs[engine.OfPort] = append(structs[engine.OfPort], s.PortOptions(scheme))
			}
		}
		if s.RxOptions != nil {
			structs[engine.OfRx] = []any{s.RxOptions()}
		}
		if s.TxOptions != nil {
			structs[engine.OfTx] = []any{s.TxOptions()}
		}
		for of, all := range structs {
			for _, o := range all {
				v := reflect.TypeOf(o).Elem()
				for _, f := range reflect.VisibleFields(v) {
					found := slices.ContainsFunc(s.Options, func(x engine.Option) bool {
						return x.Of == of && slices.Contains(strings.Fields(strings.ReplaceAll(x.Field, "!", "")),
							f.Name)
					})
					if f.IsExported() && !f.Anonymous && !found && !slices.Contains(unset, f.Name) {
						t.Errorf("%s: no option sets %v.%s", s.Name, v, f.Name)
					}
				}
			}
		}
	}
}
