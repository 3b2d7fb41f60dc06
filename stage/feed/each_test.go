package feed_test

import (
	"errors"
	"testing"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/cuda"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/gpu/opencl"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
)

// onEach runs a test on the host, on PoCL, and on a card where testenv.Card says so.
func onEach(t *testing.T, f func(t *testing.T, p *gpumem.Provider)) {
	for name, open := range map[string]func(*testing.T) (*gpu.Runtime, error){
		"host": func(*testing.T) (*gpu.Runtime, error) { return host.Open(host.Options{}) },
		"pocl": func(t *testing.T) (*gpu.Runtime, error) {
			return opencl.Open(opencl.Options{Platform: peers.PoCL(t)})
		},
		"card": func(*testing.T) (*gpu.Runtime, error) { return cuda.Open(cuda.Options{}) },
	} {
		if name == "card" && !testenv.Card() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			rt, err := open(t)
			ok(t, err)
			ctx, err := rt.Devices()[0].Open()
			ok(t, err)
			p, err := gpumem.New(ctx, gpumem.Options{})
			ok(t, err)
			t.Cleanup(func() { ok(t, errors.Join(p.Close(), ctx.Close(), rt.Close())) })
			f(t, p)
		})
	}
}
