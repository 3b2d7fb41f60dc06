package ring

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the layout for OpenCL C")

// layoutInC is the layout as OpenCL C: ps_ring and ps_slot, with the fields of the Go structures in
// the same places.
func layoutInC() string {
	var b strings.Builder
	b.WriteString("// Made of descHeader and descSlot of package ring by its tests; do not edit: go test -run " +
		"^TestLayoutInC$ -update .\n")
	structure(&b, "ps_slot", flat(reflect.TypeFor[descSlot](), 0))
	structure(&b, "ps_ring", flat(reflect.TypeFor[descHeader](), 0))
	fmt.Fprintf(&b, "typedef char ps_slot_has_its_size[sizeof(ps_slot) == %d ? 1 : -1];\ntypedef char "+
		"ps_ring_has_its_size[sizeof(ps_ring) == %d ? 1 : -1];\n", descSlotSize, descHeaderSize)
	fmt.Fprintf(&b, "#define PS_DESC_VOID %du\n#define PS_DESC_TRUNCATED %du\n#define PS_DESC_FRAME %du\n", DescVoid,
		DescTruncated, DescFrame)
	return b.String()
}

// cField is a field in C.
type cField struct {
	name, typ string
	off, size uintptr
}

// flat are the fields of a structure, those of structures in it too.
func flat(t reflect.Type, base uintptr) (out []cField) {
	for i := range t.NumField() {
		f := t.Field(i)
		c := cField{name: strings.ToLower(f.Name), off: base + f.Offset, size: f.Type.Size()}
		switch f.Type {
		case reflect.TypeFor[uint64](), reflect.TypeFor[atomic.Uint64]():
			c.typ = "ulong"
		case reflect.TypeFor[int64]():
			c.typ = "long"
		case reflect.TypeFor[uint32]():
			c.typ = "uint"
		default:
			if f.Type.Kind() == reflect.Struct {
				out = append(out, flat(f.Type, c.off)...)
				continue
			}
			c.typ, c.name = "uchar", fmt.Sprintf("%s[%d]", c.name, c.size)
		}
		out = append(out, c)
	}
	return out
}

func structure(b *strings.Builder, name string, fields []cField) {
	b.WriteString("typedef struct {\n")
	for _, f := range fields {
		fmt.Fprintf(b, "\t%s %s; // at %d\n", f.typ, f.name, f.off)
	}
	fmt.Fprintf(b, "} %s;\n", name)
}

// TestLayoutInC shows that kernels and Go have one layout.
func TestLayoutInC(t *testing.T) {
	const file = "../../internal/kernels/cl/ring_layout.h"
	if *update {
		if err := os.WriteFile(file, []byte(layoutInC()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != layoutInC() {
		t.Errorf("%s is not what the structures of this package are: go test -run ^TestLayoutInC$ -update "+
			"./mem/ring, and make generate", file)
	}
}
