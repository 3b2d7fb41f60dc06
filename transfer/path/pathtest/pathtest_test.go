package pathtest

import (
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

func memoryFactory(f flaw) Factory {
	return Factory{
		New: func(t testing.TB, a, b setup.Config) (path.Path, path.Path) {
			pa, pb, err := newMemory(a, b, f)
			if err != nil {
				t.Fatal(err)
			}
			return pa, pb
		},
		Boundaries: []int{memoryInline, memoryStep},
		Large:      4 << 20, // 64 steps
	}
}

func TestMemory(t *testing.T) { Run(t, memoryFactory(sound)) }
